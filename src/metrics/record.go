package metrics

import (
	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// RequestResult says what became of a request.
type RequestResult uint8

// The results of a request. on_store_failure decided those without the store, at least in part.
const (
	RequestAdmitted RequestResult = iota
	RequestDenied
	RequestAdmittedWithoutStore
	RequestDeniedWithoutStore
	RequestFailed // The request was answered with an error, because the store did not answer.
	RequestResultCount
)

// ResultOf returns what became of the request with the answer a. hasOne is false if its caller left before there was a
// result.
func ResultOf(a *limiter.Answer) (result RequestResult, hasOne bool) {
	left := false
	for i := range a.Statuses {
		if a.Statuses[i].StoreFailed {
			return RequestFailed, true
		}
		left = left || a.Statuses[i].CallerLeft
	}
	result = RequestAdmitted
	if a.Over {
		result = RequestDenied
	}
	if a.Fallback != backend.FallbackError {
		result += RequestAdmittedWithoutStore
	}
	return result, !left
}

// Record implements limiter.Recorder: it counts one request and its decisions.
func (r *Registry) Record(req *limiter.Request, a *limiter.Answer) {
	if req.CallerLimit != nil {
		r.unknownDomains.totalStats.addRequest(a)
		for i := range a.Statuses {
			r.recordCallerLimit(&a.Statuses[i])
		}
		return
	}
	if a.Domain == nil {
		n := uint64(len(a.Statuses))
		r.unknownDomains.totalStats.add(outcomeUnmatched, n)
		r.unknownDomains.totalStats.addRequest(a)
		r.unknownDomains.counterOf(req.Domain).Add(n)
		return
	}
	table, ok := r.tables.TableOf(a.RuleSet)
	if !ok {
		return // Two reloads happened during the request, so the counters may be gone.
	}
	r.statsOf(&table, a.RuleSet, Owner{Domain: a.Domain}).addRequest(a)
	if a.Shadowed {
		r.globalShadow.Add(1)
	}
	failed := false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.Match == nil && len(st.Charges) == 0:
			r.statsOf(&table, a.RuleSet, Owner{Domain: a.Domain}).add(outcomeUnmatched, 1)
		case st.Match != nil:
			r.countUnlimited(&table, a.RuleSet, st.Match)
		}
		for j := range st.Charges {
			c := &st.Charges[j]
			r.countCharge(&table, req, a, i, c)
			failed = failed || c.Verdict.Err != nil && !c.Verdict.CallerLeft()
		}
	}
	if failed {
		r.storeErrors.Add(1)
	}
}

// recordCallerLimit counts the decision on a descriptor with a CallerLimit, as one of the limits that came with
// requests.
func (r *Registry) recordCallerLimit(st *limiter.Status) {
	outcome := outcomeWithin
	switch {
	case st.CallerLeft && !st.StoreFailed:
		return
	case st.StoreFailed:
		r.requestLimitStats.add(unanswered, 1)
		r.storeErrors.Add(1)
		return
	case st.Op == algorithm.Refund:
		outcome = outcomeRefunded
	case st.Over:
		outcome = outcomeOver
	}
	r.requestLimitStats.add(outcome, 1)
}

// RecordQuota counts requests that proxies decided by a quota: for each of the limits, which are rules of set, or for
// the domain if there are none. set may be nil.
func (r *Registry) RecordQuota(set *rules.Set, domain []byte, limits []*rules.Rule, admitted, denied uint64) {
	if set == nil {
		return
	}
	table, ok := r.tables.TableOf(set)
	if !ok {
		return // Two reloads happened since the quota found its rules.
	}
	count := func(s *ruleStats) {
		s.add(quotaAdmitted, admitted)
		s.add(quotaDenied, denied)
	}
	for _, rule := range limits {
		count(r.statsOf(&table, set, Owner{Rule: rule}))
	}
	if d := set.Domain(domain); d != nil && len(limits) == 0 {
		count(r.statsOf(&table, set, Owner{Domain: d}))
	}
}

