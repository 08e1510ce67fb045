package algorithm

import (
	"math"
	"math/bits"
	"time"
)

// Buckets is the state of a sliding window counter: the counts of the current fixed window and
// of the previous one. Start is the start of the current one, in nanoseconds since the Unix
// epoch.
type Buckets struct {
	Start             int64
	Previous, Current uint64
}

// moveTo returns s moved to the window that contains at. now is at, or s.Start if the clock
// was set back to before s.Start. Buckets of another period start elsewhere and count as empty.
func (s Buckets) moveTo(at int64, period time.Duration) (moved Buckets, now int64) {
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

// TakeSlidingCounter applies op to s and returns the buckets to store.
//
// It estimates the count of the last period. The previous window contributes the part of it
// that is in the last period, as if its hits had come evenly. With Max 10 a minute, 8 hits in
// the previous minute and 3 in this one, the estimate after 15 s is 3 + 8 x 0.75 = 9. So one
// more hit passes, and a hit of two does not. The estimate is rounded up to whole units, which
// changes no decision.
//
// The bound of 2 x Max - 1: Max pass at the end of one window. In the next window their part
// shrinks by one Max - 1 times, and one unit passes each time.
//
// Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains".
func TakeSlidingCounter(l *Limit, s Buckets, at int64, op Op, amount uint64) (Buckets, Outcome) {
	moved, now := s.moveTo(at, l.Period)
	elapsed := now - moved.Start
	v := Outcome{Before: moved.estimate(elapsed, l.Period)}
	v.Over = op.Asks() && min(v.Before+amount, MaxCount) > l.Max
	after := moved
	after.Current = op.apply(l, v.Over, moved.Current, amount, MaxScriptCount)
	v.Charged = after.Current != moved.Current
	v.After = after.estimate(elapsed, l.Period)
	v.ResetAfter = after.resetAfter(elapsed, l.Period)
	if v.Over {
		v.RetryAfter = after.wait(l, elapsed, amount)
	} else {
		v.Remaining = l.remaining(v.After)
	}
	if !l.CountBlocked && v.After >= l.Max {
		v.FullUntil = endOfTime
		if wait := int64(after.wait(l, elapsed, 1)); l.Max > 0 && wait < math.MaxInt64-now {
			v.FullUntil = time.Unix(0, now+wait)
		}
	}
	if !v.Charged {
		return s, v
	}
	return after, v
}

// estimate returns the count elapsed nanoseconds into the current window, rounded up.
func (s Buckets) estimate(elapsed int64, period time.Duration) uint64 {
	share, rest := mulDiv(s.Previous, uint64(int64(period)-elapsed), uint64(period))
	return min(share+min(rest, 1)+s.Current, MaxCount)
}

// resetAfter returns the time until the estimate is 0.
func (s Buckets) resetAfter(elapsed int64, period time.Duration) time.Duration {
	switch {
	case s.Current > 0:
		return 2*period - time.Duration(elapsed)
	case s.Previous > 0:
		return period - time.Duration(elapsed)
	}
	return 0
}

// wait returns the time until amount passes if no other hit comes before.
func (s Buckets) wait(l *Limit, elapsed int64, amount uint64) time.Duration {
	period := int64(l.Period)
	switch {
	case amount > l.Max:
		return Never
	case s.Current <= l.Max-amount: // in this window
		return time.Duration(max(shrinkTime(s.Previous, l.Max-amount-s.Current, period)-elapsed, 0))
	}
	return time.Duration(period - elapsed + shrinkTime(s.Current, l.Max-amount, period))
}

// shrinkTime returns how much of a window must pass until the previous window, with the count
// n, contributes at most room. With n 8, room 6 and a period of 60 it is 15.
func shrinkTime(n, room uint64, period int64) int64 {
	if n <= room {
		return 0
	}
	left, _ := mulDiv(room, uint64(period), n) // less than period, since room < n
	return period - int64(left)
}

// mulDiv returns a*b/c, which must fit into 64 bits, and the remainder.
func mulDiv(a, b, c uint64) (quotient, rest uint64) {
	hi, lo := bits.Mul64(a, b)
	return bits.Div64(hi, lo, c)
}
