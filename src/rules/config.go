package rules

import (
	gopath "path"
	"strings"
	"time"
	"unicode"
)

// DomainConfig is one domain's rules as written, before they are compiled:
// what every source of rules (files, a control plane) produces.
type DomainConfig struct {
	Pos
	Domain      string
	Descriptors []DescriptorConfig
	// Rules are an ordered list, instead of Descriptors; nil: none.
	Rules *Placed[[]RuleConfig]
	// Tree is a tree of limits, instead of Descriptors; nil: none.
	Tree *Placed[[]WordConfig]
	// Divvy says that Rules are of a rule file of divvy.
	Divvy bool
	// Charge and OnReject hold for all Descriptors, OnReject for all Rules, too;
	// see there.
	Charge, OnReject *Placed[string]
	// Fallback is one of algorithm.Fallbacks, for all limits that have none of
	// their own, those that come with requests included. Nil: as Options say.
	Fallback *Placed[string]
}

// RuleConfig is one rule of an ordered list, of which the first that matches
// decides.
type RuleConfig struct {
	Pos
	// Match is the keys that must be there and the patterns that their values
	// must match, each key once; none: everything matches. Nil was not written.
	Match *Placed[[]PairConfig]
	// Per names the keys of requests whose values are counted apart.
	Per []Placed[string]
	// ShadowMode makes the rule a canary: it is charged, and others decide.
	ShadowMode bool
	QuotaMode  bool
	OnReject   *Placed[string]            // as in DescriptorConfig
	RateLimit  *RateLimitConfig           // required, or RateLimits
	RateLimits *Placed[[]RateLimitConfig] // instead of RateLimit; nil: none
	Metadata   map[string]any             // as in DescriptorConfig
	// Text is what messages call the rule. Empty: by what it matches.
	Text string

	Incomplete bool // something of it was, and that was said
}

// WordConfig is a node of a tree of limits. Each that a request comes to is
// charged.
type WordConfig struct {
	Pos
	Word     string        // `*`: any other
	Limits   *BucketConfig // nil: none
	Children []WordConfig  // each word once
}

// BucketConfig is a limit: Count in so many Seconds, and Burst beyond the first at
// once.
type BucketConfig struct {
	Pos
	Burst, Count uint32
	Seconds      int64
}

// PairConfig is one pair that a rule matches by.
type PairConfig struct {
	Pos
	Key, Pattern string
}

// text is what messages call the rule.
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

// cited is text with brackets of its own for a message: as it is, unless it is
// long, or would move the cursor.
func Shorten(text string) string {
	const most = 200
	if len(text) > most || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return Quote(text)
	}
	return text
}

// DescriptorConfig is one node of a domain's tree.
type DescriptorConfig struct {
	Pos
	Key         string
	Value       string // empty: any value
	RateLimit   *RateLimitConfig
	RateLimits  *Placed[[]RateLimitConfig] // instead of RateLimit; nil: none
	Descriptors []DescriptorConfig
	// Charge is "leaf" or "path", OnReject "each" or "none". Nil is what holds
	// above; at the top leaf and each.
	Charge, OnReject *Placed[string]
	ShadowMode       bool
	QuotaMode        bool
	// DetailedMetric counts each combination of request values apart.
	DetailedMetric bool
	// ValueToMetric shows this level's request value in the counter's name.
	ValueToMetric bool
	// ShareThreshold makes all values that a wildcard matches share a counter.
	ShareThreshold bool
	// Metadata is sent back with answers: maps, lists, strings, float64, bool
	// and nil.
	Metadata map[string]any
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
	Replaces        []ReplacesConfig

	// Of these, nil is the default.
	Algorithm    *Placed[string]        // one of algorithm.Kinds; fixed_window
	Period       *Placed[time.Duration] // the window, instead of Unit and UnitMultiplier
	Burst        *Placed[uint32]        // RequestsPerUnit - 1; gcra only
	MinInterval  *Placed[time.Duration] // none; sliding_window and gcra only
	CountBlocked *Placed[bool]          // true for fixed_window, else false
	Fallback     *Placed[string]        // one of algorithm.Fallbacks; as in DomainConfig

	// guessed says that the reader put something in place of what it refused:
	// whether the values go together is not worth asking.
	Incomplete bool
}

// Placed is a value that not every file has, and where it stands.
type Placed[T any] struct {
	Pos
	Value T
}

// ReplacesConfig names a rule that does not apply where this one does.
type ReplacesConfig struct {
	Pos
	Name string
}

// baseName is the name of a file without directories and extension: the domain,
// where the file does not say it.
func BaseName(file string) string {
	name := gopath.Base(strings.ReplaceAll(file, "\\", "/"))
	return strings.TrimSuffix(name, gopath.Ext(name))
}
