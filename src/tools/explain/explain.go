package explain

import (
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Of explains req by the answer to it, of Look or of Check, and keeps neither. Without
// counters the report does not tell how they stand, nor the decision. After Check it tells
// how each was before its charge.
func Of(req *limiter.Request, a *limiter.Answer, counters bool) *Report {
	x := explainer{req: req, answer: a, counters: counters}
	r := &Report{Domain: string(req.Domain), DomainKnown: a.Domain != nil, Descriptors: make([]Descriptor, len(req.Descriptors))}
	x.walk()
	for i := range req.Descriptors {
		r.Descriptors[i] = x.descriptor(i)
	}
	if counters {
		r.Now = &Decision{
			Code: code(a.Over), RetryAfterUS: wait(a.Over, a.RetryAfter), Shadowed: a.Shadowed, Degraded: degraded(a.Fallback),
		}
	}
	return r
}

// explainer is the memory of one explanation.
type explainer struct {
	req        *limiter.Request
	answer     *limiter.Answer
	counters   bool
	walks      []*rules.Walk            // nil for a descriptor that brings its limit
	replacedBy map[string][]*rules.Rule // the rules of the request that replace a name
}

// walk follows all descriptors through the rules, before any is explained, because a rule
// of one can replace the rule of another.
func (x *explainer) walk() {
	x.walks = make([]*rules.Walk, len(x.req.Descriptors))
	if x.answer.Domain == nil {
		return
	}
	x.replacedBy = make(map[string][]*rules.Rule)
	seen := make(map[*rules.Rule]bool)
	for i := range x.req.Descriptors {
		d := &x.req.Descriptors[i]
		if d.HasLimit {
			continue
		}
		x.walks[i] = x.answer.Domain.Explain(d.Entries)
		for _, r := range limits(x.walks[i]) {
			if seen[r] {
				continue
			}
			seen[r] = true
			for _, name := range r.Replaces {
				x.replacedBy[name] = append(x.replacedBy[name], r)
			}
		}
	}
}

// limits returns the limits that a walk charges, those of canaries first.
func limits(w *rules.Walk) (list []*rules.Rule) {
	for _, canary := range w.Canaries {
		list = append(list, canary.Limits()...)
	}
	if w.Rule == nil {
		return list
	}
	return append(list, w.Rule.Limits()...)
}

func (x *explainer) descriptor(i int) Descriptor {
	request, st, w := &x.req.Descriptors[i], &x.answer.Statuses[i], x.walks[i]
	d := Descriptor{Entries: []rules.EntryText{}, Steps: []rules.Step{}, Charges: []Charge{}, Quota: st.Quota, Outcome: Unmatched}
	for _, e := range request.Entries {
		d.Entries = append(d.Entries, e.Text())
	}
	if x.counters {
		d.Now = &Status{
			Code: code(st.Over), RetryAfterUS: wait(st.Over, st.RetryAfter),
			ResetAfterUS: limiter.Microseconds(st.ResetAfter), Degraded: degraded(st.Fallback),
		}
	}
	switch {
	case x.answer.Domain == nil:
		x.unknownDomain(&d)
	case w == nil: // the request brings a limit
		d.Outcome = Limited
		x.charge(&d, st, nil)
	default:
		d.Steps, d.Rules, d.Unlisted = w.Steps, w.Tried, w.Unlisted
		if w.Rule == nil {
			d.Reason = string(w.End)
			d.Why, d.Hint = why(w, len(request.Entries))
			break
		}
		x.matched(&d, st, w)
	}
	return d
}

// matched explains the limits of the rule that a walk found.
func (x *explainer) matched(d *Descriptor, st *limiter.Status, w *rules.Walk) {
	list := limits(w)
	canaries := len(list) - len(w.Rule.Limits())
	d.Rule, d.At = w.Rule.Key, w.Rule.Pos.String()
	d.AllOrNone = w.Rule.AllOrNone && len(list)-canaries > 1
	for i, r := range list {
		x.charge(d, st, r)
		d.Charges[i].Canary = i < canaries
	}
	switch {
	case st.Binding != nil:
		d.Outcome = Limited
	case st.Rule != nil:
		d.Outcome = Unlimited
	default:
		d.Outcome, d.Reason = Replaced, Replaced
		d.Why = "other rules of the request replace it"
	}
}

// charge adds the limit of r to d; r is nil for the limit that came with the request.
func (x *explainer) charge(d *Descriptor, st *limiter.Status, r *rules.Rule) {
	var c Charge
	if r != nil {
		c = configured(r)
	}
	i := slices.IndexFunc(st.Charges, func(c limiter.Charge) bool { return c.Rule == r })
	switch {
	case i >= 0:
		from := &st.Charges[i]
		if r == nil {
			c.Words, c.Limit = from.Limit.Words(), uint64(from.Limit.Requests)
		}
		c.addAlgorithm(from.Algorithm)
		c.Key, c.Amount, c.Op, c.Earlier = string(from.Key), st.Amount, st.Op.String(), from.Asked-st.Amount
		if x.counters {
			c.Now = state(from)
			if from == st.Binding {
				d.Now.Binding = new(len(d.Charges))
			}
		}
	case !r.Unlimited:
		c.addAlgorithm(&r.Limit)
		for _, by := range x.replacedBy[r.Name] {
			c.ReplacedBy = append(c.ReplacedBy, by.Key)
		}
	}
	d.Charges = append(d.Charges, c)
}

// configured describes the limit of r as it is configured.
func configured(r *rules.Rule) Charge {
	c := Charge{Rule: r.Key, At: r.Pos.String(), Name: r.Name, Words: r.Words(), Unlimited: r.Unlimited, Shadow: r.Shadow}
	if r.Unlimited {
		return c
	}
	c.Limit, c.Fallback = uint64(r.Requests), degraded(r.Fallback)
	for _, l := range r.Path {
		if l.ShareThreshold {
			c.Shared = append(c.Shared, pair(l.Key(), l.Value()))
		}
	}
	return c
}

func (c *Charge) addAlgorithm(limit *algorithm.Limit) {
	c.Algorithm, c.CountBlocked = limit.Kind.String(), limit.CountBlocked
	c.PeriodUS, c.MinIntervalUS = limit.Period.Microseconds(), limit.MinInterval.Microseconds()
	if limit.Kind == algorithm.GCRA {
		c.AtOnce = limit.Capacity()
	}
}

// state returns how the counter of c stands.
func state(c *limiter.Charge) *State {
	v := &c.Verdict
	s := &State{
		Over: v.Over, RetryAfterUS: wait(v.Over, v.RetryAfter), Reasons: c.Reasons(), Cached: v.Cached, Degraded: degraded(v.Fallback),
	}
	if c.Counted() {
		most := c.Algorithm.Capacity()
		s.Before, s.Remaining = new(v.Before), new(most-min(most, v.Before))
		s.ResetAfterUS = limiter.Microseconds(v.ResetAfter)
	}
	return s
}

// wait returns a wait in microseconds; nil if nothing is over, or if it never passes.
func wait(over bool, d time.Duration) *int64 {
	if !over || d == algorithm.Never {
		return nil
	}
	return new(limiter.Microseconds(d))
}

// degraded returns the word for f, empty for the default.
func degraded(f backend.Fallback) string {
	if f == backend.FallbackError {
		return ""
	}
	return f.String()
}

func code(over bool) string {
	if over {
		return "OVER_LIMIT"
	}
	return "OK"
}
