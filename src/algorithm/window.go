package algorithm

import (
	"math"
	"time"
)

// MaxCount is the largest count of a fixed window, the largest Redis integer. MaxScriptCount
// is that of all other kinds, 2^52: Redis scripts count in doubles, which are exact up to it.
const (
	MaxCount       = math.MaxInt64
	MaxScriptCount = 1 << 52
)

// WindowBounds returns the start and the end of the window of equal length that contains the instant at, in
// nanoseconds since the Unix epoch: start <= at < end. The period must be positive.
func WindowBounds(at int64, period time.Duration) (start, end int64) {
	p := int64(period)
	start = at - at%p
	if start > at { // before 1970 the remainder is negative
		start -= p
	}
	return start, start + p
}

// TakeFixed applies op to the count of the current window, and returns the count to store. With Max 10 and a count of
// 8, a charge of 3 is over. The count is then 11 with CountBlocked and 8 without.
//
// Source: envoyproxy/ratelimit, README section "Fixed window".
func TakeFixed(l *Limit, count uint64, at int64, op Op, amount uint64) (uint64, Outcome) {
	_, end := l.WindowBounds(at)
	v := Outcome{Before: count, ResetAfter: time.Duration(end - at), WindowEnd: end}
	v.Over = op.isOver(l, min(count+amount, MaxCount))
	v.After = op.countAfterOp(l, v.Over, count, amount, MaxCount)
	v.Charged = op.addsAmount(l, v.Over) || v.After != count
	v.setRetryAfter(l, amount, v.ResetAfter)
	if !v.Over {
		v.Remaining = l.remainingAfter(v.After)
	}
	if v.After >= l.Max {
		v.FullUntil = end
	}
	return v.After, v
}

// FixedState is the state of a fixed window that also knows which hits were refused, so that they do not use up a limit
// that is raised.
type FixedState struct {
	Count      uint64 // the count of TakeFixed: what was admitted, and what was refused and counted.
	Refused    uint64 // the part of Count that was refused.
	RefusedMax uint64 // the Max under which a hit was refused last. It is 0 if Refused is.
}

// Take applies op to the window. It does what TakeFixed does, except under a larger Max than that under which hits were
// refused. Then only what was admitted counts, and the next hit that changes the count forgets what was refused:
//
//	1 a month:  a charge of 1 passes      count 1
//	            a charge of 1 is refused  count 2, of which 1 was refused under 1
//	2 a month:  a charge of 1 passes      count 2
//	            a charge of 1 is refused  count 3, of which 1 was refused under 2
//
// A refund gives back what was admitted first.
func (s *FixedState) Take(l *Limit, at int64, op Op, amount uint64) Outcome {
	_, v := TakeFixed(l, s.CountUnder(l, op), at, op, amount)
	s.Record(l, &v)
	return v
}

// CountUnder returns the count that op under l sees. Refunds see all of it.
func (s *FixedState) CountUnder(l *Limit, op Op) uint64 {
	if l.Max > s.RefusedMax && op != Refund {
		return s.Count - s.Refused
	}
	return s.Count
}

// Record changes s as the outcome v of TakeFixed says, which saw CountUnder(l, op).
func (s *FixedState) Record(l *Limit, v *Outcome) {
	if v.After == v.Before {
		return
	}
	if l.Max > s.RefusedMax && v.After > v.Before {
		s.Refused = 0
	}
	if v.Over {
		s.Refused, s.RefusedMax = s.Refused+v.After-v.Before, l.Max
	}
	s.Count, s.Refused = v.After, min(s.Refused, v.After)
	if s.Refused == 0 {
		s.RefusedMax = 0
	}
}

// FixedOutcomeInstead returns what TakeFixed would have returned for the limit l instead of another one with the same
// windows, which returned v for op and amount. Both limits have CountBlocked, so that the count does not depend on
// them.
func FixedOutcomeInstead(l *Limit, v *Outcome, op Op, amount uint64) Outcome {
	instead := *v
	instead.Over, instead.Remaining, instead.RetryAfter = op.isOver(l, min(v.Before+amount, MaxCount)), 0, 0
	instead.setRetryAfter(l, amount, v.ResetAfter)
	if !instead.Over {
		instead.Remaining = l.remainingAfter(v.After)
	}
	return instead
}

// FirstHitState is the state of a first-hit window.
type FirstHitState struct {
	Count     uint64
	WindowEnd int64 // the end of the window in Unix nanoseconds, or 0 before it has started.
}

// TakeFirstHit applies op to the window s and returns the window to store.
//
// The window starts with the first hit that is counted and ends a period later. With Max 2 in
// 10 s, hits at 3 s and 4 s pass. A hit at 12.9 s is over and must wait 0.1 s. A hit at 13 s
// passes and starts the window up to 23 s. WindowEnd counts as at most a period ahead.
//
// Source: Redis, documentation of INCR, "Pattern: Rate limiter 2".
func TakeFirstHit(l *Limit, s FirstHitState, at int64, op Op, amount uint64) (FirstHitState, Outcome) {
	before, latest := s, at+int64(l.Period)
	if s.WindowEnd <= at {
		before = FirstHitState{}
	}
	before.WindowEnd = min(before.WindowEnd, latest)
	v := Outcome{Before: before.Count}
	v.Over = op.isOver(l, min(before.Count+amount, MaxScriptCount))
	v.After = op.countAfterOp(l, v.Over, before.Count, amount, MaxScriptCount)
	v.Charged = v.After != v.Before
	after := FirstHitState{Count: v.After, WindowEnd: before.WindowEnd}
	if v.Charged && after.WindowEnd == 0 {
		after.WindowEnd = latest
	}
	v.WindowEnd = after.WindowEnd
	if after.Count > 0 {
		v.ResetAfter = time.Duration(after.WindowEnd - at)
	}
	v.setRetryAfter(l, amount, v.ResetAfter)
	v.Remaining = l.remainingAfter(after.Count)
	if after.Count >= l.Max {
		v.setFullUntil(l, at, after.WindowEnd-at)
	}
	if clockWasSetBack := s.WindowEnd > latest; !v.Charged && !clockWasSetBack {
		return s, v
	}
	return after, v
}
