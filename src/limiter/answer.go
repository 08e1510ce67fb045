package limiter

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Answer is the decision on one request. Its zero value is ready for Check, which reuses the
// memory of an earlier decision. Programs with many requests should pool Answers; see Reset.
type Answer struct {
	Over     bool // true if the request is refused.
	Shadowed bool // true if the request is over its limits, but allowed by Config.ShadowMode.
	// RetryAfter is how long the same request has to wait before it passes: 0 unless Over, algorithm.Never if it can never
	// pass. It is the longest wait of the descriptors that refuse. Descriptors in quota mode count with their shortest
	// wait.
	RetryAfter time.Duration
	Fallback   backend.Fallback // the first Fallback of a Status that is not FallbackError.
	Statuses   []Status         // one for each descriptor of the request, in order.
	Charges    []Charge         // those of all Statuses, in order.
	RuleSet    *rules.Set       // the rule set that decided the request.
	Domain     *rules.Domain    // the request's domain in RuleSet; nil if there is none of that name.
	// DecidedAt is when the store decided the request, in nanoseconds since the Unix epoch; see backend.Batch. It is 0 if
	// nothing was charged.
	DecidedAt int64
	// Beside is memory that a room beside the limiter keeps from one decision to the next. The limiter does not use it.
	Beside any

	batch    *Batch // has the hits of the decision; nil before Find.
	firstHit int    // batch.Hits[firstHit+i] and the verdict at the same index belong to Charges[i].
	ownBatch Batch
}

// Status is the decision on one descriptor.
type Status struct {
	Over bool // true if the descriptor exceeds a limit that is enforced.
	// Match is what the descriptor matches; in an ordered list, the rule that answers. It is nil if no rule matches, if
	// other rules of the request replace all its limits, or if the limit came with the request.
	Match       *rules.Match
	InQuotaMode bool // true if the request is refused only if all its descriptors in quota mode are over.
	// Amount is how many units Op charges, refunds or settles. A release of a hold gives back the hold's units instead.
	Amount  uint64
	Op      algorithm.Op // Force settles a hold, and Refund gives units or a hold back.
	Charges []Charge     // the limits that apply, in the order of the rules; nil if none applies.
	// BindingCharge is the charge that callers are told about: of the charges that refuse, the
	// one with the longest wait; else the one with the fewest remaining units. Of equal
	// charges it is the first. It is never that of a canary, and nil if there is no other charge.
	BindingCharge *Charge
	// RetryAfter is how long the same request has to wait for this descriptor to pass:
	// 0 unless Over, algorithm.Never if it can never pass.
	RetryAfter time.Duration
	// ResetAfter is what callers are told as the time until reset. If Over, it is the longest wait of the limits that
	// refuse; a limit that can never pass counts with its reset. Else it is the longest reset of all limits. Fixed windows
	// round it up to whole seconds, as Envoy does, other algorithms to whole microseconds.
	ResetAfter  time.Duration
	StoreFailed bool // true if the descriptor is undecided, because the store did not answer for a limit.
	CallerLeft  bool // true if the descriptor is undecided, because the caller left before the store answered.
	// Fallback is how the first charge without an answer of the store was decided. It is
	// FallbackError, the zero value, if the store answered or if the descriptor is undecided.
	Fallback backend.Fallback

	canaryRules []*rules.Match // those in shadow mode before Match in an ordered list.
}

// IsUndecided reports whether there is no decision on the descriptor, because the store or the caller failed.
func (st *Status) IsUndecided() bool { return st.StoreFailed || st.CallerLeft }

// Charge is one limit that applies to a descriptor, and its verdict.
type Charge struct {
	Rule      *rules.Rule // nil if the limit came with the request.
	Limit     rules.Rate
	Algorithm *algorithm.Limit // the arithmetic of the limit.
	// Op is Status.Op. That of a canary differs if only one of the rules has holds; with reserve_on_check a hit that
	// charges is a Force.
	Op         algorithm.Op
	CounterKey []byte // names the counter of the limit. The Answer owns the bytes.
	// RequestedAmount is Status.Amount, or the estimate if the hit reserves that. After DryRun it also includes what
	// earlier descriptors of the request would charge to the same counter.
	RequestedAmount uint64
	Verdict         *backend.Verdict // the store's. The Answer owns it; nil before the store has answered.
	Over            bool             // true if the limit refuses: it is exceeded, and enforced.
	NotEnforced     bool             // true if enforce_percent leaves out the counter: the limit counts and never refuses.
	IsReserving     bool             // true if the hit is a check that reserves RequestedAmount
	// IsCanary says that the rule is in shadow mode, and that a later rule of the ordered
	// list answers. Metrics count the verdict, which has no other effect.
	IsCanary bool
}

