package rules

import (
	gopath "path"
	"strings"
	"time"
)

// DomainConfig is the rules of one domain as written. Rule files and control planes are read into it, and Compile checks it.
type DomainConfig struct {
	Pos
	Domain string
	// A domain has Descriptors, Rules or a Tree.
	Descriptors []DescriptorConfig
	Rules       *Placed[[]RuleConfig] // an ordered list; nil: none
	Tree        *Placed[[]WordConfig] // a tree of limits; nil: none
	Divvy       bool                  // Rules come from a rule file of divvy
	// Charge and OnReject are the defaults of Descriptors; OnReject is also the default of Rules.
	Charge, OnReject *Placed[string]
	// Fallback is one of backend.Fallbacks, for limits without one, also for those in requests. Nil: Options.Fallback.
	Fallback *Placed[string]
}

// LimitsConfig is what descriptors and rules of an ordered list have in common: limits, and how they are charged.
type LimitsConfig struct {
	Pos
	RateLimit  *RateLimitConfig
	RateLimits *Placed[[]RateLimitConfig] // instead of RateLimit; nil: none
	OnReject   *Placed[string]            // "each" or "none"; nil: as above it, at the top "each"
	ShadowMode bool                       // for a rule: a canary, which is charged while a later rule decides
	QuotaMode  bool
	// DetailedMetric counts each combination of request values separately. Descriptors only.
	DetailedMetric bool
	// Metadata is sent with answers: maps, lists, strings, float64, bool and nil.
	Metadata map[string]any
}

// DescriptorConfig is a node of a domain's tree of descriptors.
type DescriptorConfig struct {
	LimitsConfig
	Key         string
	Value       string // empty: any value
	Descriptors []DescriptorConfig
	Charge      *Placed[string] // "leaf" or "path"; nil: as above it, at the top "leaf"
	// ValueToMetric shows this level's request value in the counter's name.
	ValueToMetric bool
	// ShareThreshold makes all values that a wildcard matches share a counter.
	ShareThreshold bool
}

// RuleConfig is a rule of an ordered list. The first rule that matches decides.
type RuleConfig struct {
	LimitsConfig
	// Match has each key once. An empty list matches everything; nil is an error.
	Match *Placed[[]PairConfig]
	// Per names the keys whose values are counted separately.
	Per []Placed[string]
	// Text is the rule in messages. Empty: its Match.
	Text string
	// Incomplete says that the reader has reported a problem in it, and left something out.
	Incomplete bool
}

// PairConfig is a key that a request must have, and the pattern of its value.
type PairConfig struct {
	Pos
	Key, Pattern string
}

// text is the rule in messages.
func (c *RuleConfig) text() string {
	if c.Text != "" || c.Match == nil {
		return Shorten(c.Text)
	}
	var parts []string
	for _, p := range c.Match.Value {
		parts = append(parts, p.Key+"="+p.Pattern)
	}
	return Shorten("{" + strings.Join(parts, " ") + "}")
}

// WordConfig is a node of a tree of limits. A request is charged to each node on its way.
type WordConfig struct {
	Pos
	Word     string           // `*`: any other
	Limit    *RateLimitConfig // nil: none
	Children []WordConfig     // each word once
}

// RateLimitConfig is a limit as written. Nil fields have their default.
type RateLimitConfig struct {
	Pos
	Unit            string
	UnitPos         Pos // of the unit, or of the limit
	RequestsPerUnit uint32
	UnitMultiplier  *uint32 // 1
	Unlimited       bool
	Name            string
	Replaces        []Placed[string] // names of rules that do not apply where this one does

	Algorithm    *Placed[string]        // one of algorithm.Kinds; fixed_window
	Period       *Placed[time.Duration] // the window, instead of Unit and UnitMultiplier
	Burst        *Placed[uint32]        // RequestsPerUnit - 1; gcra only
	MinInterval  *Placed[time.Duration] // none; sliding_window and gcra only
	CountBlocked *Placed[bool]          // true for fixed_window, false for others
	Fallback     *Placed[string]        // as in DomainConfig

	// Incomplete says that the reader has reported a problem in it, and put in a value of its own.
	Incomplete bool
}

// Placed is an optional value and where it stands.
type Placed[T any] struct {
	Pos
	Value T
}

// BaseName returns the name of a file without directories and extension. It is the domain of files that do not name one.
func BaseName(file string) string {
	name := gopath.Base(strings.ReplaceAll(file, "\\", "/"))
	return strings.TrimSuffix(name, gopath.Ext(name))
}
