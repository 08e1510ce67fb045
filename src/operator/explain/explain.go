package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// DryRunner decides requests without a charge, as a limiter.Limiter does.
type DryRunner interface {
	DryRun(context.Context, *limiter.Request, *limiter.Answer) error
}

// Request explains req by the rules and counters of l, without a charge. counters says that the store of l has the
// counters of a service. If the store does not answer, the report has the rules and no counts.
func Request(ctx context.Context, l DryRunner, req *limiter.Request, counters bool) (*Report, error) {
	var answer limiter.Answer
	failure := l.DryRun(ctx, req, &answer)
	if failure != nil && !errors.Is(failure, limiter.ErrStoreFailed) {
		return nil, failure
	}
	r, err := NewReport(ctx, req, &answer, counters)
	if err == nil && failure != nil && r.Decision != nil {
		r.Decision.Code, r.Decision.Degraded, r.Decision.Failure = CodeError, errorFallback, failure.Error()
	}
	return r, err
}

// NewReport explains req by the limiter's answer to it, and keeps a reference to neither. Without counters the report
// has no decision and no states of counters. If the answer is from Check, the states are those before the charge.
// NewReport returns an error if ctx ends, or if all comparisons together take more than rules.MaxRegexWork.
func NewReport(ctx context.Context, req *limiter.Request, a *limiter.Answer, counters bool) (*Report, error) {
	x := explainer{req: req, answer: a, counters: counters}
	r := &Report{
		Domain: string(req.Domain), DomainKnown: a.Domain != nil,
		Descriptors: make([]Descriptor, len(req.Descriptors)),
	}
	if err := x.searchAll(ctx); err != nil {
		return nil, err
	}
	for i := range req.Descriptors {
		r.Descriptors[i] = x.descriptor(i)
	}
	if counters {
		r.Decision = &Decision{
			Code: limiter.CodeName(a.Over), RetryAfterUS: retryMicroseconds(a.Over, a.RetryAfter), Shadowed: a.Shadowed,
			Degraded: fallbackName(a.Fallback),
		}
	}
	return r, nil
}

// AddResets adds the commands that reset the counters of req, which r explains. address is that of a debug port; empty
// for the default of commands.
func (r *Report) AddResets(req *limiter.Request, address string) {
	hasCount := func(c Charge) bool { return c.State != nil && c.State.Before != nil && *c.State.Before > 0 }
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		if !slices.ContainsFunc(d.Charges, hasCount) || output.Printable(r.Domain) != r.Domain {
			continue
		}
		if slices.ContainsFunc(d.Charges, func(c Charge) bool { return c.State != nil && c.State.Degraded != "" }) {
			d.NoReset = "the store does not answer"
			continue
		}
		d.Reset = "ratelimit counter reset " + output.ShellWord(r.Domain) + " " +
			output.ShellWord(callertext.WholeDescriptor(req.Descriptors[i].Entries))
		if address != "" {
			d.Reset += " --address " + output.ShellWord(address)
		}
	}
}

// explainer has what the explanations of all descriptors of a request share.
type explainer struct {
	req      *limiter.Request
	answer   *limiter.Answer
	counters bool
	searches []*match.Record // one for each descriptor; nil for a descriptor that brings its limit.
	// replacedBy has the rules that the request reaches, by the names of the rules that they replace.
	replacedBy map[string][]*rules.Rule
}

// searchAll sets searches and replacedBy. All searches come before the first explanation, because a rule of one
// descriptor can replace the rule of another.
func (x *explainer) searchAll(ctx context.Context) error {
	x.searches = make([]*match.Record, len(x.req.Descriptors))
	if x.answer.Domain == nil {
		return nil
	}
	var scratch rules.SearchScratch
	scratch.BeginExplanation(ctx)
	x.replacedBy = make(map[string][]*rules.Rule)
	seen := make(map[*rules.Rule]bool)
	for i := range x.req.Descriptors {
		d := &x.req.Descriptors[i]
		if d.HasLimit {
			continue
		}
		x.searches[i] = match.Explain(x.answer.Domain, d.Entries, &scratch)
		switch err := scratch.Err(); {
		case errors.Is(err, rules.ErrTooManyComparisons):
			return fmt.Errorf("%w: to explain it, %w; ask for fewer descriptors or shorter values at a time",
				limiter.ErrRequestTooLarge, err)
		case err != nil:
			return err
		}
		for _, r := range chargedRules(x.searches[i]) {
			if seen[r] {
				continue
			}
			seen[r] = true
			for _, name := range r.Replaces {
				x.replacedBy[name] = append(x.replacedBy[name], r)
			}
		}
	}
	return nil
}

