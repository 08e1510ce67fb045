package yamlrules

import (
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// where is a set of places in a rule file.
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

// table has the keys of one place, and where their values go. The type of that says what the value may be, see reader.fill.
type table[T any] map[string]func(cfg *T) any

var fileKeys = table[rules.DomainConfig]{
	"domain":           func(c *rules.DomainConfig) any { return &c.Domain },
	"descriptors":      func(c *rules.DomainConfig) any { return &c.Descriptors },
	"rules":            func(c *rules.DomainConfig) any { return &c.Rules },
	"charge":           func(c *rules.DomainConfig) any { return &c.Charge },
	"on_reject":        func(c *rules.DomainConfig) any { return &c.OnReject },
	"on_store_failure": func(c *rules.DomainConfig) any { return &c.Fallback },
}

var descriptorKeys = table[rules.DescriptorConfig]{
	"key":             func(c *rules.DescriptorConfig) any { return &c.Key },
	"value":           func(c *rules.DescriptorConfig) any { return &c.Value },
	"descriptors":     func(c *rules.DescriptorConfig) any { return &c.Descriptors },
	"charge":          func(c *rules.DescriptorConfig) any { return &c.Charge },
	"detailed_metric": func(c *rules.DescriptorConfig) any { return &c.DetailedMetric },
	"value_to_metric": func(c *rules.DescriptorConfig) any { return &c.ValueToMetric },
	"share_threshold": func(c *rules.DescriptorConfig) any { return &c.ShareThreshold },
}

var ruleKeys = table[rules.RuleConfig]{
	"match": func(c *rules.RuleConfig) any { return &c.Match },
	"per":   func(c *rules.RuleConfig) any { return &c.Per },
}

// limitsKeys are those of descriptors and rules.
var limitsKeys = table[rules.LimitsConfig]{
	"rate_limit":  func(c *rules.LimitsConfig) any { return &c.RateLimit },
	"rate_limits": func(c *rules.LimitsConfig) any { return &c.RateLimits },
	"on_reject":   func(c *rules.LimitsConfig) any { return &c.OnReject },
	"shadow_mode": func(c *rules.LimitsConfig) any { return &c.ShadowMode },
	"quota_mode":  func(c *rules.LimitsConfig) any { return &c.QuotaMode },
	"metadata":    func(c *rules.LimitsConfig) any { return &c.Metadata },
}

var limitKeys = table[rules.RateLimitConfig]{
	"unit":              func(c *rules.RateLimitConfig) any { return &c.Unit },
	"requests_per_unit": func(c *rules.RateLimitConfig) any { return &c.RequestsPerUnit },
	"unit_multiplier":   func(c *rules.RateLimitConfig) any { return &c.UnitMultiplier },
	"period":            func(c *rules.RateLimitConfig) any { return &c.Period },
	"algorithm":         func(c *rules.RateLimitConfig) any { return &c.Algorithm },
	"burst":             func(c *rules.RateLimitConfig) any { return &c.Burst },
	"min_interval":      func(c *rules.RateLimitConfig) any { return &c.MinInterval },
	"count_blocked":     func(c *rules.RateLimitConfig) any { return &c.CountBlocked },
	"on_store_failure":  func(c *rules.RateLimitConfig) any { return &c.Fallback },
	"unlimited":         func(c *rules.RateLimitConfig) any { return &c.Unlimited },
	"name":              func(c *rules.RateLimitConfig) any { return &c.Name },
	"replaces":          func(c *rules.RateLimitConfig) any { return &c.Replaces },
}

// free are the keys whose values may have any form, also where they have no effect.
var free = map[string]bool{"metadata": true, "match": true, "per": true}

// places are the places of each key.
var places = func() map[string]where {
	all := make(map[string]where)
	add(all, atRoot, fileKeys)
	add(all, atDescriptor, descriptorKeys)
	add(all, atRule, ruleKeys)
	add(all, atDescriptor|atRule, limitsKeys)
	add(all, atLimit, limitKeys)
	all["name"] |= atReplaces
	return all
}()

func add[T any](all map[string]where, at where, keys table[T]) {
	for name := range keys {
		all[name] |= at
	}
}

// known returns the fields of map n at a place.
func (r *reader) known(n *yaml.Node, place where) []field {
	return r.fields(n, mapping{place, acceptKnown, knownTwice})
}

// acceptKnown refuses unknown keys. A known key at another place is passed over with a warning, as in envoyproxy/ratelimit.
func acceptKnown(r *reader, place where, f *field) bool {
	if kind := kindOf(f.key); kind != isString {
		r.problems.Add(f.at, "put the key in quotes if it is meant as text", "the key %s is %v, not text", rules.Quote(f.name), kind)
		return false
	}
	at, known := places[f.name]
	switch {
	case !known:
		r.problems.Add(f.at, suggest(f.name, place), "unknown key %s", rules.Quote(f.name))
		return false
	case at&place != 0:
		return true
	case place != 0: // else there is a warning about the value that it is in
		r.warnings.Add(f.at, "move it or remove it", "%s has no effect in %s", f.name, whereNames[place])
	}
	if !free[f.name] {
		r.ignore(f.node)
	}
	return false
}

// knownTwice lets the last key win, as envoyproxy/ratelimit does, but refuses a second rate_limit: it would silently replace a limit.
func knownTwice(r *reader, first, second *field) bool {
	if second.name == "rate_limit" || second.name == "rate_limits" {
		r.problems.Add(second.at, "keep one of them, or put both limits into one list `rate_limits`",
			"the key %s is here twice, the first is at %v", second.name, first.at)
		return false
	}
	r.warnings.Add(second.at, "remove one of them", "the key %s is here twice; the last one wins", second.name)
	return true
}

// ignore checks a value that has no effect as far as envoyproxy/ratelimit does: it refuses fractions, and lists of anything but maps.
func (r *reader) ignore(n *yaml.Node) {
	switch kind := kindOf(n); kind {
	case isFloat, isBigInt:
		r.wrong(n, "write a whole number, or put it in quotes", "%s is %v", rules.Quote(n.Value), kind)
	case isMap:
		r.inside(n, func() { r.known(n, 0) })
	case isList:
		r.each(n, func(item *yaml.Node, at rules.Pos) {
			if kind := kindOf(item); kind != isMap {
				r.wrong(item, "remove it", "an item of the list is %v, not a map", kind)
				return
			}
			r.ignore(item)
		})
	default:
	}
}

// suggest names the key that was probably meant.
func suggest(name string, place where) string {
	if place == 0 {
		return "remove it"
	}
	var known []string
	for _, k := range slices.Sorted(maps.Keys(places)) {
		if places[k]&place != 0 {
			known = append(known, k)
		}
	}
	return meant(name, known, "known in "+whereNames[place]+": "+strings.Join(known, ", "))
}

// meant is how to fix an unknown key: the one of known that was probably meant, or else other.
func meant(name string, known []string, other string) string {
	near := strings.ReplaceAll(strings.ToLower(name), "-", "_")
	if !slices.Contains(known, near) {
		near = rules.Near(near, slices.Values(known))
	}
	if near == "" {
		return other
	}
	return "did you mean `" + near + "`?"
}
