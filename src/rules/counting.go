package rules

import (
	"cmp"
	"fmt"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// minLeasedCapacity is the smallest limit of which a lease can have more than one unit, because a replica takes at most
// half of what is left.
const minLeasedCapacity = 4

// WhyNotLeased says why l cannot be leased, and how to change that. Both are empty if it can.
func WhyNotLeased(l *algorithm.Limit) (why, fix string) {
	switch {
	case l.Kind == algorithm.Concurrency:
		return "concurrency counts what is held at the same time, so no units can be taken ahead", "remove it"
	case l.Hold > 0:
		return "a hold stays in the store until it is settled, so its units cannot come from a lease", "remove one of them"
	case l.Kind == algorithm.SlidingWindow:
		return "sliding_window counts each hit from its own time, which a lease does not know",
			"use sliding_window_counter, or remove it"
	case l.MinInterval > 0:
		return "min_interval is the time between two hits, so the store must see each of them", "remove one of them"
	case l.CountBlocked && l.Kind != algorithm.FixedWindow:
		return "refused hits count, so the store must see each of them", "write `count_blocked: false`, or remove it"
	case l.Kind == algorithm.GCRA && l.Burst == 0 && l.Max > 0:
		return "gcra needs a burst: a lease is taken from the bucket", "add a burst, such as `burst: 10`, or remove it"
	case l.Capacity() > algorithm.MaxLeaseCapacity:
		return fmt.Sprintf("a lease has at most %d units, and the limit is larger", algorithm.MaxLeaseCapacity), "remove it"
	}
	return "", ""
}

// WhyLeaseIsUseless says why each lease of l has one unit, so that leases save nothing. It is empty if they can have
// more.
func WhyLeaseIsUseless(l *algorithm.Limit) string {
	if l.Capacity() >= minLeasedCapacity {
		return ""
	}
	return fmt.Sprintf("a limit of %d is too small: each lease would have one unit", l.Capacity())
}

// ExactUnlessLeasable makes r, a copy of a rule that has another limit, exact if that limit cannot be leased.
func (r *Rule) ExactUnlessLeasable() {
	if r.Counting == backend.Exact {
		return
	}
	why, _ := WhyNotLeased(&r.Limit)
	if why = cmp.Or(why, WhyLeaseIsUseless(&r.Limit)); why != "" {
		r.Counting, r.OnContention, r.WhyExact = backend.Exact, backend.Wait, why
	}
}