// chargedRules returns the rules whose limits a descriptor is charged to: those of canaries first.
func chargedRules(search *match.Record) (list []*rules.Rule) {
	for _, canary := range search.ChargedCanaries {
		list = append(list, canary.Limits...)
	}
	if search.Found != nil {
		list = append(list, search.Found.Limits...)
	}
	return list
}

// descriptor explains the descriptor with index i.
func (x *explainer) descriptor(i int) Descriptor {
	request, st, search := &x.req.Descriptors[i], &x.answer.Statuses[i], x.searches[i]
	d := Descriptor{
		Entries: []rules.EntryText{}, Subject: callertext.WholeDescriptor(request.Entries),
		Steps: []match.Step{}, Charges: []Charge{}, Quota: st.InQuotaMode,
		Outcome: OutcomeUnmatched,
	}
	for _, e := range request.Entries {
		d.Entries = append(d.Entries, e.Text())
	}
	if x.counters {
		d.Status = &Status{
			Code: limiter.CodeName(st.Over), RetryAfterUS: retryMicroseconds(st.Over, st.RetryAfter),
			ResetAfterUS: limiter.MicrosecondsRoundedUp(st.ResetAfter), Degraded: fallbackName(st.Fallback),
		}
		if st.IsUndecided() {
			d.Status.Code, d.Status.Degraded = CodeError, errorFallback
		}
	}
	switch {
	case x.answer.Domain == nil:
		d.Reason = "no_such_domain"
		d.Why, d.Hint = x.whyUnknownDomain()
	case search == nil: // The request brings the limit of this descriptor.
		d.Outcome = OutcomeLimited
		x.addCharge(&d, i, nil)
	default:
		d.Steps, d.Rules, d.UnlistedRules = search.Steps, search.TriedRules, search.UnlistedCount
		if search.Found == nil {
			d.Reason = string(search.EndReason)
			d.Why, d.Hint = whyNoRule(search, len(request.Entries))
			break
		}
		x.addRule(&d, i, search)
	}
	return d
}

// addRule explains the rule that the search for descriptor i found, and its limits.
func (x *explainer) addRule(d *Descriptor, i int, search *match.Record) {
	st := &x.answer.Statuses[i]
	charged, ofRule := chargedRules(search), len(search.Found.Limits)
	d.Rule, d.At = search.Found.FullName, search.Found.Pos.String()
	d.AllOrNone = search.Found.ChargesAllOrNone && ofRule > 1
	for j, r := range charged {
		x.addCharge(d, i, r)
		d.Charges[j].Canary = j < len(charged)-ofRule
		if r.HoldIDKey != "" && d.Charges[j].Key != "" {
			for _, e := range d.Entries { // The last entry with the key counts.
				if e.Key == r.HoldIDKey {
					d.Charges[j].HoldName = e.Value
				}
			}
		}
	}
	switch {
	case st.BindingCharge != nil:
		d.Outcome = OutcomeLimited
	case st.Match != nil:
		d.Outcome = OutcomeUnlimited
	default:
		d.Outcome, d.Reason = OutcomeReplaced, OutcomeReplaced
		d.Why = "other rules of the request replace it"
	}
}

// addCharge adds the limit of r to d, which explains descriptor i. r is nil for the limit that came with the request.
func (x *explainer) addCharge(d *Descriptor, i int, r *rules.Rule) {
	var c Charge
	st := &x.answer.Statuses[i]
	if r != nil {
		c = configuredLimit(r)
	}
	at := slices.IndexFunc(st.Charges, func(c limiter.Charge) bool { return c.Rule == r })
	switch {
	case at >= 0:
		from := &st.Charges[at]
		if r == nil {
			c.LimitInWords = fmt.Sprintf("%d per %s", from.Limit.Requests, from.Limit.Window())
			c.Limit = from.Limit.Requests
		}
		c.setAlgorithm(from.Algorithm)
		c.NotEnforced = from.NotEnforced
		c.Key, c.Amount, c.Operation = string(from.CounterKey), st.Amount, from.Op.String()
		c.EarlierAmount = from.RequestedAmount - st.Amount
		c.setReservation(st, from)
		if x.counters {
			c.State = counterState(from)
			if from == st.BindingCharge {
				d.Status.Binding = new(len(d.Charges))
			}
		}
	case !r.Unlimited:
		c.setAlgorithm(&r.Limit)
		for _, by := range x.replacedBy[r.Name] {
			c.ReplacedBy = append(c.ReplacedBy, by.FullName)
		}
	}
	if r != nil && r.Overridden {
		c.Override = x.answer.Domain.OverrideNote(r, x.req.Descriptors[i].Entries)
	}
	d.Charges = append(d.Charges, c)
}

