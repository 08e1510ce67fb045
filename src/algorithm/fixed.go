package algorithm

import (
	"math"
	"time"
)

// MaxCount is where counters stop growing: what a Redis integer holds.
const MaxCount = math.MaxInt64

// MaxCounted is where the counts of all other kinds stop growing, 2^52: scripts
// keep them, whose numbers are doubles and have to be exact.
const MaxCounted = 1 << 52

// Window returns the edges of the fixed window of the given period around the
// instant at, all in nanoseconds since the Unix epoch: start <= at < end. The
// period must be positive.
func Window(at int64, period time.Duration) (start, end int64) {
	p := int64(period)
	start = at - at%p
	if start > at { // before 1970 the remainder is negative
		start -= p
	}
	return start, start + p
}

// TakeFixed applies op to the count of the current window and returns the
// count to store, which is the old one when nothing is charged. at is the
// instant in nanoseconds since the Unix epoch, amount is at most MaxAmount,
// count at most MaxCount, and 0 for a key never seen in this window.
//
// The rule is Envoy's: a hit is over when the count with it exceeds Max, and
// with CountBlocked the count grows all the same. A worked example, Max 10:
// count 8, charge 3 -> over, count 11 with CountBlocked and 8 without; in both
// cases the next charge of 3 is over too.
//
// Source: envoyproxy/ratelimit, README section "Fixed window".
func TakeFixed(l *Limit, count uint64, at int64, op Op, amount uint64) (uint64, Outcome) {
	_, end := Window(at, l.Period)
	v := Outcome{Before: count, ResetAfter: time.Duration(end - at)}
	asked := min(count+amount, MaxCount)
	after := count
	switch op {
	case Refund:
		after = count - min(count, amount)
		v.Charged = after != count
	case Force:
		after = asked
		v.Charged = true
	case Charge, Look:
		v.Over = asked > l.Max
		if op == Charge && (!v.Over || l.CountBlocked) {
			after = asked
			v.Charged = true
		}
	}
	v.After = after
	if v.Over {
		v.RetryAfter = v.ResetAfter
		if amount > l.Max {
			v.RetryAfter = Never
		}
	} else if after < l.Max {
		v.Remaining = l.Max - after
	}
	if after >= l.Max {
		v.FullUntil = time.Unix(0, end)
	}
	return after, v
}
