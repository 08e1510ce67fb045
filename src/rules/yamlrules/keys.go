package yamlrules

import (
	"math"

	"ratelimit/src/rules"
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

// key is a key of a rule file at one of these places.
type key[T any] struct {
	name string
	// into is where the value goes. Its type says what the value may be.
	into func(cfg *T) any
	most int64 // the largest number; 0: the largest of 32 bits
}

var fileKeys = []key[rules.DomainConfig]{
	{name: "domain", into: func(c *rules.DomainConfig) any { return &c.Domain }},
	{name: "descriptors", into: func(c *rules.DomainConfig) any { return &c.Descriptors }},
	{name: "rules", into: func(c *rules.DomainConfig) any { return &c.Rules }},
	{name: "charge", into: func(c *rules.DomainConfig) any { return &c.Charge }},
	{name: "on_reject", into: func(c *rules.DomainConfig) any { return &c.OnReject }},
	{name: "on_store_failure", into: func(c *rules.DomainConfig) any { return &c.Fallback }},
}

var descriptorKeys = []key[rules.DescriptorConfig]{
	{name: "key", into: func(c *rules.DescriptorConfig) any { return &c.Key }},
	{name: "value", into: func(c *rules.DescriptorConfig) any { return &c.Value }},
	{name: "rate_limit", into: func(c *rules.DescriptorConfig) any { return &c.RateLimit }},
	{name: "rate_limits", into: func(c *rules.DescriptorConfig) any { return &c.RateLimits }},
	{name: "descriptors", into: func(c *rules.DescriptorConfig) any { return &c.Descriptors }},
	{name: "charge", into: func(c *rules.DescriptorConfig) any { return &c.Charge }},
	{name: "on_reject", into: func(c *rules.DescriptorConfig) any { return &c.OnReject }},
	{name: "shadow_mode", into: func(c *rules.DescriptorConfig) any { return &c.ShadowMode }},
	{name: "quota_mode", into: func(c *rules.DescriptorConfig) any { return &c.QuotaMode }},
	{name: "detailed_metric", into: func(c *rules.DescriptorConfig) any { return &c.DetailedMetric }},
	{name: "value_to_metric", into: func(c *rules.DescriptorConfig) any { return &c.ValueToMetric }},
	{name: "share_threshold", into: func(c *rules.DescriptorConfig) any { return &c.ShareThreshold }},
	{name: "metadata", into: func(c *rules.DescriptorConfig) any { return &c.Metadata }},
}

var ruleKeys = []key[rules.RuleConfig]{
	{name: "match", into: func(c *rules.RuleConfig) any { return &c.Match }},
	{name: "per", into: func(c *rules.RuleConfig) any { return &c.Per }},
	{name: "rate_limit", into: func(c *rules.RuleConfig) any { return &c.RateLimit }},
	{name: "rate_limits", into: func(c *rules.RuleConfig) any { return &c.RateLimits }},
	{name: "on_reject", into: func(c *rules.RuleConfig) any { return &c.OnReject }},
	{name: "shadow_mode", into: func(c *rules.RuleConfig) any { return &c.ShadowMode }},
	{name: "quota_mode", into: func(c *rules.RuleConfig) any { return &c.QuotaMode }},
	{name: "metadata", into: func(c *rules.RuleConfig) any { return &c.Metadata }},
}

var limitKeys = []key[rules.RateLimitConfig]{
	{name: "unit", into: func(c *rules.RateLimitConfig) any { return &c.Unit }},
	{name: "requests_per_unit", into: func(c *rules.RateLimitConfig) any { return &c.RequestsPerUnit }},
	{name: "unit_multiplier", into: func(c *rules.RateLimitConfig) any { return &c.UnitMultiplier }},
	{name: "period", into: func(c *rules.RateLimitConfig) any { return &c.Period }},
	{name: "algorithm", into: func(c *rules.RateLimitConfig) any { return &c.Algorithm }},
	{name: "burst", into: func(c *rules.RateLimitConfig) any { return &c.Burst }, most: math.MaxUint32 - 1},
	{name: "min_interval", into: func(c *rules.RateLimitConfig) any { return &c.MinInterval }},
	{name: "count_blocked", into: func(c *rules.RateLimitConfig) any { return &c.CountBlocked }},
	{name: "on_store_failure", into: func(c *rules.RateLimitConfig) any { return &c.Fallback }},
	{name: "unlimited", into: func(c *rules.RateLimitConfig) any { return &c.Unlimited }},
	{name: "name", into: func(c *rules.RateLimitConfig) any { return &c.Name }},
	{name: "replaces", into: func(c *rules.RateLimitConfig) any { return &c.Replaces }},
}

var replacesKeys = []key[rules.ReplacesConfig]{
	{name: "name", into: func(c *rules.ReplacesConfig) any { return &c.Name }},
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
