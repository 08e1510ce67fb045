package algorithm

import (
	"math/bits"
	"time"
)

// GCRAState is the state of a GCRA bucket, in nanoseconds since the Unix epoch. TAT, the theoretical arrival time, is
// when the bucket is full again. LastHit is the instant of the last recorded hit, or 0 if no MinInterval needs it.
type GCRAState struct{ TAT, LastHit int64 }

// EmissionInterval returns the time in which one unit comes back: Emission, or Period / Max in nanoseconds, rounded
// down; 0 if Max is 0. For 10 a minute it is 6 s.
func (l *Limit) EmissionInterval() int64 {
	switch {
	case l.Max == 0:
		return 0
	case l.Emission > 0:
		return int64(l.Emission)
	}
	return int64(uint64(l.Period) / l.Max)
}

// NearestExactRates returns the largest Max up to l.Max, and the smallest Max from l.Max on, with which a GCRA refills
// as fast as they say, but for at most 0.1 %. Both are l.Max if that is one of them. Above a million units a second,
// not every rate is: the interval is whole nanoseconds. With 70 million a second it would be 14 ns, which is 71,428,571
// a second.
func (l *Limit) NearestExactRates() (below, above uint64) {
	period, interval := uint64(l.Period), uint64(l.EmissionInterval())
	if lost := period - interval*l.Max; l.Emission > 0 || lost <= interval*l.Max/1000 {
		return l.Max, l.Max
	}
	return period / (interval + 1), period / interval
}

// BurstTolerance returns the time in which an empty bucket fills, in nanoseconds.
func (l *Limit) BurstTolerance() int64 { return l.EmissionInterval() * int64(l.Burst+1) }

// RefillTime returns the time in which amount comes back, in nanoseconds. It is at most
// MaxPeriod + 1, which is longer than any bucket takes to fill.
func (l *Limit) RefillTime(amount uint64) int64 {
	hi, lo := bits.Mul64(uint64(l.EmissionInterval()), amount)
	if hi > 0 || lo > uint64(MaxPeriod) {
		return int64(MaxPeriod) + 1
	}
	return int64(lo)
}

// TakeGCRA applies op to the bucket s and returns the bucket to store.
//
// With 10 a minute and Burst 2, one unit comes back every 6 s: three pass at once, and the next one after 6 s.
//
// Without CountBlocked and KeepsDebt TAT is at most BurstTolerance ahead of at. With CountBlocked refused hits and
// charges beyond the burst become a debt: TAT is up to MaxPeriod ahead. Until it is at most BurstTolerance ahead, even
// a hit of 0 is refused. A TAT further ahead than these bounds counts as the bound, and a LastHit after at as at.
//
// Source: ITU-T I.371, virtual scheduling algorithm; redis-cell for the reply.
func TakeGCRA(l *Limit, s GCRAState, at int64, op Op, amount uint64) (GCRAState, Outcome) {
	if l.Max == 0 {
		v := Outcome{Over: op.isOver(l, amount), FullUntil: endOfTime}
		v.setRetryAfter(l, amount, 0)
		return s, v
	}
	emission, tolerance := l.EmissionInterval(), l.BurstTolerance()
	maxAhead := tolerance
	if l.CountBlocked || l.KeepsDebt {
		maxAhead = int64(MaxPeriod)
	}
	// All variables below hold times relative to the instant at.
	tat, intervalEnd := min(max(s.TAT-at, 0), maxAhead), int64(0)
	if s != (GCRAState{}) {
		intervalEnd = max(min(s.LastHit-at, 0)+int64(l.MinInterval), 0)
	}
	count := func(tat int64) uint64 { return uint64((tat + emission - 1) / emission) }
	increment := l.RefillTime(amount)
	v := Outcome{Before: count(tat), WithinMinInterval: intervalEnd > 0 && op.CanBeRefused()}
	v.Over = v.WithinMinInterval || op.CanBeRefused() && tat+increment > tolerance
	next := int64(op.countAfterOp(l, v.Over, uint64(tat), uint64(increment), uint64(maxAhead)))
	recorded := amount > 0 && op.addsAmount(l, v.Over)
	if recorded {
		intervalEnd = int64(l.MinInterval)
	}
	v.Charged = recorded || next != tat
	v.After = count(next)
	v.ResetAfter = time.Duration(max(next, intervalEnd))
	v.setRetryAfter(l, amount, time.Duration(max(next+increment-tolerance, intervalEnd)))
	if next < tolerance {
		v.Remaining = uint64((tolerance - next) / emission)
	}
	v.setFullUntil(l, at, max(next+emission-tolerance, intervalEnd))
	if !v.Charged {
		s.TAT, s.LastHit = min(s.TAT, at+maxAhead), min(s.LastHit, at)
		return s, v
	}
	s = GCRAState{}
	if next > 0 {
		s.TAT = at + next
	}
	if intervalEnd > 0 {
		s.LastHit = at + intervalEnd - int64(l.MinInterval)
	}
	return s, v
}
