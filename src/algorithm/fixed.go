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

// Window returns the start and the end of the fixed window that contains the instant at, in
// nanoseconds since the Unix epoch: start <= at < end. The period must be positive.
func Window(at int64, period time.Duration) (start, end int64) {
	p := int64(period)
	start = at - at%p
	if start > at { // before 1970 the remainder is negative
		start -= p
	}
	return start, start + p
}

// TakeFixed applies op to the count of the current window, and returns the count to store.
// With Max 10 and a count of 8, a charge of 3 is over. The count is then 11 with CountBlocked
// and 8 without.
//
// Source: envoyproxy/ratelimit, README section "Fixed window".
func TakeFixed(l *Limit, count uint64, at int64, op Op, amount uint64) (uint64, Outcome) {
	_, end := Window(at, l.Period)
	v := Outcome{Before: count, ResetAfter: time.Duration(end - at)}
	v.Over = op.Asks() && min(count+amount, MaxCount) > l.Max
	v.After = op.apply(l, v.Over, count, amount, MaxCount)
	v.Charged = op.adds(l, v.Over) || v.After != count
	v.setRetry(l, amount, v.ResetAfter)
	if !v.Over {
		v.Remaining = l.remaining(v.After)
	}
	if v.After >= l.Max {
		v.FullUntil = time.Unix(0, end)
	}
	return v.After, v
}
