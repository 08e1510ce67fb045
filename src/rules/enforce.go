package rules

import (
	"math"
	"strconv"

	"ratelimit/src/backend/siphash"
)

// Enforcement says for which part of its counters a limit is enforced. For the others the limit counts and never
// refuses, as in shadow mode.
type Enforcement struct {
	// Percent is enforce_percent, at least 0 and below 100.
	Percent float64
	// threshold is Percent of 2^64. The limit is enforced for counters whose hash is smaller.
	threshold uint64
}

// NewEnforcement returns the Enforcement of a percentage from 0 to 100; nil for 100.
func NewEnforcement(percent float64) *Enforcement {
	if percent == 100 {
		return nil
	}
	// math.Abs turns -0, which xDS can send, into 0.
	return &Enforcement{math.Abs(percent), uint64(math.Ldexp(percent/100, 64))}
}

// enforcementKey is the key of the hash that draws the enforced counters. All versions of this program have the same
// key, so that replicas agree and a counter stays on its side after an upgrade.
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

// IsEnforced reports whether r is enforced for the counter of a request's entries in d. d and entries are as for
// KeyFormat.AppendKey. It is false for the counters that enforce_percent leaves out; ShadowMode has no influence. It
// allocates nothing once s has grown.
//
// A hash of the counter's name decides. The name is the key of the counter as with EscapeKeys, without the prefix and,
// in an ordered list, without the limit. So these do not change which counters are enforced: replicas, restarts, the
// store, the format of keys, and changes to the limit's numbers, window or algorithm. A higher percentage enforces the
// same counters and more.
func (r *Rule) IsEnforced(d *Domain, entries []Entry, s *SearchScratch) bool {
	if r.Enforcement == nil {
		return true
	}
	low, _ := hashCounterName(d, r, entries, s)
	return low < r.Enforcement.threshold
}

// hashCounterName returns two independent hashes of the name of the counter of r for a request's entries in d. See
// IsEnforced for the name; r is as for KeyFormat.AppendKey.
func hashCounterName(d *Domain, r *Rule, entries []Entry, s *SearchScratch) (low, high uint64) {
	name, tag := counterNameFormat.AppendKey(s.counterName[:0], d, r, entries)
	s.counterName = name
	if r != nil && r.ListSettings != nil {
		name = name[:tag]
	}
	return enforcementKey.Sum128(0, name)
}

// FormatPercent returns a percentage as rule files have it, such as "10" or "0.5".
func FormatPercent(percent float64) string {
	return strconv.FormatFloat(percent, 'f', -1, 64)
}
