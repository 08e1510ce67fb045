package redis

import (
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

func (*protocol) Verdicts(c *remote.Call, b *backend.Batch, now int64) {
	for i := range b.Hits {
		v := backend.Verdict{Err: c.Hits[i].Err}
		if v.Err == nil {
			v.Outcome = outcome(c, i, &b.Hits[i], now)
		}
		b.Verdicts[i] = v
	}
}

// counterState is the state of a counter before a hit, as takeScript returns it.
type counterState [replyNumbersPerState]int64

func outcome(c *remote.Call, i int, h *backend.Hit, now int64) algorithm.Outcome {
	numbers := c.Hits[i].ScriptReply
	if len(numbers) == 0 {
		return (&counterState{c.Hits[i].CountBefore}).outcome(h.Limit, now, h.Op, h.Amount)
	}
	if h.Limit.Kind != algorithm.FixedWindow {
		now = numbers[0] * int64(time.Microsecond)
	}
	over, state, refused := numbers[1] == 1, numbers[2:2+stateNumbers(h.Limit)], numbers[2+stateNumbers(h.Limit):]
	if len(refused) == 0 {
		return outcomeOfState(state, h, now)
	}
	look := h.AsLook()
	would := outcomeOfState(refused, h, now)
	would.Over = over // A hit may be over the limit only because of the hits before it.
	return algorithm.UnchargedOutcome(h.Limit, outcomeOfState(state, &look, now), would)
}

// outcomeOfState returns the outcome of h on a state, as takeScript returns it.
func outcomeOfState(numbers []int64, h *backend.Hit, now int64) algorithm.Outcome {
	l, base := h.Limit, counterState(numbers)
	if l.Hold == 0 {
		return base.outcome(l, now, h.Op, h.Amount)
	}
	holds := numbers[replyNumbersPerState:]
	micros := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	view := algorithm.HoldView{
		OpenUnits: uint64(holds[0]), OpenHolds: int(holds[1]), OldestEnd: micros(holds[2]), NewestEnd: micros(holds[3]),
		IsOpen: holds[4] == 1, IsDone: holds[4] == 2, Units: uint64(holds[5]), Expired: uint32(holds[6]),
	}
	v, _ := algorithm.HeldOutcome(l, view, h.Op, h.Amount, h.HoldID != algorithm.HoldID{}, func(op algorithm.Op, amount uint64) algorithm.Outcome {
		return base.outcome(l, now, op, amount)
	})
	return v
}

// outcome returns the outcome that package algorithm computes from the state.
func (s *counterState) outcome(l *algorithm.Limit, now int64, op algorithm.Op, amount uint64) (v algorithm.Outcome) {
	count := func(n int64) uint64 { return uint64(max(n, 0)) }
	instant := func(us int64) int64 { return max(us, 0) * int64(time.Microsecond) } // A missing instant is -1 µs and becomes 0.
	switch l.Kind {
	case algorithm.FixedWindow:
		_, v = algorithm.TakeFixed(l, count(s[0]), now, op, amount)
	case algorithm.FirstHitWindow:
		_, v = algorithm.TakeFirstHit(l, algorithm.FirstHitState{Count: count(s[0]), WindowEnd: instant(s[1])}, now, op, amount)
	case algorithm.SlidingWindow:
		state := s.slidingState(l, now)
		v = state.Outcome(l, op, amount)
	case algorithm.SlidingWindowCounter:
		buckets := algorithm.SlidingCounterState{WindowStart: instant(s[0]), PreviousCount: count(s[1]), CurrentCount: count(s[2])}
		_, v = algorithm.TakeSlidingCounter(l, buckets, now, op, amount)
	case algorithm.GCRA:
		_, v = algorithm.TakeGCRA(l, algorithm.GCRAState{TAT: instant(s[0]) + s[1], LastHit: instant(s[2])}, now, op, amount)
	case algorithm.Concurrency:
		v = (&algorithm.State{}).Take(l, now, op, amount)
	}
	return v
}

// slidingState reads the state of a sliding_window. After the count come the instants in µs, or -1, of the newest hit, the newest
// hit after the charge, and the hits that must leave the window to make room for the amount and for one unit.
func (s *counterState) slidingState(l *algorithm.Limit, now int64) algorithm.SlidingSnapshot {
	ago := func(us int64) time.Duration {
		if us < 0 {
			return algorithm.MaxPeriod
		}
		return time.Duration(now - us*int64(time.Microsecond))
	}
	leaves := func(us int64) time.Duration {
		if us < 0 {
			return 0
		}
		return l.Period - ago(us)
	}
	return algorithm.SlidingSnapshot{
		Now: now, UnitsInWindow: uint64(max(s[0], 0)), NewestAge: ago(s[1]), NewestAgeAfter: ago(s[2]),
		WaitForAmount: leaves(s[3]), WaitForOneUnit: leaves(s[4]),
	}
}
