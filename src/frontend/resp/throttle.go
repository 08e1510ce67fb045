package resp

import (
	"math"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/rediscell"
	"ratelimit/src/limiter"
)

// throttleDomain is the domain of requests of CL.THROTTLE, in the names of counters and in denials.
const throttleDomain = "cl.throttle"

var throttleDomainBytes, throttleKey = []byte(throttleDomain), []byte("key")

// runThrottle is redis-cell's command: CL.THROTTLE key max_burst count_per_period period [quantity].
func runThrottle(s *session, b *batch, args [][]byte) *replyError {
	if reason := s.srv.cfg.ThrottleRefusal; reason != "" {
		return errorf("%s", reason)
	}
	if len(args) > 6 {
		return errArity("CL.THROTTLE")
	}
	numbers := [4]int64{3: 1}
	for i, arg := range args[2:] {
		n, ok := parseInteger(arg)
		if !ok {
			return errNoInteger(arg)
		}
		numbers[i] = n
	}
	limit, err := throttleLimit(numbers[0], numbers[1], numbers[2])
	if err != nil {
		return err
	}
	d := amountOf(numbers[3], b.addEntries(throttleKey, args[1]))
	b.addRequest(throttleDomainBytes, &d, &limit, appendThrottleReply)
	return nil
}

func errNoInteger(arg []byte) *replyError {
	return errorf("Couldn't parse as integer: %.64s", arg)
}

// throttleLimit returns the limit of a CL.THROTTLE: burst + 1 units at once, and count in each period of so many
// seconds.
//
// Source: redis-cell. It divides floating point numbers and cuts the result to whole nanoseconds.
func throttleLimit(burst, count, period int64) (algorithm.Limit, *replyError) {
	exact := float64(period) * float64(time.Second) / float64(count)
	emission := math.Trunc(exact)
	switch {
	case count == 0 || period == 0 || emission == 0:
		return algorithm.Limit{}, errorf("Cell error: Store error: Zero rates are not supported")
	case count < 0 || period < 0 || burst < -1:
		return algorithm.Limit{}, errorf("Cell error: max_burst is less than -1, or count_per_period or period are negative")
	case exact > emission*1.001: // redis-cell would let more than 0.1 % more pass.
		return algorithm.Limit{}, errorf("Cell error: the rate is above a million a second, and one unit takes no whole " +
			"number of nanoseconds")
	case burst == -1: // Nothing passes.
		return algorithm.Limit{Kind: algorithm.GCRA, Period: algorithm.MaxPeriod}, nil
	case emission*(float64(burst)+1) > float64(algorithm.MaxPeriod):
		return algorithm.Limit{}, errorf("Cell error: the burst takes longer than 100 years to fill")
	}
	return algorithm.Limit{
		Kind: algorithm.GCRA, Max: 1, Period: algorithm.MaxPeriod, Emission: time.Duration(emission), Burst: uint64(burst),
		KeepsDebt: true,
	}, nil
}

// appendThrottleReply appends redis-cell's five integers: whether the request is limited, the limit, what remains of
// it, the seconds until the same request would pass, or -1, and until the limit is as new.
//
// Source: redis-cell 0.4.0.
func appendThrottleReply(dst []byte, it *limiter.Item, s *replyScratch) []byte {
	st := &it.Answer.Statuses[0]
	limit, v := it.Request.CallerLimit, st.Charges[0].Verdict
	l := rediscell.Summary{
		Limited: st.Over && !it.Answer.Shadowed, Limit: int64(limit.Capacity()),
		Remaining:    throttleRemaining(limit, v.ResetAfter),
		RetrySeconds: -1, ResetSeconds: throttleSeconds(v.ResetAfter),
	}
	if l.Limited && v.RetryAfter != algorithm.Never {
		l.RetrySeconds = throttleSeconds(v.RetryAfter)
	}
	return s.appendFive(dst, l)
}

// throttleSeconds returns d in seconds, rounded up, without a rest of less than a millisecond: 2.0004 s are 2 s.
func throttleSeconds(d time.Duration) int64 { return (d.Milliseconds() + 999) / 1000 }

// throttleRemaining returns the units that would pass, for a limit that is full after reset. It divides whole
// microseconds.
func throttleRemaining(l *algorithm.Limit, reset time.Duration) int64 {
	left, emission := time.Duration(l.BurstTolerance())-reset, l.Emission
	switch {
	case l.Max == 0 || left < 0:
		return 0
	case emission < time.Microsecond:
		return int64(left / emission)
	}
	return left.Microseconds() / emission.Microseconds()
}

// parseInteger reads a whole number of 64 bits.
func parseInteger(text []byte) (n int64, ok bool) {
	digits, negative := text, false
	if len(text) > 0 && (text[0] == '-' || text[0] == '+') {
		digits, negative = text[1:], text[0] == '-'
	}
	if len(digits) == 0 || len(digits) > 19 {
		return 0, false
	}
	var u uint64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		u = 10*u + uint64(c-'0') // 19 digits fit into 64 bits.
	}
	switch {
	case negative && u <= -math.MinInt64:
		return -int64(u), true
	case !negative && u <= math.MaxInt64:
		return int64(u), true
	}
	return 0, false
}
