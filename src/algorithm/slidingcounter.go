package algorithm

import (
	"math/bits"
	"time"
)

// SlidingCounterState is the state of a sliding window counter: the counts of the current fixed window and of the
// previous one. WindowStart is the start of the current window, in nanoseconds since the Unix epoch.
type SlidingCounterState struct {
	WindowStart                 int64
	PreviousCount, CurrentCount uint64
}

// advanceTo returns the buckets at the instant at. If the clock was set back to an earlier window, all that counts is
// counted in that window. So it counts for at most two windows more. Buckets of another period start elsewhere and
// count as empty.
func (s SlidingCounterState) advanceTo(at int64, period time.Duration) SlidingCounterState {
	start, end := WindowBounds(at, period)
	switch {
	case start == s.WindowStart:
		return s
	case start == s.WindowStart+int64(period):
		return SlidingCounterState{WindowStart: start, PreviousCount: s.CurrentCount}
	case end <= s.WindowStart:
		return SlidingCounterState{WindowStart: start, CurrentCount: min(s.PreviousCount+s.CurrentCount, MaxScriptCount)}
	}
	return SlidingCounterState{WindowStart: start}
}

// TakeSlidingCounter applies op to s and returns the buckets to store.
//
// It estimates the count of the last period. The previous window contributes the part of its count that is in the last
// period, as if its hits had come evenly. With Max 10 a minute, 8 hits in the previous minute and 3 in this one, the
// estimate after 15 s is 3 + 8 x 0.75 = 9. So one more hit passes, and a hit of two does not. The estimate is rounded
// up to whole units, which changes no decision.
//
// The bound of 2 x Max - 1: Max pass at the end of one window. In the next window their part
// shrinks by one Max - 1 times, and one unit passes each time.
//
// Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains".
func TakeSlidingCounter(l *Limit, s SlidingCounterState, at int64, op Op,
	amount uint64,
) (SlidingCounterState, Outcome) {
	moved := s.advanceTo(at, l.Period)
	elapsed := at - moved.WindowStart
	v := Outcome{Before: moved.estimatedCount(elapsed, l.Period), WindowEnd: moved.WindowStart + int64(l.Period)}
	v.Over = op.isOver(l, min(v.Before+amount, MaxCount))
	after := moved
	after.CurrentCount = op.countAfterOp(l, v.Over, moved.CurrentCount, amount, MaxScriptCount)
	v.Charged = after.CurrentCount != moved.CurrentCount
	v.After = after.estimatedCount(elapsed, l.Period)
	v.ResetAfter = after.timeUntilReset(elapsed, l.Period)
	if v.Over {
		v.RetryAfter = after.waitForUnits(l, elapsed, amount)
	}
	v.Remaining = l.remainingAfter(v.After)
	if v.After >= l.Max && !l.CountBlocked {
		v.setFullUntil(l, at, int64(after.waitForUnits(l, elapsed, 1)))
	}
	if clockWasSetBack := moved.WindowStart < s.WindowStart; !v.Charged && !clockWasSetBack {
		return s, v
	}
	return after, v
}

// estimatedCount returns the count elapsed nanoseconds into the current window, rounded up.
func (s SlidingCounterState) estimatedCount(elapsed int64, period time.Duration) uint64 {
	share, rest := mulDiv(s.PreviousCount, uint64(int64(period)-elapsed), uint64(period))
	return min(share+min(rest, 1)+s.CurrentCount, MaxCount)
}

// timeUntilReset returns the time until the estimate is 0.
func (s SlidingCounterState) timeUntilReset(elapsed int64, period time.Duration) time.Duration {
	switch {
	case s.CurrentCount > 0:
		return 2*period - time.Duration(elapsed)
	case s.PreviousCount > 0:
		return period - time.Duration(elapsed)
	}
	return 0
}

// waitForUnits returns the time until amount passes if no other hit comes before.
func (s SlidingCounterState) waitForUnits(l *Limit, elapsed int64, amount uint64) time.Duration {
	period := int64(l.Period)
	switch {
	case !l.CanPass(amount):
		return Never
	case s.CurrentCount <= l.Max-amount: // The wait ends in the current window.
		return time.Duration(max(timeToShrink(s.PreviousCount, l.Max-amount-s.CurrentCount, period)-elapsed, 0))
	}
	return time.Duration(period - elapsed + timeToShrink(s.CurrentCount, l.Max-amount, period))
}

// timeToShrink returns how much of a window must pass until the previous window, with the count
// n, contributes at most room. With n 8, room 6 and a period of 60 it is 15.
func timeToShrink(n, room uint64, period int64) int64 {
	if n <= room {
		return 0
	}
	left, _ := mulDiv(room, uint64(period), n) // the quotient is less than period, since room < n
	return period - int64(left)
}

// mulDiv returns a*b/c, which must fit into 64 bits, and the remainder.
func mulDiv(a, b, c uint64) (quotient, rest uint64) {
	hi, lo := bits.Mul64(a, b)
	return bits.Div64(hi, lo, c)
}
