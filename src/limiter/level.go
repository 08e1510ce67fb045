package limiter

import (
	"math"

	"ratelimit/src/algorithm"
)

// Level is the state of a limit, or of several, in the numbers that redis-cell replies.
type Level struct {
	// Limited says that the limit is exceeded.
	Limited bool
	// Limit is how many units pass at once, and Remaining how many would pass now.
	Limit, Remaining int64
	// RetrySeconds is the time until the same request passes, rounded up; -1 if it need not or cannot wait. ResetSeconds is that until the
	// limit is as new.
	RetrySeconds, ResetSeconds int64
}

// Level returns the state of the limit of c, also if it does not refuse because it is in shadow mode.
func (c *Charge) Level() Level {
	l := Level{
		Limited: c.Verdict.Over, Limit: int64(min(c.Algorithm.Capacity(), math.MaxInt64)), Remaining: int64(min(c.Verdict.Remaining, math.MaxInt64)),
		RetrySeconds: -1, ResetSeconds: SecondsRoundedUp(c.Verdict.ResetAfter),
	}
	if c.Verdict.Over && c.Verdict.RetryAfter != algorithm.Never {
		l.RetrySeconds = SecondsRoundedUp(c.Verdict.RetryAfter)
	}
	return l
}

// SummarizeLevels combines the limits of st, such as all levels of a path in a tree of limits. It is limited if any level is. The limit and
// what remains are the smallest of all levels, the times the longest. Without a limit both are -1.
//
// Source: bradennapier's gist on redis-cell.
func (st *Status) SummarizeLevels() Level {
	if len(st.Charges) == 0 {
		return Level{Limit: -1, Remaining: -1, RetrySeconds: -1}
	}
	sum := st.Charges[0].Level()
	for i := range st.Charges[1:] {
		l := st.Charges[1+i].Level()
		sum.Limited = sum.Limited || l.Limited
		sum.Limit, sum.Remaining = min(sum.Limit, l.Limit), min(sum.Remaining, l.Remaining)
		sum.RetrySeconds, sum.ResetSeconds = max(sum.RetrySeconds, l.RetrySeconds), max(sum.ResetSeconds, l.ResetSeconds)
	}
	return sum
}
