package limiter

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Answer is the decision on one request. Its zero value is ready for Check. Each Check
// reuses the memory of the Answer, so programs with many requests should pool Answers;
// see Reset.
type Answer struct {
	// Over says that the request is refused; of an Independent request, that some
	// descriptor is.
	Over bool
	// RetryAfter is how long the same request has to wait before it passes: 0 unless
	// Over, algorithm.Never if it can never pass. It is the longest wait of the
	// descriptors that refuse; of those in quota mode, the shortest.
	RetryAfter time.Duration
	// Fallback is that of the first Status that has one.
	Fallback backend.Fallback
	// Statuses has one element per descriptor, in order.
	Statuses []Status
	// Charges are those of all Statuses, in order.
	Charges []Charge
	// Set is the configuration the request was decided by.
	Set *rules.Set
	// Domain is the request's domain in the Set; nil if the Set has none of that name.
	Domain *rules.Domain
	// Shadowed says that the request is over its limits and is allowed, because the
	// limiter is in shadow mode.
	Shadowed bool

	memory memory
}

// Status is the decision on one descriptor.
type Status struct {
	// Over says that a limit of this descriptor is exceeded that is not in
	// shadow mode.
	Over bool
	// Rule is what the descriptor matches, in an ordered list the rule that answers.
	// It is nil if no rule matches, if another rule of the request replaces it, and for
	// a limit that came with the request.
	Rule *rules.Rule
	// Quota says that the request is refused only if all its descriptors in
	// quota mode are over.
	Quota bool
	// Amount is what was charged, or given back with Op Refund.
	Amount uint64
	Op     algorithm.Op
	// Charges are the limits that apply, in the order of the rules; nil for none.
	Charges []Charge
	// Binding is the charge that callers are told of: of those that refuse the one with
	// the longest wait, else the one with the fewest remaining, the first of equals. It
	// is never a Canary, and nil if there is no other charge.
	Binding *Charge
	// RetryAfter is how long the same request has to wait for this descriptor to pass:
	// 0 unless Over, algorithm.Never if it can never pass.
	RetryAfter time.Duration
	// ResetAfter is what callers are told as the time until reset: if Over, the longest
	// wait of the limits that refuse (the reset of a limit that can never pass), else the
	// longest time until a limit is whole again. It is rounded up to whole seconds for
	// fixed windows, as in Envoy, and to whole microseconds for others.
	ResetAfter time.Duration
	// Failed says that the store did not answer for some limit, so that the descriptor
	// is not decided.
	Failed bool
	// Fallback is how the first charge without an answer of the store was decided.
	// FallbackError, the zero value: the store answered, or the descriptor Failed.
	Fallback backend.Fallback

	found found
}

// found is what applies to a descriptor.
type found struct {
	canaries   []*rules.Rule // rules in shadow mode that match before Status.Rule
	begin, end int           // of Answer.Charges
}

// Charge is one limit that applies to a descriptor, and its verdict.
type Charge struct {
	// Rule is the rule of the limit; nil if the limit came with the request.
	Rule  *rules.Rule
	Limit rules.Quantity
	// Algorithm is the arithmetic of the limit.
	Algorithm *algorithm.Limit
	// Key is what the limit is counted under. The Answer owns the bytes.
	Key []byte
	// Asked is Status.Amount. In a Look it also includes what earlier descriptors of the
	// request would charge to the same counter.
	Asked uint64
	// Over says that the limit refuses: it is exceeded, and not in shadow mode.
	Over    bool
	Verdict backend.Verdict
	// Canary says that the rule is in shadow mode before the rule of an ordered list
	// that answers. Its verdict is counted and has no other effect.
	Canary bool
}

// Unlimited reports whether the descriptor matches an unlimited rule, and no limit.
func (st *Status) Unlimited() bool {
	return st.Rule != nil && st.Rule.Unlimited && st.Binding == nil
}

// Retry returns how long the same hit has to wait; not ok if it passed or can never pass.
func (c *Charge) Retry() (wait time.Duration, ok bool) {
	return c.Verdict.RetryAfter, c.Verdict.Over && c.Verdict.RetryAfter != algorithm.Never
}

// RuleName returns the rule's name as operators see it, without the domain; empty for a
// limit that came with the request.
func (c *Charge) RuleName() string {
	if c.Rule == nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimPrefix(c.Rule.Key, c.Rule.Domain), ".")
}

// Reasons returns why the limit is exceeded, not nil: "count" if the amount does not fit,
// "interval" if the minimum interval has not passed.
func (c *Charge) Reasons() []string {
	v := &c.Verdict
	count, interval := v.Over && (v.Before+c.Asked > c.Algorithm.Capacity() || !v.Interval), v.Interval
	if !c.Counted() {
		count, interval = v.RetryAfter == algorithm.Never, false
	}
	reasons := []string{}
	if count {
		reasons = append(reasons, "count")
	}
	if interval {
		reasons = append(reasons, "interval")
	}
	return reasons
}

// Counted reports whether the verdict comes from a counter. It does not if the store did
// not answer and the rule allows or denies then.
func (c *Charge) Counted() bool {
	return c.Verdict.Fallback != backend.FallbackAllow && c.Verdict.Fallback != backend.FallbackDeny
}

// Longer reports whether the wait a is longer than b; algorithm.Never is the longest.
func Longer(a, b time.Duration) bool {
	return b != algorithm.Never && (a == algorithm.Never || a > b)
}

func longest(a, b time.Duration) time.Duration {
	if Longer(b, a) {
		return b
	}
	return a
}

