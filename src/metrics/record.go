package metrics

import (
	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Record counts one decision; see limiter.Recorder.
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

// decisions returns how many decisions on req a condition applies to: one for the whole
// request, or one for each of the independent descriptors that holds reports.
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

// unlimited counts descriptors that r lets pass without a limit.
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

// charge counts one charge of descriptor i.
func (r *Registry) charge(table []*ruleStats, req *limiter.Request, i int, st *limiter.Status, c *limiter.Charge) {
	var h *hits
	stats := &r.onRequest
	if c.Rule == nil {
		h = r.series.requestLimit(req.Domain, req.Descriptors[i].Entries)
	} else {
		stats = table[c.Rule.Index]
		if hasHits(c.Rule) {
			h = &stats.name.hits
		} else {
			h = r.series.perValue(c.Rule, req.Descriptors[i].Entries)
		}
	}
	result := &stats.outcomes
	if v := &c.Verdict; v.Err != nil || v.Fallback != backend.FallbackError {
		stats.failed(v.Fallback)
	}
	if st.Op == algorithm.Refund {
		if c.Verdict.Err == nil {
			result[Refunded].Add(1) // a refund is no hit
		}
		return
	}
	h[totalHits].Add(st.Amount)
	if c.Verdict.Err == nil {
		result[r.account(h, st, c)].Add(1)
	}
}

// account splits the hits of one verdict into within, near and over as
// envoyproxy/ratelimit does, and returns the outcome. With a limit of 10 that is near
// from 8 on, 7 -> 9 is 2 within, 1 of them near; 8 -> 12 is 2 over and 2 near.
//
// All hits are over, without a part near or within, if the limit does not count refused
// hits, or if not the count refused them: a replica's share of the limit, hits of the
// same group before them, or the minimum interval.
//
// Hits that would have passed and were not charged, because another limit of the group
// refused, are Uncharged, and neither within nor near. With
// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT they count as in envoyproxy/ratelimit.
func (r *Registry) account(h *hits, st *limiter.Status, c *limiter.Charge) Outcome {
	v, amount := &c.Verdict, st.Amount
	uncharged := !v.Over && !v.Charged && amount > 0 && v.Fallback == backend.FallbackError
	if uncharged && st.Rule != nil && st.Rule.AllOrNone {
		return Uncharged
	}
	limit := uint64(c.Limit.Requests)
	if c.Rule != nil {
		limit = c.Rule.Limit.Capacity() // the counter of a bucket is what it lacks
	}
	near := min(uint64(max(0, float32(limit)*r.nearRatio)), limit)
	before, after := v.Before, v.Before+amount
	if !v.Over && !v.Charged {
		// Another limit refused, and the count is as before: envoyproxy/ratelimit takes
		// it for the count after the hit.
		after = v.After
		before = after - min(after, amount)
	}
	over := uint64(0)
	switch {
	case v.Cached:
		over = amount
		h[overCached].Add(over)
	case v.Over && (before >= limit || after <= limit || c.Rule != nil && !c.Rule.Limit.CountBlocked):
		over = amount
	case v.Over:
		over = after - limit
		h[nearLimit].Add(limit - max(near, before))
	default:
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
	h[overLimit].Add(over)
	if c.Rule != nil && c.Rule.Shadow {
		h[shadowMode].Add(over)
		return Shadow
	}
	return Over
}
