package algorithm

import "time"

// FirstHit is the state of a first-hit window. End is in nanoseconds since the Unix epoch; 0:
// the window has not started.
type FirstHit struct {
	Count uint64
	End   int64
}

// TakeFirstHit applies op to the window s and returns the window to store.
//
// The window starts with the first hit that is counted and ends a period later. With Max 2 in
// 10 s, hits at 3 s and 4 s pass. A hit at 12.9 s is over and must wait 0.1 s. A hit at 13 s
// passes and starts the window up to 23 s. End counts as at most a period ahead.
//
// Source: Redis, documentation of INCR, "Pattern: Rate limiter 2".
func TakeFirstHit(l *Limit, s FirstHit, at int64, op Op, amount uint64) (FirstHit, Outcome) {
	before, latest := s, at+int64(l.Period)
	if s.End <= at {
		before = FirstHit{}
	}
	before.End = min(before.End, latest)
	v := Outcome{Before: before.Count}
	v.Over = op.Asks() && min(before.Count+amount, MaxScriptCount) > l.Max
	v.After = op.apply(l, v.Over, before.Count, amount, MaxScriptCount)
	v.Charged = v.After != v.Before
	after := FirstHit{Count: v.After, End: before.End}
	if v.Charged && after.End == 0 {
		after.End = latest
	}
	if after.Count > 0 {
		v.ResetAfter = time.Duration(after.End - at)
	}
	v.setRetry(l, amount, v.ResetAfter)
	v.Remaining = l.remaining(after.Count)
	if l.Max == 0 {
		v.FullUntil = endOfTime
	} else if after.Count >= l.Max {
		v.FullUntil = time.Unix(0, after.End)
	}
	if corrected := op == Charge && amount > 0 && s.End > latest; !v.Charged && !corrected {
		return s, v
	}
	return after, v
}
