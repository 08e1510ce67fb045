package compile

import (
	"iter"
	gopath "path"
	"strings"
	"time"

	"ratelimit/src/rules"

	"ratelimit/src/rules/datafile"
)

// DomainConfig is the rules of one domain as written. Rule files and control planes are read into it, and Compile
// checks it. A domain has Descriptors, Rules or a LimitTree.
//
// The tags of this and the other configurations are the keys of YAML files, see package yamlrules.
type DomainConfig struct {
	rules.Pos
	Domain      string             `yaml:"domain"`
	Descriptors []DescriptorConfig `yaml:"descriptors"`
	// DescriptorParts are further Descriptors, of a large file. AddConfig frees each part when it is compiled, because the
	// configuration takes more memory than the rules.
	DescriptorParts [][]DescriptorConfig
	Rules           *Positioned[[]RuleConfig]      `yaml:"rules"` // the ordered list of the domain, or nil for a tree
	LimitTree       *Positioned[[]LimitNodeConfig] // a tree of limits; nil if the domain is none
	Origin          string                         // see rules.Domain
	// the files that ValuesFrom and LimitsFrom name. They are nil for rules that do not come from files
	DataFiles datafile.Files
	// ChargeMode and OnReject are the defaults of Descriptors; OnReject is also the default of Rules.
	ChargeMode *Positioned[string] `yaml:"charge"`
	OnReject   *Positioned[string] `yaml:"on_reject"`
	// Fallback is one of backend.Fallbacks. It holds for limits without a fallback, also for those in requests. Nil
	// stands for Options.Fallback.
	Fallback *Positioned[string] `yaml:"on_store_failure"`
	// Counting is one of backend.Countings, and OnContention one of backend.Contentions. They hold for the same
	// limits as Fallback. Nil stands for those of Options.
	Counting     *Positioned[string] `yaml:"counting"`
	OnContention *Positioned[string] `yaml:"on_contention"`
	// Notify is for all limits. Each of them may replace parts of it.
	Notify *NotifyConfig `yaml:"notify"`
	// QuotaBuckets is false by default. With true the rules also apply to quota buckets, so all limits must be divisible.
	QuotaBuckets *Positioned[bool] `yaml:"quota_buckets"`
}

// LimitsConfig has what descriptors and rules of an ordered list have in common: limits, and how they are charged.
type LimitsConfig struct {
	rules.Pos
	RateLimit *RateLimitConfig `yaml:"rate_limit"`
	// a list of limits, used instead of RateLimit; nil if there is none
	RateLimits *Positioned[[]RateLimitConfig] `yaml:"rate_limits"`
	OnReject   *Positioned[string]            `yaml:"on_reject"` // "each", the default, or "none". Nil inherits it
	// makes a rule a canary: it is charged, and a later rule decides.
	ShadowMode bool `yaml:"shadow_mode"`
	QuotaMode  bool `yaml:"quota_mode"`
	// DetailedMetric counts each combination of request values separately. Only descriptors may have it.
	DetailedMetric bool `yaml:"detailed_metric"`
	// AnswerMetadata is sent with answers: maps, lists, strings, float64, bool and nil.
	AnswerMetadata map[string]any `yaml:"metadata"`
}

// limit returns limit i of those in RateLimit and RateLimits.
func (cfg *LimitsConfig) limit(i int) *RateLimitConfig {
	if cfg.RateLimit == nil {
		return &cfg.RateLimits.Value[i]
	}
	if i == 0 {
		return cfg.RateLimit
	}
	return &cfg.RateLimits.Value[i-1]
}