// CodeName returns the name that Envoy's API has for the answer to a request or to a descriptor: OVER_LIMIT or OK.
func CodeName(over bool) string {
	if over {
		return "OVER_LIMIT"
	}
	return "OK"
}

// LongestRefusal returns the index in Statuses of the descriptor that is over its limits and has to wait longest; -1 if
// none is. Of equal waits it is the first.
func (a *Answer) LongestRefusal() int {
	longest := -1
	for i := range a.Statuses {
		if st := &a.Statuses[i]; st.Over && (longest < 0 || st.RetryAfter > a.Statuses[longest].RetryAfter) {
			longest = i
		}
	}
	return longest
}

// IsUnlimited reports whether the descriptor matches an unlimited rule and no limit.
func (st *Status) IsUnlimited() bool {
	return st.Match != nil && st.Match.IsUnlimited() && st.BindingCharge == nil
}

// InShadowMode reports whether the limit counts and never refuses: its rule is in shadow mode, or enforce_percent
// leaves out the counter.
func (c *Charge) InShadowMode() bool { return c.NotEnforced || c.Rule != nil && c.Rule.ShadowMode }

// ChargedUnits returns the units that the limit was charged. A reservation charges nothing when it is made: its
// settlement charges the real amount, or what exceeds the reservation if that has expired. Reservations of the counter
// that had expired before the hit are charged with it, unless the limit releases them. A refused hit charges nothing by
// itself, even if the limit counts it.
func (c *Charge) ChargedUnits() uint64 {
	if c.Verdict.Err != nil {
		return 0
	}
	return c.Verdict.ExpiredUnits + c.unitsOfHit()
}

// unitsOfHit is ChargedUnits without those of expired reservations.
func (c *Charge) unitsOfHit() uint64 {
	v := c.Verdict
	reserves := c.Rule != nil && c.Rule.Limit.Hold > 0 && c.Rule.Limit.Kind != algorithm.Concurrency
	switch {
	case c.Op == algorithm.Force && v.HoldClosed && reserves:
		return c.RequestedAmount
	case c.Op == algorithm.Force && reserves:
		return v.HoldExcess
	case c.Op != algorithm.Charge, v.Over:
		return 0
	case reserves && c.HasCounterVerdict() && (v.HoldOpened || !v.Charged):
		return 0 // It opened a hold, or repeats the request that did.
	}
	return c.RequestedAmount
}

// RetryWait returns how long the same hit has to wait; not ok if it passed or can never pass.
func (c *Charge) RetryWait() (wait time.Duration, ok bool) {
	return c.Verdict.RetryAfter, c.Verdict.Over && c.Verdict.RetryAfter != algorithm.Never
}

// RuleName returns the rule's name without the domain; empty if the limit came with the request.
func (c *Charge) RuleName() string {
	if c.Rule == nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimPrefix(c.Rule.FullName, c.Rule.Domain), ".")
}

// HasCounterVerdict reports whether the verdict comes from a counter. It is false if the store did not
// answer and the rule then allows or denies.
func (c *Charge) HasCounterVerdict() bool {
	return c.Verdict.Fallback != backend.FallbackAllow && c.Verdict.Fallback != backend.FallbackDeny
}

// SecondsRoundedUp returns d in seconds, rounded up: a caller that returns earlier is refused.
func SecondsRoundedUp(d time.Duration) int64 {
	return int64(roundUpDuration(d, time.Second) / time.Second)
}

// MicrosecondsRoundedUp returns d in microseconds, rounded up.
func MicrosecondsRoundedUp(d time.Duration) int64 {
	return roundUpDuration(d, time.Microsecond).Microseconds()
}

func roundUpDuration(d, unit time.Duration) time.Duration { return (d + unit - 1) / unit * unit }

// OwnBatch returns an empty batch in the memory of a, for the decision on req alone.
func (a *Answer) OwnBatch(req *Request) *Batch {
	a.ownBatch.clearForReuse(req.Now)
	return &a.ownBatch
}

// clearForReuse makes a ready for the next decision. It keeps the memory.
func (a *Answer) clearForReuse() {
	a.Statuses, a.Charges = a.Statuses[:0], a.Charges[:0]
	a.Over, a.RetryAfter, a.Fallback = false, 0, backend.FallbackError
	a.RuleSet, a.Domain, a.Shadowed, a.DecidedAt = nil, nil, false, 0
	a.batch, a.firstHit = nil, 0
}

// Reset removes all references to the last request and its rules, and keeps the memory for the next Check. It returns
// false if that is memory for more than limit charges or descriptors; a is not usable then; programs should drop it.
func (a *Answer) Reset(limit int) (small bool) {
	if max(cap(a.Statuses), cap(a.Charges)) > limit || a.batch == &a.ownBatch && !a.ownBatch.reset(limit) {
		return false
	}
	clear(a.Statuses)
	clear(a.Charges)
	a.clearForReuse()
	return true
}

