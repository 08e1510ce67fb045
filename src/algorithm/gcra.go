package algorithm

import (
	"math"
	"math/bits"
	"time"
)

// Arrival is what is kept of a bucket: when it is full again, and the last hit.
// The zero value is a full bucket that nobody has hit. Both are nanoseconds
// since the Unix epoch.
type Arrival struct {
	// TAT is the theoretical arrival time: the instant at which all that was
	// taken has come back.
	TAT int64
	// Last is the last hit that was recorded, kept for MinInterval only; 0 if it
	// does not matter any more.
	Last int64
}

// Emission is the time in which one unit comes back: Period / Max, cut to whole
// nanoseconds. It is 0 without a Max.
func (l *Limit) Emission() int64 {
	if l.Max == 0 {
		return 0
	}
	return int64(uint64(l.Period) / l.Max)
}

// Tolerance is how far ahead of the clock a bucket's arrival time may be: the
// time in which an empty bucket fills.
func (l *Limit) Tolerance() int64 { return l.Emission() * int64(l.Burst+1) }

// Increment is by how much an amount moves a bucket's arrival time on. It is
// one more than MaxPeriod at most, which no bucket holds.
func (l *Limit) Increment(amount uint64) int64 {
	hi, lo := bits.Mul64(uint64(l.Emission()), amount)
	if hi > 0 || lo > uint64(MaxPeriod) {
		return int64(MaxPeriod) + 1
	}
	return int64(lo)
}

// TakeGCRA applies op to the bucket s and returns the one to store, which is s
// when nothing is written. at and amount are as for TakeFixed.
//
// More than Burst+1 units at once never pass. In any stretch of length d, its
// first and last instant included, at most Burst + 1 + d/Emission units do. A
// worked example, 10 a minute with Burst 2, so one unit every 6 s: three pass at
// once, the next one after 6 s.
//
// With CountBlocked what is refused is owed all the same, and so is what is
// charged beyond the burst, up to MaxPeriod: whoever asks for nothing is refused
// until no more is owed than the bucket holds. Without it, nobody owes more than
// the bucket.
//
// An arrival time further ahead than may be owed comes from a clock that stepped
// back, or from another limit, and so does a last hit that is yet to come. The
// next charge pulls them in, even if it is refused, as its wait begins then: what
// is returned has to be stored although nothing is Charged.
//
// Source: ITU-T I.371, virtual scheduling algorithm; redis-cell for the reply.
func TakeGCRA(l *Limit, s Arrival, at int64, op Op, amount uint64) (Arrival, Outcome) {
	if l.Max == 0 {
		return takeNothing(s, op, amount)
	}
	emission, tolerance := l.Emission(), l.Tolerance()
	ahead := int64(MaxPeriod)
	if !l.CountBlocked {
		ahead = tolerance
	}
	// All times from here on are relative to at.
	tat := min(max(s.TAT-at, 0), ahead)
	last, hasLast := int64(0), false
	if l.MinInterval > 0 && s != (Arrival{}) {
		last = min(s.Last-at, 0)
		hasLast = -last < int64(l.MinInterval)
	}
	used := func(tat int64) uint64 { return uint64((tat + emission - 1) / emission) }
	v := Outcome{Before: used(tat)}
	increment := l.Increment(amount)
	next, recorded := tat, false
	switch op {
	case Refund:
		next = max(tat-increment, 0)
	case Force:
		next, recorded = min(tat+increment, ahead), amount > 0
	case Charge, Look:
		tooMuch := tat+increment > tolerance
		v.Interval = hasLast
		v.Over = tooMuch || v.Interval
		if op == Charge && amount > 0 && (!v.Over || l.CountBlocked) {
			next, recorded = min(tat+increment, ahead), true
		}
	}
	if recorded {
		last, hasLast = 0, l.MinInterval > 0
	}
	v.Charged = recorded || next != tat
	v.After = used(next)
	wait := int64(0) // for the distance
	if hasLast {
		wait = last + int64(l.MinInterval)
	}
	v.ResetAfter = time.Duration(max(next, wait))
	switch {
	case v.Over && increment > tolerance:
		v.RetryAfter = Never
	case v.Over:
		v.RetryAfter = time.Duration(max(next+increment-tolerance, wait))
	}
	if next < tolerance {
		v.Remaining = uint64((tolerance - next) / emission)
	}
	if full := max(next+emission-tolerance, wait); full > 0 && !l.CountBlocked {
		v.FullUntil = time.Unix(0, at+full)
	}
	if !v.Charged {
		if op == Charge && amount > 0 {
			s.TAT, s.Last = min(s.TAT, at+ahead), min(s.Last, at)
		}
		return s, v
	}
	after := Arrival{}
	if next > 0 {
		after.TAT = at + next
	}
	if hasLast {
		after.Last = at + last
	}
	return after, v
}

// takeNothing is TakeGCRA without a Max: nothing passes, ever, but for what asks
// for nothing.
func takeNothing(s Arrival, op Op, amount uint64) (Arrival, Outcome) {
	if op == Refund || op == Force || amount == 0 {
		return s, Outcome{FullUntil: time.Unix(0, math.MaxInt64)}
	}
	return s, Outcome{Over: true, RetryAfter: Never, FullUntil: time.Unix(0, math.MaxInt64)}
}
