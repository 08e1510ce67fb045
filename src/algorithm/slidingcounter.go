package algorithm

import (
	"math"
	"math/bits"
	"time"
)

// Buckets are what is kept of a sliding window counter: the counts of the
// current fixed window and of the one before. The zero value has counted
// nothing.
type Buckets struct {
	// Start is where the current window begins, in nanoseconds since the Unix
	// epoch.
	Start             int64
	Previous, Current uint64
}

// At is s as it is at the instant at: windows that have ended have moved on. A
// clock that stepped back to before the current window is taken to stand at its
// beginning; now is what it shows then. Windows with other edges, which are those
// of another period, count for nothing.
func (s Buckets) At(at int64, period time.Duration) (moved Buckets, now int64) {
	start, end := Window(at, period)
	switch {
	case s.Previous == 0 && s.Current == 0:
		return Buckets{Start: start}, at
	case start == s.Start:
		return s, at
	case start == s.Start+int64(period):
		return Buckets{Start: start, Previous: s.Current}, at
	case end <= s.Start:
		return s, s.Start
	}
	return Buckets{Start: start}, at
}

// TakeSlidingCounter applies op to s and returns what to store, which is s when
// nothing is charged. at and amount are as for TakeFixed.
//
// The count is estimated: that of the current window, and of the one before the
// share that a window ending now would still cover, as if its hits had been
// spread evenly. A worked example, Max 10 a minute: 8 in the last minute and 3
// in this one are 3 + 8 x 0.75 = 9 after 15 s, so one more passes and not two.
//
// At most 2 x Max - 1 pass in any stretch as long as the period: Max at the very
// end of a window, and then one each time their share has shrunk by one, which it
// has Max - 1 times before the next window ends. It may also refuse what would
// fit, when the hits of the last window came early in it.
//
// That the estimate is rounded up changes no decision: Max less the amount is a
// whole number, and a fraction exceeds it exactly if it does so rounded up.
//
// Source: Cloudflare, "How we built rate limiting capable of scaling to millions
// of domains".
func TakeSlidingCounter(l *Limit, s Buckets, at int64, op Op, amount uint64) (Buckets, Outcome) {
	moved, now := s.At(at, l.Period)
	elapsed := now - moved.Start
	v := Outcome{Before: moved.estimate(elapsed, l.Period)}
	after := moved
	asked := min(moved.Current+amount, MaxCounted)
	switch op {
	case Refund:
		after.Current -= min(moved.Current, amount)
	case Force:
		after.Current = asked
	case Charge, Look:
		v.Over = addSaturating(v.Before, amount) > l.Max
		if op == Charge && (!v.Over || l.CountBlocked) {
			after.Current = asked
		}
	}
	v.Charged = after.Current != moved.Current
	v.After = after.estimate(elapsed, l.Period)
	v.ResetAfter = after.whole(elapsed, l.Period)
	switch {
	case v.Over:
		v.RetryAfter = after.wait(l, elapsed, amount)
	case v.After < l.Max:
		v.Remaining = l.Max - v.After
	}
	if !l.CountBlocked && v.After >= l.Max {
		full := int64(math.MaxInt64)
		if wait := int64(after.wait(l, elapsed, 1)); l.Max > 0 && wait < full-now {
			full = now + wait
		}
		v.FullUntil = time.Unix(0, full)
	}
	if !v.Charged {
		return s, v
	}
	return after, v
}

// estimate is the count, rounded up: whole units only are asked for.
func (s Buckets) estimate(elapsed int64, period time.Duration) uint64 {
	share, rest := mulDiv(s.Previous, uint64(int64(period)-elapsed), uint64(period))
	if rest > 0 {
		share++
	}
	return addSaturating(share, s.Current)
}

// whole is when nothing is counted any more.
func (s Buckets) whole(elapsed int64, period time.Duration) time.Duration {
	switch {
	case s.Current > 0:
		return 2*period - time.Duration(elapsed)
	case s.Previous > 0:
		return period - time.Duration(elapsed)
	}
	return 0
}

// wait is when amount passes if nobody comes before.
func (s Buckets) wait(l *Limit, elapsed int64, amount uint64) time.Duration {
	period := int64(l.Period)
	switch {
	case amount > l.Max:
		return Never
	case s.Current <= l.Max-amount: // in this window
		return time.Duration(max(shrunk(s.Previous, l.Max-amount-s.Current, period)-elapsed, 0))
	}
	return time.Duration(period - elapsed + shrunk(s.Current, l.Max-amount, period))
}

// shrunk is how much of a window must have passed for the share of the one
// before, which counted n, to be no more than room.
func shrunk(n, room uint64, period int64) int64 {
	if n <= room {
		return 0
	}
	left, _ := mulDiv(room, uint64(period), n) // below period, as room is below n
	return period - int64(left)
}

// mulDiv is a*b/c and its rest. a*b/c must fit.
func mulDiv(a, b, c uint64) (quotient, rest uint64) {
	hi, lo := bits.Mul64(a, b)
	return bits.Div64(hi, lo, c)
}

func addSaturating(a, b uint64) uint64 { return min(a+b, MaxCount) }
