package metrics

import (
	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Record implements limiter.Recorder: it counts one decision.
func (r *Registry) Record(req *limiter.Request, a *limiter.Answer) {
	if a.Domain == nil {
		n := uint64(len(a.Statuses))
		r.unknownDomains.stats.outcomes[Unmatched].Add(n)
		r.unknownDomains.counter(req.Domain).Add(n)
		return
	}
	table, ok := r.table.Find(a.Set)
	if !ok {
		return // two reloads happened during the request: the counters may be gone
	}
	if a.Shadowed {
		r.globalShadow.Add(decisions(req, a, func(st *limiter.Status) bool { return st.Over }))
	}
	failed := false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.Rule == nil && len(st.Charges) == 0:
			table.domains[a.Domain.Index].outcomes[Unmatched].Add(1)
		case st.Rule != nil:
			unlimited(table.rules, st.Rule)
		}
		for j := range st.Charges {
			c := &st.Charges[j]
			r.charge(table.rules, req, i, st, c)
			failed = failed || c.Verdict.Err != nil
		}
	}
	if failed {
		r.storeErrors.Add(decisions(req, a, func(st *limiter.Status) bool { return st.Failed }))
	}
}

// decisions returns how many decisions of a match. A request is one decision, which
// matches; each independent descriptor is a decision of its own.
func decisions(req *limiter.Request, a *limiter.Answer, holds func(*limiter.Status) bool) uint64 {
	if !req.Independent {
		return 1
	}
	n := uint64(0)
	for i := range a.Statuses {
		if holds(&a.Statuses[i]) {
			n++
		}
	}
	return n
}

// unlimited counts a descriptor of r as Unlimited, under r or the unlimited rules among
// r.Charges.
func unlimited(table []*ruleStats, r *rules.Rule) {
	if r.Charges == nil && r.Unlimited {
		table[r.Index].outcomes[Unlimited].Add(1)
	}
	for _, c := range r.Charges {
		if c.Unlimited {
			table[c.Index].outcomes[Unlimited].Add(1)
		}
	}
}

// charge counts c, a charge of descriptor i, whose status is st.
func (r *Registry) charge(table []*ruleStats, req *limiter.Request, i int, st *limiter.Status, c *limiter.Charge) {
	var h *hits
	stats := &r.requestLimits
	if c.Rule == nil {
		h = r.series.requestLimit(req.Domain, req.Descriptors[i].Entries)
	} else {
		stats = table[c.Rule.Index]
		if countsByKey(c.Rule) {
			h = &stats.name.hits
		} else {
			h = r.series.perValue(c.Rule, req.Descriptors[i].Entries)
		}
	}
	result := &stats.outcomes
	if v := &c.Verdict; v.Err != nil || v.Fallback != backend.FallbackError {
		stats.countUnanswered(v.Fallback)
	}
	if st.Op == algorithm.Refund {
		if c.Verdict.Err == nil {
			result[Refunded].Add(1) // a refund is no hit
		}
		return
	}
	h[totalHits].Add(st.Amount)
	if c.Verdict.Err == nil {
		result[r.countHits(h, st, c)].Add(1)
	}
}

// countHits adds the hits of a charge to within, near or over in h, as envoyproxy/ratelimit
// does, and returns the outcome. Hits that are near the limit also count as within or over.
//
// Examples with a limit of 10 and a ratio of 0.8, so hits are near from the 9th on:
//
//	count 7 -> 9:  2 within, 1 of them near
//	count 8 -> 12: 2 near, 2 over
//	count 0 -> 25: 2 near, 15 over
func (r *Registry) countHits(h *hits, st *limiter.Status, c *limiter.Charge) Outcome {
	v, amount := &c.Verdict, st.Amount
	// Another limit of the request refused, so that this one was not charged.
	uncharged := !v.Over && !v.Charged && amount > 0 && v.Fallback == backend.FallbackError
	if uncharged && st.Rule != nil && st.Rule.AllOrNone {
		return Uncharged
	}
	limit := uint64(c.Limit.Requests)
	if c.Rule != nil {
		limit = c.Rule.Limit.Capacity() // of a bucket, its burst
	}
	near := min(uint64(max(0, float32(limit)*r.nearRatio)), limit)
	before, after := v.Before, v.Before+amount
	if !v.Over && !v.Charged {
		// The count did not change. envoyproxy/ratelimit reads it as the count after the hit.
		after = v.After
		before = after - min(after, amount)
	}
	if !v.Over && !v.Cached {
		h[withinLimit].Add(amount)
		outcome := Within
		if after > near {
			h[nearLimit].Add(after - max(near, before))
			outcome = Near
		}
		if uncharged {
			outcome = Uncharged
		}
		return outcome
	}
	over := amount
	switch {
	case v.Cached:
		h[overCached].Add(amount)
	case c.Rule != nil && !c.Rule.Limit.CountBlocked:
		// The limit does not count refused hits, so none of them is within it.
	case before < limit && after > limit:
		over = after - limit
		h[nearLimit].Add(limit - max(near, before))
	default:
		// The limit was used up before, or the count did not refuse the hits: a replica's
		// share of the limit did, earlier hits of the same group, or the minimum interval.
	}
	h[overLimit].Add(over)
	if c.Rule != nil && c.Rule.Shadow {
		h[shadowMode].Add(over)
		return Shadow
	}
	return Over
}
