package limiter

import (
	"math"

	"ratelimit/src/algorithm"
)

// Summary is the state of a limit, or of several, in the numbers that redis-cell replies.
type Summary struct {
	Limited          bool  // true if the limit is exceeded.
	Limit, Remaining int64 // how many units pass at once, and how many would pass now.
	// RetrySeconds is the time until the same request passes, rounded up; -1 if it need not or cannot wait. ResetSeconds
	// is the time until the limit is unused again.
	RetrySeconds, ResetSeconds int64
}

// Summary returns the state of the limit of c, also if it does not refuse because it is in shadow mode.
func (c *Charge) Summary() Summary {
	v := c.Verdict
	s := Summary{
		Limited: v.Over, Limit: int64(min(c.Algorithm.Capacity(), math.MaxInt64)),
		Remaining:    int64(min(v.Remaining, math.MaxInt64)),
		RetrySeconds: -1, ResetSeconds: SecondsRoundedUp(v.ResetAfter),
	}
	if v.Over && v.RetryAfter != algorithm.Never {
		s.RetrySeconds = SecondsRoundedUp(v.RetryAfter)
	}
	return s
}

// Summary combines the limits of st, such as all levels of a path in a tree of limits. It is limited if any level is.
// The limit and what remains are the smallest of all levels, the times the longest. Without a limit both are -1.
//
// Source: bradennapier's gist on redis-cell.
func (st *Status) Summary() Summary {
	if len(st.Charges) == 0 {
		return Summary{Limit: -1, Remaining: -1, RetrySeconds: -1}
	}
	sum := st.Charges[0].Summary()
	for i := range st.Charges[1:] {
		s := st.Charges[1+i].Summary()
		sum.Limited = sum.Limited || s.Limited
		sum.Limit, sum.Remaining = min(sum.Limit, s.Limit), min(sum.Remaining, s.Remaining)
		sum.RetrySeconds, sum.ResetSeconds = max(sum.RetrySeconds, s.RetrySeconds), max(sum.ResetSeconds, s.ResetSeconds)
	}
	return sum
}
