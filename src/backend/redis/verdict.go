package redis

import (
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// Verdicts turns the results of c into the verdicts of b.
func (*protocol) Verdicts(c *remote.Call, b *backend.Batch, now int64) {
	for i := range b.Hits {
		v := backend.Verdict{Err: c.Hits[i].Err}
		if v.Err == nil {
			v.Outcome = outcome(c, i, &b.Hits[i], now)
		}
		b.Verdicts[i] = v
	}
}

// found is the state of a counter as takeScript found it.
type found [scriptState]int64

func outcome(c *remote.Call, i int, h *backend.Hit, now int64) algorithm.Outcome {
	numbers := c.Hits[i].Numbers
	if len(numbers) == 0 {
		return (&found{c.Hits[i].Before}).outcome(h.Limit, now, h.Op, h.Amount)
	}
	if h.Limit.Kind != algorithm.FixedWindow {
		now = numbers[0] * int64(time.Microsecond)
	}
	over, state, refused := numbers[1] == 1, found(numbers[2:]), numbers[2+scriptState:]
	if len(refused) == 0 {
		return state.outcome(h.Limit, now, h.Op, h.Amount)
	}
	look := h.AsLook()
	tried := found(refused)
	would := tried.outcome(h.Limit, now, h.Op, h.Amount)
	would.Over = over // also when hits before it made it so
	return algorithm.Uncharged(h.Limit, state.outcome(h.Limit, now, look.Op, look.Amount), would)
}

// outcome returns the outcome that package algorithm computes from the state.
func (s *found) outcome(l *algorithm.Limit, now int64, op algorithm.Op, amount uint64) (v algorithm.Outcome) {
	count := func(n int64) uint64 { return uint64(max(n, 0)) }
	instant := func(us int64) int64 { return max(us, 0) * int64(time.Microsecond) } // -1: none
	switch l.Kind {
	case algorithm.FixedWindow:
		_, v = algorithm.TakeFixed(l, count(s[0]), now, op, amount)
	case algorithm.FirstHitWindow:
		_, v = algorithm.TakeFirstHit(l, algorithm.FirstHit{Count: count(s[0]), End: instant(s[1])}, now, op, amount)
	case algorithm.SlidingWindow:
		state := s.slidingState(l, now)
		v = state.Outcome(l, op, amount)
	case algorithm.SlidingWindowCounter:
		buckets := algorithm.Buckets{Start: instant(s[0]), Previous: count(s[1]), Current: count(s[2])}
		_, v = algorithm.TakeSlidingCounter(l, buckets, now, op, amount)
	case algorithm.GCRA:
		_, v = algorithm.TakeGCRA(l, algorithm.Arrival{TAT: instant(s[0]) + s[1], Last: instant(s[2])}, now, op, amount)
	}
	return v
}

// slidingState reads the state of a sliding_window: the count, and the instants in µs
// of the newest hit, the newest after the charge, and the hits whose leaving makes room
// for the amount and for one. -1: none.
func (s *found) slidingState(l *algorithm.Limit, now int64) algorithm.SlidingState {
	now = max(now, s[1]*int64(time.Microsecond))
	ago := func(us int64) time.Duration {
		if us < 0 {
			return -1
		}
		return time.Duration(now - us*int64(time.Microsecond))
	}
	leaves := func(us int64) time.Duration {
		if us < 0 {
			return 0
		}
		return l.Period - ago(us)
	}
	return algorithm.SlidingState{
		Now: now, Used: uint64(max(s[0], 0)), Newest: ago(s[1]), NewestAfter: ago(s[2]),
		Wait: leaves(s[3]), WaitForOne: leaves(s[4]),
	}
}
