// Package rediscell tells the state of limits in the numbers that redis-cell replies.
package rediscell

import (
	"math"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// Summary is the state of a limit, or of several, in the numbers that redis-cell replies.
type Summary struct {
	Limited          bool  // true if the limit is exceeded.
	Limit, Remaining int64 // how many units pass at once, and how many would pass now.
	// RetrySeconds is the time until the same request passes, rounded up; -1 if it need not or cannot wait. ResetSeconds
	// is the time until the limit is unused again.
	RetrySeconds, ResetSeconds int64
}

// None is the Summary without a limit.
func None() Summary { return Summary{Limit: -1, Remaining: -1, RetrySeconds: -1} }

// OfCharge returns the state of the limit of c, also if it does not refuse because it is in shadow mode.
func OfCharge(c *limiter.Charge) Summary {
	v := c.Verdict
	s := Summary{
		Limited: v.Over, Limit: int64(min(c.Algorithm.Capacity(), math.MaxInt64)),
		Remaining:    int64(min(v.Remaining, math.MaxInt64)),
		RetrySeconds: -1, ResetSeconds: limiter.SecondsRoundedUp(v.ResetAfter),
	}
	if v.Over && v.RetryAfter != algorithm.Never {
		s.RetrySeconds = limiter.SecondsRoundedUp(v.RetryAfter)
	}
	return s
}

// OfStatus combines the limits of st, such as all levels of a path in a tree of limits. It is limited if any level is.
// The limit and what remains are the smallest of all levels, the times the longest. Without a limit it is None.
//
// Source: bradennapier's gist on redis-cell.
func OfStatus(st *limiter.Status) Summary {
	if len(st.Charges) == 0 {
		return None()
	}
	sum := OfCharge(&st.Charges[0])
	for i := range st.Charges[1:] {
		s := OfCharge(&st.Charges[1+i])
		sum.Limited = sum.Limited || s.Limited
		sum.Limit, sum.Remaining = min(sum.Limit, s.Limit), min(sum.Remaining, s.Remaining)
		sum.RetrySeconds, sum.ResetSeconds = max(sum.RetrySeconds, s.RetrySeconds), max(sum.ResetSeconds, s.ResetSeconds)
	}
	return sum
}
