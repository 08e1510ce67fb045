package rules

import (
	"math"
	"strconv"

	"ratelimit/src/backend/siphash"
)

// Enforcement says for which part of its counters a limit is enforced. For the others the limit counts and never refuses, as in shadow
// mode.
type Enforcement struct {
	// Percent is enforce_percent, at least 0 and below 100.
	Percent float64
	// threshold is Percent of 2^64. The limit is enforced for counters whose hash is smaller.
	threshold uint64
	pos       Pos // pos is the position of enforce_percent.
}

// enforcementKey is the key of the hash that draws the enforced counters. All versions of this program have the same key, so that
// replicas agree and a counter stays on its side after an upgrade.
var enforcementKey = siphash.Key{0x656e666f7263655f, 0x70657263656e7421}

// counterNameFormat writes the names of counters that enforce_percent hashes. They depend on no setting.
var counterNameFormat = KeyFormat{EscapeKeys: true}

// EnforcePercent returns the percentage of counters for which the limit is enforced, 100 for all.
func (r *Rule) EnforcePercent() float64 {
	if r.Enforcement == nil {
		return 100
	}
	return r.Enforcement.Percent
}

// IsEnforced reports whether r is enforced for the counter of a request's entries in d. d and entries are as for KeyFormat.AppendKey. It
// is false for the counters that enforce_percent leaves out; ShadowMode has no influence. It allocates nothing once s has grown.
//
// A hash of the counter's name decides. The name is the key of the counter as with EscapeKeys, without the prefix and, in an ordered
// list, without the limit. So these do not change which counters are enforced: replicas, restarts, the store, the format of keys, and
// changes to the limit's numbers, window or algorithm. A higher percentage enforces the same counters and more.
func (r *Rule) IsEnforced(d *Domain, entries []Entry, s *SearchScratch) bool {
	if r.Enforcement == nil {
		return true
	}
	low, _ := hashCounterName(d, r, entries, s)
	return low < r.Enforcement.threshold
}

// hashCounterName returns two independent hashes of the name of the counter of r for a request's entries in d. See IsEnforced for the name;
// r is as for KeyFormat.AppendKey.
func hashCounterName(d *Domain, r *Rule, entries []Entry, s *SearchScratch) (low, high uint64) {
	name, tag := counterNameFormat.AppendKey(s.counterName[:0], d, r, entries)
	s.counterName = name
	if r != nil && r.ListSettings != nil {
		name = name[:tag]
	}
	return enforcementKey.Sum128(0, name)
}

// setEnforcement sets r.Enforcement from enforce_percent.
func (c *Compiler) setEnforcement(r *Rule, cfg *RateLimitConfig) {
	v := cfg.EnforcePercent
	switch {
	case v == nil:
		return
	case !(v.Value >= 0 && v.Value <= 100): // It is also true for NaN.
		c.problems.Add(v.Pos, "write 0 to 100", "enforce_percent is out of range: %s", Quote(FormatPercent(v.Value)))
		return
	case r.ShadowMode:
		c.warnings.Add(v.Pos, "remove enforce_percent, or shadow_mode", "enforce_percent has no effect beside shadow_mode, which enforces nothing")
	}
	if v.Value < 100 {
		// math.Abs turns -0, which xDS can send, into 0.
		r.Enforcement = &Enforcement{math.Abs(v.Value), uint64(math.Ldexp(v.Value/100, 64)), v.Pos}
	}
	if len(r.Path) > 0 && r.hasOneCounter() {
		c.warnOneCounter(r)
	}
}

// warnOneCounter warns of enforce_percent where all requests share one counter of r.
func (c *Compiler) warnOneCounter(r *Rule) {
	if e := r.Enforcement; e != nil && e.Percent > 0 && !r.ShadowMode {
		c.warnings.Add(e.pos, "remove it, or count by a value that differs, such as the user",
			"enforce_percent chooses among counters, and this limit has only one, which is enforced for all requests or for none")
	}
}

// FormatPercent returns a percentage as rule files have it, such as "10" or "0.5".
func FormatPercent(percent float64) string {
	return strconv.FormatFloat(percent, 'f', -1, 64)
}