// configuredLimit describes the limit of r as its file has it.
func configuredLimit(r *rules.Rule) Charge {
	c := Charge{
		Rule: r.FullName, At: r.Pos.String(), Name: r.Name, LimitInWords: r.LimitInWords(), Unlimited: r.Unlimited,
		Shadow: r.ShadowMode,
	}
	if r.Unlimited {
		return c
	}
	c.Limit, c.Fallback, c.WhyExact = r.Requests, fallbackName(r.Fallback), r.WhyExact
	if r.Counting == backend.Leased {
		c.Counting, c.OnContention = r.Counting.String(), r.OnContention.String()
	}
	if r.Notify != nil {
		c.Notify = r.Notify.String()
	}
	if r.Enforcement != nil {
		c.EnforcePercent = new(r.EnforcePercent())
	}
	for _, l := range r.Path {
		if l.ShareThreshold {
			c.SharedValues = append(c.SharedValues, keyAndValue(l.Key(), l.Value()))
		}
	}
	return c
}

// setReservation says what becomes of reservations by checks, for a request that names no hold. A learned estimate
// counts as all that is asked for.
func (c *Charge) setReservation(st *limiter.Status, from *limiter.Charge) {
	if from.Rule == nil || from.Rule.Reserve == nil || st.Op != algorithm.Charge {
		return
	}
	switch {
	case from.Op == algorithm.Force:
		c.SettlesOldest = true
	case from.IsReserving:
		c.ReservedAmount = min(cmp.Or(from.Rule.Reserve.Estimate, from.RequestedAmount), from.RequestedAmount)
		c.EarlierAmount = from.RequestedAmount - c.ReservedAmount
	}
}

func (c *Charge) setAlgorithm(limit *algorithm.Limit) {
	c.Algorithm, c.CountBlocked = limit.Kind.String(), limit.CountBlocked
	c.PeriodUS, c.MinIntervalUS = limit.Period.Microseconds(), limit.MinInterval.Microseconds()
	if limit.Calendar != nil {
		c.PeriodUS, c.Calendar = 0, limit.Calendar.String()
	}
	if limit.Kind == algorithm.GCRA {
		c.AtOnce = limit.Capacity()
	}
}

// counterState describes the counter of c.
func counterState(c *limiter.Charge) *State {
	v := c.Verdict
	if v.Err != nil {
		return &State{Degraded: errorFallback, Reasons: []string{}}
	}
	s := &State{
		Over: v.Over, RetryAfterUS: retryMicroseconds(v.Over, v.RetryAfter), Reasons: operator.OverReasons(c),
		Cached: v.Cached, Degraded: fallbackName(v.Fallback),
	}
	if c.HasCounterVerdict() {
		capacity := operator.CountedCapacity(c)
		s.Share, s.Held = v.Share, v.HeldHere
		s.Before, s.Remaining = new(v.Before), new(capacity-min(capacity, v.Before))
		s.ResetAfterUS = limiter.MicrosecondsRoundedUp(v.ResetAfter)
	}
	return s
}

// retryMicroseconds returns the wait until a retry passes. It is nil if the request is not over, or if no retry ever
// passes.
func retryMicroseconds(over bool, d time.Duration) *int64 {
	if !over || d == algorithm.Never {
		return nil
	}
	return new(limiter.MicrosecondsRoundedUp(d))
}

// fallbackName returns the name of a fallback; empty for the default, error.
func fallbackName(f backend.Fallback) string {
	if f == backend.FallbackError {
		return ""
	}
	return f.String()
}
