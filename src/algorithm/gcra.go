package algorithm

import (
	"math/bits"
	"time"
)

// Arrival is the state of a GCRA bucket, in nanoseconds since the Unix epoch. TAT, the
// theoretical arrival time, is when the bucket is full again. Last is the time of the last
// recorded hit; 0: MinInterval does not need it.
type Arrival struct{ TAT, Last int64 }

// Emission returns the time in which one unit comes back: Period / Max in nanoseconds, rounded
// down; 0 if Max is 0. For 10 a minute it is 6 s.
func (l *Limit) Emission() int64 {
	if l.Max == 0 {
		return 0
	}
	return int64(uint64(l.Period) / l.Max)
}

// Tolerance returns the time in which an empty bucket fills, in nanoseconds.
func (l *Limit) Tolerance() int64 { return l.Emission() * int64(l.Burst+1) }

// Increment returns the time in which amount comes back, in nanoseconds. It is at most
// MaxPeriod + 1, which is longer than any bucket takes to fill.
func (l *Limit) Increment(amount uint64) int64 {
	hi, lo := bits.Mul64(uint64(l.Emission()), amount)
	if hi > 0 || lo > uint64(MaxPeriod) {
		return int64(MaxPeriod) + 1
	}
	return int64(lo)
}

// TakeGCRA applies op to the bucket s and returns the bucket to store.
//
// At most Burst+1 units pass at once, and Burst + 1 + d/Emission within a time d. With 10 a
// minute and Burst 2, one unit comes back every 6 s: three pass at once, and the next one
// after 6 s.
//
// Without CountBlocked TAT is at most Tolerance ahead of at. With CountBlocked refused hits
// and charges beyond the burst become a debt: TAT is up to MaxPeriod ahead. Until it is at most
// Tolerance ahead, even a hit of 0 is refused. A TAT further ahead than these bounds counts as
// the bound, and a Last after at as at.
//
// Source: ITU-T I.371, virtual scheduling algorithm; redis-cell for the reply.
func TakeGCRA(l *Limit, s Arrival, at int64, op Op, amount uint64) (Arrival, Outcome) {
	if l.Max == 0 {
		v := Outcome{Over: op.Asks() && amount > 0, FullUntil: endOfTime}
		v.setRetry(l, amount, 0)
		return s, v
	}
	emission, tolerance := l.Emission(), l.Tolerance()
	maxAhead := tolerance
	if l.CountBlocked {
		maxAhead = int64(MaxPeriod)
	}
	// All times from here on are relative to at.
	tat := min(max(s.TAT-at, 0), maxAhead)
	last, hasLast := int64(0), false
	if l.MinInterval > 0 && s != (Arrival{}) {
		last = min(s.Last-at, 0)
		hasLast = -last < int64(l.MinInterval)
	}
	count := func(tat int64) uint64 { return uint64((tat + emission - 1) / emission) }
	increment := l.Increment(amount)
	v := Outcome{Before: count(tat), Interval: hasLast && op.Asks()}
	v.Over = v.Interval || op.Asks() && tat+increment > tolerance
	next := int64(op.apply(l, v.Over, uint64(tat), uint64(increment), uint64(maxAhead)))
	recorded := amount > 0 && op.adds(l, v.Over)
	if recorded {
		last, hasLast = 0, l.MinInterval > 0
	}
	v.Charged = recorded || next != tat
	v.After = count(next)
	interval := int64(0) // until the minimum interval is over
	if hasLast {
		interval = last + int64(l.MinInterval)
	}
	v.ResetAfter = time.Duration(max(next, interval))
	v.setRetry(l, amount, time.Duration(max(next+increment-tolerance, interval)))
	if next < tolerance {
		v.Remaining = uint64((tolerance - next) / emission)
	}
	if full := max(next+emission-tolerance, interval); full > 0 && !l.CountBlocked {
		v.FullUntil = time.Unix(0, at+full)
	}
	if !v.Charged {
		if op == Charge && amount > 0 {
			s.TAT, s.Last = min(s.TAT, at+maxAhead), min(s.Last, at)
		}
		return s, v
	}
	s = Arrival{}
	if next > 0 {
		s.TAT = at + next
	}
	if hasLast {
		s.Last = at + last
	}
	return s, v
}