// DescriptorConfig is a node of a domain's tree of descriptors.
type DescriptorConfig struct {
	LimitsConfig
	Key         string              `yaml:"key"`
	Value       string              `yaml:"value"` // empty if the descriptor matches any value, unless Exact is set
	Descriptors []DescriptorConfig  `yaml:"descriptors"`
	ChargeMode  *Positioned[string] `yaml:"charge"` // "leaf", the default, or "path". Nil inherits it
	// ValueToMetric shows this level's request value in the counter's name.
	ValueToMetric bool `yaml:"value_to_metric"`
	// ShareThreshold makes all values that a wildcard, CIDR or Regex matches share a counter.
	ShareThreshold bool `yaml:"share_threshold"`
	// Exact is the only value that the descriptor matches, which may be empty. CIDR are networks in CIDR notation, and
	// Regex is a regular expression. ValuesFrom and LimitsFrom are the paths of data files, from the directory of the rule
	// file on. At most one of them and Value is set.
	Exact      *Positioned[string]               `yaml:"exact"`
	CIDR       *Positioned[[]Positioned[string]] `yaml:"cidr"`
	Regex      *Positioned[string]               `yaml:"regex"`
	ValuesFrom *Positioned[string]               `yaml:"values_from"`
	LimitsFrom *Positioned[string]               `yaml:"limits_from"`
	// counts addresses by network; nil counts each value.
	CountByPrefix *PrefixLengthsConfig `yaml:"count_by_prefix"`
}

// PrefixLengthsConfig has the lengths of the networks by which addresses are counted. Addresses of a version whose
// length is nil are counted each.
type PrefixLengthsConfig struct {
	rules.Pos
	V4 *Positioned[uint32] `yaml:"v4"`
	V6 *Positioned[uint32] `yaml:"v6"`
}

// RuleConfig is a rule of an ordered list. The first rule that matches decides.
type RuleConfig struct {
	LimitsConfig
	// Match has each key once. An empty list matches everything; nil is an error.
	Match *Positioned[[]MatchPairConfig] `yaml:"match"`
	// PerKeys names the keys whose values are counted separately.
	PerKeys []Positioned[string] `yaml:"per"`
	// MessageText is the rule in messages. If it is empty, messages show Match.
	MessageText string
	// HasReadProblem says that the reader has reported a problem in the rule, and left something out.
	HasReadProblem bool
}

// MatchPairConfig is a key that a request must have, and the pattern of its value.
type MatchPairConfig struct {
	rules.Pos
	Key, Pattern string
}

// shortText returns the rule for messages.
func (c *RuleConfig) shortText() string {
	if c.MessageText != "" || c.Match == nil {
		return rules.Shorten(c.MessageText)
	}
	var parts []string
	for _, p := range c.Match.Value {
		parts = append(parts, p.Key+"="+p.Pattern)
	}
	return rules.Shorten("{" + strings.Join(parts, " ") + "}")
}

// LimitNodeConfig is a node of a tree of limits. A request is charged to each node on its way.
type LimitNodeConfig struct {
	rules.Pos
	Word     string            // `*` for any word without a node of its own
	Limit    *RateLimitConfig  // nil if the node has none
	Children []LimitNodeConfig // each word once
}