// Batch returns the batch with the hits of a; nil before Find.
func (a *Answer) Batch() *Batch { return a.batch }

// Hits returns the hits of a.Charges, in order.
func (a *Answer) Hits() []backend.Hit {
	if len(a.Charges) == 0 {
		return nil
	}
	return a.batch.Hits[a.firstHit:][:len(a.Charges)]
}

// DropHits removes the charges of a, and their hits from its batch. They must be the last ones.
func (a *Answer) DropHits() {
	a.Charges = a.Charges[:0]
	a.batch.Hits = a.batch.Hits[:a.firstHit]
}

// Verdicts returns the store's verdicts on a.Charges, in order.
func (a *Answer) Verdicts() []backend.Verdict {
	if len(a.Charges) == 0 {
		return nil
	}
	return a.batch.Verdicts[a.firstHit:][:len(a.Charges)]
}

// decide turns the verdicts of the store into the answer. It returns the first failure of the store that leaves a
// descriptor undecided.
func (a *Answer) decide(cfg *Config) error {
	if len(a.Charges) > 0 {
		a.DecidedAt = a.batch.DecidedAt
	}
	err := a.readVerdicts()
	for i := range a.Statuses {
		st := &a.Statuses[i]
		st.summarizeCharges()
		st.InQuotaMode = !st.IsUnlimited() && (cfg.QuotaMode || st.Match != nil && st.Match.QuotaMode)
	}
	a.combineStatuses(cfg.ShadowMode)
	return err
}

// readVerdicts refers the charges to the verdicts of the store. It returns the first
// failure of the store that leaves a descriptor undecided.
func (a *Answer) readVerdicts() (err error) {
	verdicts := a.Verdicts()
	for i := range a.Charges {
		c := &a.Charges[i]
		c.Verdict = &verdicts[i]
		c.Over = c.Verdict.Over && !c.InShadowMode()
		if err == nil && c.Verdict.Err != nil && !c.IsCanary {
			err = undecidedError(c.Verdict)
		}
	}
	return err
}

// undecidedError returns the error of a request with a verdict that has an Err.
func undecidedError(v *backend.Verdict) error {
	if v.CallerLeft() {
		return fmt.Errorf("%w: %w", ErrCallerLeft, v.Err)
	}
	return fmt.Errorf("%w: %w", ErrStoreFailed, v.Err)
}

// combineStatuses sets the overall answer, which follows from the statuses. Statuses in quota mode
// refuse only together: if all of them are over.
func (a *Answer) combineStatuses(shadow bool) {
	over, wait := false, time.Duration(0)
	hasQuotas, quotasOver, quotaWait := false, true, algorithm.Never
	for i := range a.Statuses {
		st := &a.Statuses[i]
		a.Fallback = cmp.Or(a.Fallback, st.Fallback)
		if st.InQuotaMode {
			hasQuotas, quotasOver = true, quotasOver && st.Over
			quotaWait = min(quotaWait, st.RetryAfter)
		} else if st.Over {
			over, wait = true, max(wait, st.RetryAfter)
		}
	}
	if hasQuotas && quotasOver {
		over, wait = true, max(wait, quotaWait)
	}
	a.Over, a.Shadowed = over && !shadow, over && shadow
	if a.Over {
		a.RetryAfter = wait
	}
}

// summarizeCharges sets the fields of st that follow from its Charges.
func (st *Status) summarizeCharges() {
	var refusedReset, reset time.Duration // refusedReset is the ResetAfter of charges that are Over.
	for i := range st.Charges {
		c := &st.Charges[i]
		v := c.Verdict
		if c.IsCanary {
			continue
		}
		if v.Err != nil {
			left := v.CallerLeft()
			st.StoreFailed, st.CallerLeft = st.StoreFailed || !left, st.CallerLeft || left
		}
		st.Fallback = cmp.Or(st.Fallback, v.Fallback)
		switch {
		case c.Over && (!st.Over || v.RetryAfter > st.RetryAfter):
			st.BindingCharge, st.RetryAfter = c, v.RetryAfter
		case st.BindingCharge == nil || !st.Over && !c.Over && v.Remaining < st.BindingCharge.Verdict.Remaining:
			st.BindingCharge = c
		}
		unit := time.Second
		if c.Rule != nil && c.Rule.Limit.Kind != algorithm.FixedWindow {
			unit = time.Microsecond
		}
		if c.Over {
			st.Over = true
			wait := v.RetryAfter
			if wait == algorithm.Never {
				wait = v.ResetAfter
			}
			refusedReset = max(refusedReset, roundUpDuration(wait, unit))
		}
		reset = max(reset, roundUpDuration(v.ResetAfter, unit))
	}
	st.ResetAfter = reset
	if st.Over {
		st.ResetAfter = refusedReset
	}
}
