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
		return (&counterState{c.Hits[i].CountBefore}).outcome(h.Limit, now, h.Op, c.Hits[i].Amount)
	}
	if h.Limit.Kind != algorithm.FixedWindow {
		now = numbers[0] * int64(time.Microsecond)
	}
	over, state := numbers[1] == 1, numbers[2:]
	refused := state[stateNumbers(h.Limit):]
	if h.Limit.Hold > 0 {
		refused = refused[replyNumbersPerHold*state[replyNumbersPerState+holdsInReply]:]
	}
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
	counter := counterState(numbers)
	if h.Limit.Hold > 0 {
		return heldOutcome(&counter, numbers[replyNumbersPerState:], h, now)
	}
	amount := h.Amount
	if h.Window != 0 {
		st := counter.state(h.Limit.Kind)
		amount = h.AmountIn(&st, now)
	}
	return counter.outcome(h.Limit, now, h.Op, amount)
}

// heldOutcome returns the outcome of h on a counter with holds.
func heldOutcome(counter *counterState, holds []int64, h *backend.Hit, now int64) algorithm.Outcome {
	l := h.Limit
	micros := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	view := algorithm.HoldView{
		OpenUnits: uint64(holds[0]), OpenHolds: int(holds[1]), IsOpen: holds[4] == 1, IsDone: holds[4] == 2,
		Units: uint64(holds[5]), Expired: uint32(holds[6]),
		ExpiredUnits: uint64(holds[7]),
	}
	f := algorithm.Forecast{At: now, Base: counter.state(l.Kind), NewestEnd: micros(holds[3])}
	var ends [algorithm.MaxForecastHolds]algorithm.HoldEnd
	var leaves [algorithm.MaxForecastHolds]int64
	list := holds[replyNumbersOfHolds:]
	for i := range min(int(holds[holdsInReply]), len(ends)) {
		n := list[replyNumbersPerHold*i:]
		ends[i], leaves[i] = algorithm.HoldEnd{In: micros(n[0]), Units: uint64(n[1])}, n[2]
		f.Ends = ends[:i+1]
	}
	base := func(op algorithm.Op, amount uint64) algorithm.Outcome {
		if l.Kind != algorithm.SlidingWindow {
			return f.Base.Take(l, now, op, amount)
		}
		open := f.OpenUnits
		state := *counter
		if amount == h.Amount { // without open holds
			state[3] = state[4]
		}
		for i := range f.Ends {
			if open -= min(ends[i].Units, open); open > 0 && amount == h.Amount+open {
				state[3] = leaves[i]
			}
		}
		return state.outcome(l, now, op, amount)
	}
	v, _ := algorithm.HeldOutcome(l, view, h.Op, h.Amount, h.HoldID != algorithm.HoldID{}, base)
	f.OpenUnits = view.OpenUnits
	count := view.OpenHolds
	switch {
	case v.HoldOpened:
		f.OpenUnits, count = f.OpenUnits+h.Amount, count+1
	case v.HoldClosed:
		f.OpenUnits, count = f.OpenUnits-view.Units, count-1
	}
	if count > 0 {
		f.SetWaits(&v, l, h.Amount, base)
	}
	return v
}

// state returns the state of a counter of a kind. That of a sliding window is not known.
func (s *counterState) state(kind algorithm.Kind) (st algorithm.State) {
	count := func(n int64) uint64 { return uint64(max(n, 0)) }
	// A missing instant is -1 µs and becomes 0.
	instant := func(us int64) int64 { return max(us, 0) * int64(time.Microsecond) }
	switch kind {
	case algorithm.FixedWindow:
		st.FixedWindow.Count = count(s[0])
	case algorithm.FirstHitWindow:
		st.FirstHit = algorithm.FirstHitState{Count: count(s[0]), WindowEnd: instant(s[1])}
	case algorithm.SlidingWindowCounter:
		st.SlidingCounter = algorithm.SlidingCounterState{
			WindowStart: instant(s[0]), PreviousCount: count(s[1]),
			CurrentCount: count(s[2]),
		}
	case algorithm.GCRA:
		st.GCRA = algorithm.GCRAState{TAT: instant(s[0]) + s[1], LastHit: instant(s[2])}
	}
	return st
}

// outcome returns the outcome that package algorithm computes from the state.
func (s *counterState) outcome(l *algorithm.Limit, now int64, op algorithm.Op, amount uint64) algorithm.Outcome {
	if l.Kind == algorithm.SlidingWindow {
		state := s.slidingState(l, now)
		return state.Outcome(l, op, amount)
	}
	st := s.state(l.Kind)
	return st.Take(l, now, op, amount)
}

// slidingState reads the state of a sliding_window. After the count come the instants in µs, or -1, of the newest hit,
// the newest hit after the charge, and the hits that must leave the window to make room for the amount and for one
// unit.
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