// RateLimitConfig is a limit as written. Nil fields have their default.
type RateLimitConfig struct {
	rules.Pos
	Unit            string    `yaml:"unit"` // empty beside Period, and for a concurrency
	UnitPos         rules.Pos // the position of the unit, or that of the limit if it has none
	RequestsPerUnit uint64    `yaml:"requests_per_unit"`
	LacksRequests   bool      // the file has no requests_per_unit. Management servers cannot tell that from 0
	UnitMultiplier  *uint32   `yaml:"unit_multiplier"` // 1 by default
	Unlimited       bool      `yaml:"unlimited"`
	Name            string    `yaml:"name"`
	// names rules that do not apply to requests that this rule applies to.
	Replaces []Positioned[string] `yaml:"replaces"`

	Algorithm *Positioned[string]        `yaml:"algorithm"` // one of algorithm.KindNames; fixed_window by default
	Period    *Positioned[time.Duration] `yaml:"period"`    // the window, instead of Unit and UnitMultiplier
	// Calendar is false by default. With true windows begin on borders of the calendar in TimeZone, an IANA name, "UTC" by
	// default. AnchorDay is the day of the month on which months begin, 1 by default. WeekStarts is the first day of a
	// week, monday by default.
	Calendar    *Positioned[bool]          `yaml:"calendar"`
	TimeZone    *Positioned[string]        `yaml:"time_zone"`
	AnchorDay   *Positioned[uint32]        `yaml:"anchor_day"`
	WeekStarts  *Positioned[string]        `yaml:"week_starts"`
	Burst       *Positioned[uint64]        `yaml:"burst"`        // RequestsPerUnit - 1 by default. Only gcra has it
	MinInterval *Positioned[time.Duration] `yaml:"min_interval"` // 0 by default. Only sliding_window and gcra have it
	// true by default for a fixed_window without Hold only
	CountBlocked *Positioned[bool]   `yaml:"count_blocked"`
	Fallback     *Positioned[string] `yaml:"on_store_failure"` // DomainConfig.Fallback by default
	// Counting and OnContention are those of DomainConfig by default.
	Counting     *Positioned[string] `yaml:"counting"`
	OnContention *Positioned[string] `yaml:"on_contention"`
	Notify       *NotifyConfig       `yaml:"notify"` // what is not set is that of DomainConfig
	// EnforcePercent is the percentage of counters, 0 to 100, for which the limit is enforced. It is 100 by default.
	EnforcePercent *Positioned[float64] `yaml:"enforce_percent"`
	// Hold is the time after which a hold expires; without it hits cannot be held. HoldID is the key of the entry that
	// names the hold. Unsettled is "charge", the default, or "release": what becomes of a reservation that expires.
	Hold      *Positioned[time.Duration] `yaml:"hold"`
	HoldID    *Positioned[string]        `yaml:"hold_id"`
	Unsettled *Positioned[string]        `yaml:"unsettled"`
	Reserve   *ReserveConfig             `yaml:"reserve_on_check"`

	// HasReadProblem says that the reader has reported a problem in the limit, and put in a value of its own.
	HasReadProblem bool
}

// NotifyConfig says when somebody is told about subjects that use much of a limit, and where.
type NotifyConfig struct {
	rules.Pos
	// At has percentages of the limit. An empty list, unlike nil, stands for never.
	At     *Positioned[[]Positioned[uint32]] `yaml:"at"`
	URL    *Positioned[string]               `yaml:"url"`
	Format *Positioned[string]               `yaml:"format"` // one of rules.NotifyFormats; "json" by default
}

// ReserveConfig says what a request for 0 units reserves.
type ReserveConfig struct {
	rules.Pos
	// Estimate is learned if it is nil or 0.
	Estimate *Positioned[Estimate]      `yaml:"estimate"`
	For      *Positioned[time.Duration] `yaml:"for"` // RateLimitConfig.Hold if that is set, and required otherwise
}

// Estimate is a number of units; 0 for the word learned.
type Estimate uint64

// Positioned is an optional value with its position.
type Positioned[T any] struct {
	rules.Pos
	Value T
}

// BaseName returns the name of a file without directories and extension. It is the domain of files that do not name
// one.
func BaseName(file string) string {
	name := gopath.Base(strings.ReplaceAll(file, "\\", "/"))
	return strings.TrimSuffix(name, gopath.Ext(name))
}

// DataFiles yields what the descriptor says of data files.
func (cfg *DescriptorConfig) DataFiles() iter.Seq[datafile.Reference] {
	return func(yield func(datafile.Reference) bool) {
		if v := cfg.ValuesFrom; v != nil && !yield(datafile.Reference{Name: v.Value, Kind: datafile.Values}) {
			return
		}
		if v := cfg.LimitsFrom; v != nil {
			yield(datafile.Reference{Name: v.Value, Kind: datafile.Limits})
		}
	}
}