// Seconds returns d in seconds, rounded up: a caller that returns earlier is refused.
func Seconds(d time.Duration) int64 { return int64(roundUp(d, time.Second) / time.Second) }

// Microseconds returns d in microseconds, rounded up.
func Microseconds(d time.Duration) int64 {
	return int64(roundUp(d, time.Microsecond) / time.Microsecond)
}

func roundUp(d, unit time.Duration) time.Duration { return (d + unit - 1) / unit * unit }

// memory is what a decision works in. The next decision of the Answer reuses it.
type memory struct {
	batch    backend.Batch // one hit for each of Answer.Charges
	keys     []byte        // all keys, one after the other
	matching rules.Scratch
	canaries []*rules.Rule     // of all descriptors
	limits   []algorithm.Limit // those that came with the request
	replaced rules.Replaced
	alone    [1]*rules.Rule // see limitsOf
}

// empty makes a ready for the next decision.
func (a *Answer) empty() {
	m := &a.memory
	m.batch = backend.Batch{Hits: m.batch.Hits[:0], Verdicts: m.batch.Verdicts[:0]}
	m.keys, m.canaries, m.limits = m.keys[:0], m.canaries[:0], m.limits[:0]
	a.Statuses, a.Charges = a.Statuses[:0], a.Charges[:0]
	a.Over, a.RetryAfter, a.Fallback = false, 0, backend.FallbackError
	a.Set, a.Domain, a.Shadowed = nil, nil, false
}

// keptBytes bounds the bytes of keys that an Answer keeps for each charge.
const keptBytes = 64

// Reset empties a, which then refers to no request and no rule, and keeps its memory for
// the next Check. It reports whether that is memory for at most most charges and
// descriptors; drop larger Answers instead of pooling them.
func (a *Answer) Reset(most int) (small bool) {
	m := &a.memory
	clear(a.Statuses)
	clear(a.Charges)
	clear(m.batch.Hits)
	clear(m.batch.Verdicts)
	clear(m.canaries)
	m.matching.Reset(most * keptBytes)
	m.alone[0] = nil
	a.empty()
	return max(cap(a.Statuses), cap(a.Charges), cap(m.batch.Hits)) <= most && cap(m.keys) <= most*keptBytes
}

// grow makes room for one more charge. A batch that has to grow doubles: append would
// add a quarter, and so copy a large one many times.
func (a *Answer) grow() {
	b := &a.memory.batch
	if n := len(b.Hits); n == cap(b.Hits) {
		more := max(n, 8)
		b.Hits = slices.Grow(b.Hits, more)
		b.Verdicts = slices.Grow(b.Verdicts, more)
		a.Charges = slices.Grow(a.Charges, more)
	}
}

// readVerdicts copies the verdicts of the store to the charges. It returns the first
// failure of the store that leaves a descriptor undecided.
func (a *Answer) readVerdicts() (err error) {
	for i := range a.Charges {
		c := &a.Charges[i]
		c.Verdict = a.memory.batch.Verdicts[i]
		c.Over = c.Verdict.Over && (c.Rule == nil || !c.Rule.Shadow)
		if err == nil && c.Verdict.Err != nil && !c.Canary {
			err = fmt.Errorf("%w: %w", ErrStore, c.Verdict.Err)
		}
	}
	return err
}

// conclude turns the verdicts into the statuses and the overall answer.
func (a *Answer) conclude(cfg *Config, independent bool) {
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if begin, end := st.found.begin, st.found.end; begin < end {
			st.Charges = a.Charges[begin:end:end]
		}
		st.conclude()
		st.Quota = !st.Unlimited() && (cfg.Quota || st.Rule != nil && st.Rule.Quota)
	}
	a.decide(cfg.Shadow, independent)
}

// decide sets the overall answer, which follows from the statuses.
func (a *Answer) decide(shadow, independent bool) {
	over, wait := false, time.Duration(0)
	quotas, quotasOver, quotaWait := 0, 0, algorithm.Never
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if a.Fallback == backend.FallbackError {
			a.Fallback = st.Fallback
		}
		switch together := st.Quota && !independent; {
		case together && !st.Over:
			quotas++
		case together:
			quotas++
			quotasOver++
			if Longer(quotaWait, st.RetryAfter) {
				quotaWait = st.RetryAfter
			}
		case st.Over:
			over, wait = true, longest(wait, st.RetryAfter)
		}
	}
	if quotas > 0 && quotas == quotasOver {
		over, wait = true, longest(wait, quotaWait)
	}
	a.Over = over && !shadow
	a.Shadowed = over && shadow
	if a.Over {
		a.RetryAfter = wait
	}
}

// conclude sets what the Charges say together.
func (st *Status) conclude() {
	var refused, reset time.Duration // the longest times that callers are told
	for i := range st.Charges {
		c := &st.Charges[i]
		v := &c.Verdict
		if c.Canary {
			continue
		}
		st.Failed = st.Failed || v.Err != nil
		if st.Fallback == backend.FallbackError {
			st.Fallback = v.Fallback
		}
		switch {
		case c.Over && (!st.Over || Longer(v.RetryAfter, st.RetryAfter)):
			st.Binding, st.RetryAfter = c, v.RetryAfter
		case st.Binding == nil || !st.Over && !c.Over && v.Remaining < st.Binding.Verdict.Remaining:
			st.Binding = c
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
			refused = max(refused, roundUp(wait, unit))
		}
		reset = max(reset, roundUp(v.ResetAfter, unit))
	}
	st.ResetAfter = reset
	if st.Over {
		st.ResetAfter = refused
	}
}
