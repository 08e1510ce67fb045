package rules

// DomainConfig is one domain's rules as written, before they are compiled:
// what every source of rules (files, a control plane) produces.
type DomainConfig struct {
	Pos
	Domain      string
	Descriptors []DescriptorConfig
}

// DescriptorConfig is one node of a domain's tree.
type DescriptorConfig struct {
	Pos
	Key         string
	Value       string // empty: any value
	RateLimit   *RateLimitConfig
	Descriptors []DescriptorConfig
	ShadowMode  bool
	QuotaMode   bool
}

// RateLimitConfig is the limit at a node.
type RateLimitConfig struct {
	Pos
	Unit            string
	UnitPos         Pos // of the unit's text, or of the rate limit
	RequestsPerUnit uint32
	UnitMultiplier  *uint32 // nil: 1
	Unlimited       bool
	Name            string
}
