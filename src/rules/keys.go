package rules

import (
	"math"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// where says at which places of a rule file a key has a meaning.
type where uint8

const (
	atRoot where = 1 << iota
	atDescriptor
	atRule
	atLimit
	atReplaces
)

var whereNames = map[where]string{
	atRoot:       "the file",
	atDescriptor: "a descriptor",
	atRule:       "a rule",
	atLimit:      "a rate_limit",
	atReplaces:   "replaces",
}

// key is a key of a rule file at one of these places. The reader goes by it,
// and so do the schema and the test of docs/rule-keys.md's table.
type key[T any] struct {
	name string
	// into is where the value goes. Its type says what the value may be.
	into func(cfg *T) any
	// says is what editors show, in a line.
	says string
	// words are the only texts there are, for the schema: the compiler refuses
	// others. Nil: any.
	words []string
	// least is the smallest number or duration, for the schema: the compiler
	// refuses smaller ones. Most is the largest number; 0: that of 32 bits.
	least, most int64
	// need says that it must be there, and not be empty.
	need bool
	// counts says that it means nothing where nothing is counted: the compiler
	// refuses it beside `unlimited: true`.
	counts bool
}

const (
	saysCharge = "leaf (the default): a match is charged to the limits of its own descriptor; " +
		"path: also to those of the levels above, from where this stands. Holds for all levels below."
	saysOnReject = "each (the default): of several limits those that pass are charged; " +
		"none: nothing is charged unless all pass. Holds for all levels below."
	saysOnFailure = "What becomes of a hit when the store does not answer. error: the caller gets an error and decides; " +
		"allow: it passes; deny: it is refused; local: this process counts it, against its share of the limit."
)

var fileKeys = []key[DomainConfig]{
	{
		name: "domain", need: true, into: func(c *DomainConfig) any { return &c.Domain },
		says: "The name that requests ask for. One file has one domain.",
	}, {
		name: "descriptors", into: func(c *DomainConfig) any { return &c.Descriptors },
		says: "What the first entry of a request may meet.",
	}, {
		name: "rules", into: func(c *DomainConfig) any { return &c.Rules },
		says: "An ordered list, instead of descriptors: the first rule that matches the entries of a request, in any order, decides.",
	}, {
		name: "charge", words: chargeWords, into: func(c *DomainConfig) any { return &c.Charge },
		says: saysCharge,
	}, {
		name: "on_reject", words: onRejectWords, into: func(c *DomainConfig) any { return &c.OnReject },
		says: saysOnReject,
	}, {
		name: "on_store_failure", words: backend.Fallbacks(), into: func(c *DomainConfig) any { return &c.Fallback },
		says: saysOnFailure + " Holds for all limits of the file; the default is STORE_FAILURE_MODE's, error.",
	},
}

var descriptorKeys = []key[DescriptorConfig]{
	{
		name: "key", need: true, into: func(c *DescriptorConfig) any { return &c.Key },
		says: "The key of the request's entry; may hold `*`, which stands for any text.",
	}, {
		name: "value", into: func(c *DescriptorConfig) any { return &c.Value },
		says: "The value of the request's entry; may hold `*`. Without one any value matches, and each is counted apart.",
	}, {
		name: "rate_limit", into: func(c *DescriptorConfig) any { return &c.RateLimit },
		says: "The limit of requests whose last entry is met here. Without one, and without descriptors, they pass.",
	}, {
		name: "rate_limits", into: func(c *DescriptorConfig) any { return &c.RateLimits },
		says: "Several limits, instead of rate_limit: each of them is charged. No two with the same algorithm and window.",
	}, {
		name: "descriptors", into: func(c *DescriptorConfig) any { return &c.Descriptors },
		says: "What the next entry of a request may meet.",
	}, {
		name: "charge", words: chargeWords, into: func(c *DescriptorConfig) any { return &c.Charge },
		says: saysCharge,
	}, {
		name: "on_reject", words: onRejectWords, into: func(c *DescriptorConfig) any { return &c.OnReject },
		says: saysOnReject,
	}, {
		name: "shadow_mode", into: func(c *DescriptorConfig) any { return &c.ShadowMode },
		says: "Judge and count, never refuse. Stands beside rate_limit; not inherited.",
	}, {
		name: "quota_mode", into: func(c *DescriptorConfig) any { return &c.QuotaMode },
		says: "Refuse a request only if all its quota rules are over. Stands beside rate_limit; not inherited.",
	}, {
		name: "detailed_metric", into: func(c *DescriptorConfig) any { return &c.DetailedMetric },
		says: "Count each combination of request values under a name of its own. Stands beside rate_limit; not inherited.",
	}, {
		name: "value_to_metric", into: func(c *DescriptorConfig) any { return &c.ValueToMetric },
		says: "Show the request's value of this level in the names of the counters of rules here and below.",
	}, {
		name: "share_threshold", into: func(c *DescriptorConfig) any { return &c.ShareThreshold },
		says: "All values that the wildcard matches share one counter.",
	}, {
		name: "metadata", into: func(c *DescriptorConfig) any { return &c.Metadata },
		says: "Sent back in dynamic_metadata; a map of any form. Stands beside rate_limit; not inherited.",
	},
}

var ruleKeys = []key[RuleConfig]{
	{
		name: "match", need: true, into: func(c *RuleConfig) any { return &c.Match },
		says: "The keys that a request must have, and the patterns that their values must match: `*` any value, " +
			"a text with `*` in it for any text there, or the value itself. {} matches everything.",
	}, {
		name: "per", into: func(c *RuleConfig) any { return &c.Per },
		says: "A list of keys of the request: each combination of their values is counted apart. A missing one is as if it were empty.",
	}, {
		name: "rate_limit", into: func(c *RuleConfig) any { return &c.RateLimit },
		says: "The limit of requests that the rule decides on.",
	}, {
		name: "rate_limits", into: func(c *RuleConfig) any { return &c.RateLimits },
		says: "Several limits, instead of rate_limit: each of them is charged. No two with the same algorithm and window.",
	}, {
		name: "on_reject", words: onRejectWords, into: func(c *RuleConfig) any { return &c.OnReject },
		says: "each (the default): of several limits those that pass are charged; none: nothing is charged unless all pass.",
	}, {
		name: "shadow_mode", into: func(c *RuleConfig) any { return &c.ShadowMode },
		says: "Judge and count, and go on to the next rule, which decides.",
	}, {
		name: "quota_mode", into: func(c *RuleConfig) any { return &c.QuotaMode },
		says: "Refuse a request only if all its quota rules are over.",
	}, {
		name: "metadata", into: func(c *RuleConfig) any { return &c.Metadata },
		says: "Sent back in dynamic_metadata; a map of any form.",
	},
}

var limitKeys = []key[RateLimitConfig]{
	{
		name: "unit", words: unitWords(), into: func(c *RateLimitConfig) any { return &c.Unit },
		says: "The window. Needed unless there is period or unlimited.",
	}, {
		name: "requests_per_unit", into: func(c *RateLimitConfig) any { return &c.RequestsPerUnit },
		says: "How many pass in a window; 0 refuses everything.",
	}, {
		name: "unit_multiplier", counts: true, least: 1, into: func(c *RateLimitConfig) any { return &c.UnitMultiplier },
		says: "The window is so many units long; 1 is the default. Together at most 100 years.",
	}, {
		name: "period", counts: true, least: 1, into: func(c *RateLimitConfig) any { return &c.Period },
		says: "The window as a duration, 15s, 1500ms, 1h30m, instead of unit; at most 876000h. Whole seconds for fixed_window.",
	}, {
		name: "algorithm", counts: true, words: algorithm.Kinds(), into: func(c *RateLimitConfig) any { return &c.Algorithm },
		says: "How hits are counted; fixed_window is the default.",
	}, {
		name: "burst", counts: true, most: math.MaxUint32 - 1, into: func(c *RateLimitConfig) any { return &c.Burst },
		says: "How many pass at once beyond the first, with algorithm gcra; requests_per_unit - 1 is the default.",
	}, {
		name: "min_interval", counts: true, into: func(c *RateLimitConfig) any { return &c.MinInterval },
		says: "The shortest distance to the last hit that counted, a duration, with algorithm sliding_window or gcra.",
	}, {
		name: "count_blocked", counts: true, into: func(c *RateLimitConfig) any { return &c.CountBlocked },
		says: "Whether refused hits count; by default true for fixed_window and false for the others.",
	}, {
		name: "on_store_failure", counts: true, words: backend.Fallbacks(), into: func(c *RateLimitConfig) any { return &c.Fallback },
		says: saysOnFailure + " The default is what the file says.",
	}, {
		name: "unlimited", into: func(c *RateLimitConfig) any { return &c.Unlimited },
		says: "Let everything pass and count nothing, instead of a window.",
	}, {
		name: "name", into: func(c *RateLimitConfig) any { return &c.Name },
		says: "Told to callers in current_limit; what replaces refers to.",
	}, {
		name: "replaces", into: func(c *RateLimitConfig) any { return &c.Replaces },
		says: "Rules that do not apply to a request that this one applies to.",
	},
}

var replacesKeys = []key[ReplacesConfig]{
	{
		name: "name", need: true, into: func(c *ReplacesConfig) any { return &c.Name },
		says: "The name of the rate_limit that does not apply.",
	},
}

// free are the keys whose values have any form, wherever they stand.
var free = map[string]bool{"metadata": true, "match": true, "per": true}

// keys are all keys of a rule file. A known key in the wrong place is accepted
// and ignored, as in envoyproxy/ratelimit, with a warning.
var keys = allKeys()

func allKeys() map[string]where {
	all := make(map[string]where)
	note(all, atRoot, fileKeys)
	note(all, atDescriptor, descriptorKeys)
	note(all, atRule, ruleKeys)
	note(all, atLimit, limitKeys)
	note(all, atReplaces, replacesKeys)
	return all
}

func note[T any](all map[string]where, place where, keys []key[T]) {
	for i := range keys {
		all[keys[i].name] |= place
	}
}