// countUnlimited counts a descriptor as outcomeUnlimited, under each of the limits that it matches that is unlimited.
func (r *Registry) countUnlimited(table *RuleTable[ruleStats], set *rules.Set, m *rules.Match) {
	for _, c := range m.Limits {
		if c.Unlimited {
			r.statsOf(table, set, Owner{Rule: c}).add(outcomeUnlimited, 1)
		}
	}
}

// countCharge counts c, a charge of descriptor i.
func (r *Registry) countCharge(table *RuleTable[ruleStats], req *limiter.Request, a *limiter.Answer, i int,
	c *limiter.Charge,
) {
	st := &a.Statuses[i]
	var h *hitCounts
	stats := &r.requestLimitStats
	if c.Rule == nil {
		h = r.clientNames.requestLimitCounts(req.Domain, req.Descriptors[i].Entries)
	} else {
		stats = r.statsOf(table, a.RuleSet, Owner{Rule: c.Rule})
		if countsByKey(c.Rule) {
			h = &stats.namedHits.hitCounts
		} else {
			h = r.clientNames.perValueCounts(c.Rule, req.Descriptors[i].Entries)
		}
	}
	// A refund or a settlement that on_store_failure decided is no decision, so it is no part of the decided ones.
	isFallback := c.Verdict.Fallback != backend.FallbackError && c.Op == algorithm.Charge
	if v := c.Verdict; isFallback || v.Err != nil && !v.CallerLeft() {
		stats.add(unanswered+ruleCounter(v.Fallback), 1)
	}
	hasHolds, reserves := c.Rule != nil && c.Rule.Limit.Hold > 0, c.Rule != nil && c.Rule.Reserve != nil
	if hasHolds {
		stats.countHold(&c.Verdict.Outcome, c.ChargedUnits())
	}
	// A refund or a settlement is no hit. With reserve_on_check a hit settles the oldest reservation.
	if c.Op != algorithm.Charge && !(reserves && st.Op == algorithm.Charge) {
		if c.Verdict.Err == nil {
			outcome := outcomeRefunded
			if c.Op == algorithm.Force {
				outcome = outcomeSettled
			}
			stats.add(outcome, 1)
		}
		return
	}
	h[totalHits].Add(st.Amount)
	if c.Verdict.Err == nil {
		if c.NotEnforced {
			stats.add(unenforced, 1)
		}
		if c.Verdict.LeaseMissed {
			stats.add(leaseMisses, 1)
		}
		stats.add(r.countHits(h, a, st, c), 1)
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
func (r *Registry) countHits(h *hitCounts, a *limiter.Answer, st *limiter.Status, c *limiter.Charge) ruleCounter {
	v, amount := c.Verdict, st.Amount
	// Another limit of the request refused, so that this one was not charged.
	uncharged := !v.Over && !v.Charged && amount > 0 && v.Fallback == backend.FallbackError
	if c.Rule != nil && c.Rule.Limit.Hold > 0 && !a.Over && !a.Shadowed {
		uncharged = false // The hold is open already: the request was repeated.
	}
	if uncharged && st.Match != nil && st.Match.ChargesAllOrNone {
		return outcomeUncharged
	}
	limit := c.Limit.Requests
	if c.Rule != nil {
		limit = c.Rule.Limit.Capacity() // The limit of gcra is its burst.
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
		outcome := outcomeWithin
		if after > near {
			h[nearLimit].Add(after - max(near, before))
			outcome = outcomeNear
		}
		if uncharged {
			outcome = outcomeUncharged
		}
		return outcome
	}
	over := amount
	switch {
	case v.Cached:
		h[overLimitCached].Add(amount)
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
	if c.InShadowMode() {
		h[shadowMode].Add(over)
		return outcomeShadow
	}
	return outcomeOver
}
