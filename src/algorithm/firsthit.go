package algorithm

import (
	"math"
	"time"
)

// FirstHit is what is kept of a first-hit window. The zero value is one that
// has not begun.
type FirstHit struct {
	Count uint64
	// End is when the window ends, in nanoseconds since the Unix epoch.
	End int64
}

// TakeFirstHit applies op to the window s and returns the one to store, which is
// s when nothing is written. at and amount are as for TakeFixed.
//
// The window starts with the first hit that is counted and ends a period later,
// whatever comes in between. A worked example, Max 2 in 10 s: hits at 3 s and 4 s
// pass, one at 12.9 s is over and has to wait 0.1 s, one at 13 s passes and starts
// the window up to 23 s.
//
// An end that is more than a period ahead comes from a clock that stepped back. It
// counts as a period ahead, and the next charge stores that, even if it is refused,
// since its wait starts then: what is returned has to be stored although nothing is
// Charged.
//
// Source: Button's divvy, README section "Rate limiting".
func TakeFirstHit(l *Limit, s FirstHit, at int64, op Op, amount uint64) (FirstHit, Outcome) {
	now, latest := s, at+int64(l.Period)
	if s.End <= at {
		now = FirstHit{}
	}
	now.End = min(now.End, latest)
	v := Outcome{Before: now.Count}
	after := now
	asked := min(now.Count+amount, MaxCounted)
	switch op {
	case Refund:
		after.Count -= min(now.Count, amount)
	case Force:
		after.Count = asked
	case Charge, Look:
		v.Over = asked > l.Max
		if op == Charge && (!v.Over || l.CountBlocked) {
			after.Count = asked
		}
	}
	v.Charged = after.Count != now.Count
	if v.Charged && after.End == 0 {
		after.End = latest
	}
	v.After = after.Count
	if after.Count > 0 {
		v.ResetAfter = time.Duration(after.End - at)
	}
	switch {
	case v.Over && amount > l.Max:
		v.RetryAfter = Never
	case v.Over:
		v.RetryAfter = v.ResetAfter
	}
	if after.Count < l.Max {
		v.Remaining = l.Max - after.Count
	}
	if l.Max == 0 {
		v.FullUntil = time.Unix(0, math.MaxInt64)
	} else if after.Count >= l.Max {
		v.FullUntil = time.Unix(0, after.End)
	}
	if pulled := op == Charge && amount > 0 && s.End > latest; !v.Charged && !pulled {
		return s, v
	}
	return after, v
}
