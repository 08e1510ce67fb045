package rules

import (
	gopath "path"
	"strings"
	"time"
)

// DomainConfig is the rules of one domain as written. Rule files and control planes are read into it, and Compile checks it.
//
// The tags of this and the other configurations are the keys of YAML files, see package yamlrules.
type DomainConfig struct {
	Pos
	Domain string `yaml:"domain"`
	// A domain has Descriptors, Rules or a Tree.
	Descriptors []DescriptorConfig    `yaml:"descriptors"`
	Rules       *Placed[[]RuleConfig] `yaml:"rules"` // an ordered list; nil: none
	Tree        *Placed[[]WordConfig] // a tree of limits; nil: none
	Divvy       bool                  // Rules come from a rule file of divvy
	// Charge and OnReject are the defaults of Descriptors; OnReject is also the default of Rules.
	Charge   *Placed[string] `yaml:"charge"`
	OnReject *Placed[string] `yaml:"on_reject"`
	// Fallback is one of backend.Fallbacks, for limits without one, also for those in requests. Nil: Options.Fallback.
	Fallback *Placed[string] `yaml:"on_store_failure"`
}

// LimitsConfig is what descriptors and rules of an ordered list have in common: limits, and how they are charged.
type LimitsConfig struct {
	Pos
	RateLimit  *RateLimitConfig           `yaml:"rate_limit"`
	RateLimits *Placed[[]RateLimitConfig] `yaml:"rate_limits"` // instead of RateLimit; nil: none
	OnReject   *Placed[string]            `yaml:"on_reject"`   // "each" or "none"; nil: as above it, at the top "each"
	ShadowMode bool                       `yaml:"shadow_mode"` // for a rule: a canary, which is charged while a later rule decides
	QuotaMode  bool                       `yaml:"quota_mode"`
	// DetailedMetric counts each combination of request values separately. Descriptors only.
	DetailedMetric bool `yaml:"detailed_metric"`
	// Metadata is sent with answers: maps, lists, strings, float64, bool and nil.
	Metadata map[string]any `yaml:"metadata"`
}

// DescriptorConfig is a node of a domain's tree of descriptors.
type DescriptorConfig struct {
	LimitsConfig
	Key         string             `yaml:"key"`
	Value       string             `yaml:"value"` // empty: any value
	Descriptors []DescriptorConfig `yaml:"descriptors"`
	Charge      *Placed[string]    `yaml:"charge"` // "leaf" or "path"; nil: as above it, at the top "leaf"
	// ValueToMetric shows this level's request value in the counter's name.
	ValueToMetric bool `yaml:"value_to_metric"`
	// ShareThreshold makes all values that a wildcard matches share a counter.
	ShareThreshold bool `yaml:"share_threshold"`
}

// RuleConfig is a rule of an ordered list. The first rule that matches decides.
type RuleConfig struct {
	LimitsConfig
	// Match has each key once. An empty list matches everything; nil is an error.
	Match *Placed[[]PairConfig] `yaml:"match"`
	// Per names the keys whose values are counted separately.
	Per []Placed[string] `yaml:"per"`
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
	Unit            string           `yaml:"unit"`
	UnitPos         Pos              // of the unit, or of the limit
	RequestsPerUnit uint32           `yaml:"requests_per_unit"`
	UnitMultiplier  *uint32          `yaml:"unit_multiplier"` // 1
	Unlimited       bool             `yaml:"unlimited"`
	Name            string           `yaml:"name"`
	Replaces        []Placed[string] `yaml:"replaces"` // names of rules that do not apply where this one does

	Algorithm    *Placed[string]        `yaml:"algorithm"`        // one of algorithm.Kinds; fixed_window
	Period       *Placed[time.Duration] `yaml:"period"`           // the window, instead of Unit and UnitMultiplier
	Burst        *Placed[uint32]        `yaml:"burst"`            // RequestsPerUnit - 1; gcra only
	MinInterval  *Placed[time.Duration] `yaml:"min_interval"`     // none; sliding_window and gcra only
	CountBlocked *Placed[bool]          `yaml:"count_blocked"`    // true for fixed_window, false for others
	Fallback     *Placed[string]        `yaml:"on_store_failure"` // as in DomainConfig

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
