package algorithm

import "time"

// FirstHit is the state of a first-hit window. The zero value is a window that has not
// started.
type FirstHit struct {
	Count uint64
	// End is when the window ends, in nanoseconds since the Unix epoch.
	End int64
}

// TakeFirstHit applies op to the window s and returns the window to store. at and amount
// are as for TakeFixed.
//
// The window starts with the first hit that is counted and ends a period later. With Max
// 2 in 10 s, hits at 3 s and 4 s pass. A hit at 12.9 s is over and must wait 0.1 s. A hit
// at 13 s passes and starts the window up to 23 s.
//
// If End is more than a period ahead, the clock was set back. End then counts as one
// period ahead. The next charge stores that, even if it is refused, since its wait starts
// then. So the returned state must be stored although nothing is Charged.
func TakeFirstHit(l *Limit, s FirstHit, at int64, op Op, amount uint64) (FirstHit, Outcome) {
	now, latest := s, at+int64(l.Period)
	if s.End <= at {
		now = FirstHit{}
	}
	now.End = min(now.End, latest)
	v := Outcome{Before: now.Count}
	v.Over = op.Asks() && min(now.Count+amount, MaxCounted) > l.Max
	v.After = op.apply(l, v.Over, now.Count, amount, MaxCounted)
	v.Charged = v.After != v.Before
	after := FirstHit{Count: v.After, End: now.End}
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
	if pulled := op == Charge && amount > 0 && s.End > latest; !v.Charged && !pulled {
		return s, v
	}
	return after, v
}
