package memory

import (
	"math"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// packState writes st, which is neither a fixed nor a sliding window, to sl.
//
// Slots have 32 bytes for every kind, so there is one table and one order of eviction. The 16 bytes of count and
// expires hold
//
//	fixed window      the count; the window is part of the id. See setFixedState for refused hits
//	first-hit window  the count, and the end of the window plus the grace
//	sliding counter   both counts, 32 bits each, and the start of the current window plus
//	                  two periods and the grace
//	gcra              the arrival time
//
// The overflow holds, at the cost of a cache miss, buckets with counts of 2^32 or more or an end beyond the year 2262,
// arrivals with a last hit, fixed windows that have refused many hits, and the logs of sliding windows.
func (sh *shard) packState(l *algorithm.Limit, sl *slot, st *algorithm.State) {
	grace := sh.budget.graceNanos
	switch l.Kind {
	case algorithm.FirstHitWindow: // a window with a count of 0 goes on
		sl.stateOrIndex, sl.expiresAt = st.FirstHit.Count, st.FirstHit.WindowEnd+grace
	case algorithm.SlidingWindowCounter:
		b, lasts := st.SlidingCounter, 2*int64(l.Period)+grace
		ends := b.WindowStart <= math.MaxInt64-lasts
		sl.expiresAt = math.MaxInt64
		if ends {
			sl.expiresAt = b.WindowStart + lasts
		}
		if !ends || b.PreviousCount > math.MaxUint32 || b.CurrentCount > math.MaxUint32 {
			sh.setWideState(sl, wideState{b.WindowStart, int64(b.PreviousCount), int64(b.CurrentCount)})
			return
		}
		sh.freeOverflowState(sl)
		sl.stateOrIndex = b.PreviousCount<<32 | b.CurrentCount
	case algorithm.GCRA:
		a := st.GCRA
		sl.expiresAt = a.TAT + grace
		if a.LastHit != 0 {
			sl.expiresAt = max(sl.expiresAt, a.LastHit+int64(l.MinInterval)+grace)
			sh.setWideState(sl, wideState{a.TAT, a.LastHit})
			return
		}
		sh.freeOverflowState(sl)
		sl.stateOrIndex = uint64(a.TAT)
	}
}

// unpackState returns the state of sl, which is live and of l's kind and period. A log shares
// its memory with the slot's own, so it must not be written to.
func (sh *shard) unpackState(l *algorithm.Limit, sl *slot) (st algorithm.State) {
	var w wideState
	if sl.form() == wideForm {
		w = sh.overflow.wideStates.items[sl.stateOrIndex]
	}
	switch l.Kind {
	case algorithm.FixedWindow:
		st.FixedWindow = sh.fixedState(sl)
	case algorithm.FirstHitWindow:
		st.FirstHit = algorithm.FirstHitState{Count: sl.stateOrIndex, WindowEnd: sl.expiresAt - sh.budget.graceNanos}
	case algorithm.SlidingWindowCounter:
		st.SlidingCounter = algorithm.SlidingCounterState{
			WindowStart: w[0], PreviousCount: uint64(w[1]),
			CurrentCount: uint64(w[2]),
		}
		if sl.form() == inlineForm {
			st.SlidingCounter = algorithm.SlidingCounterState{
				WindowStart:   sl.expiresAt - 2*int64(l.Period) - sh.budget.graceNanos,
				PreviousCount: sl.stateOrIndex >> 32, CurrentCount: sl.stateOrIndex & math.MaxUint32,
			}
		}
	case algorithm.GCRA:
		st.GCRA = algorithm.GCRAState{TAT: w[0], LastHit: w[1]}
		if sl.form() == inlineForm {
			st.GCRA.TAT = int64(sl.stateOrIndex)
		}
	case algorithm.SlidingWindow:
		st.SlidingLog = sh.overflow.logs.items[sl.stateOrIndex]
	}
	return st
}

// A fixed window in a slot that has counted refused hits has hasRefused, and three numbers of refusedBits bits.
const (
	hasRefused  = 1 << 63
	refusedBits = 21
	refusedMask = 1<<refusedBits - 1
)

// setFixedState writes s to sl. Without refused hits stateOrIndex is the count. With them it has what was admitted,
// what was refused and the Max of the last refusal, or is in the overflow if one of these is above refusedMask.
func (sh *shard) setFixedState(sl *slot, s *algorithm.FixedState) {
	n, admitted := s.Count, s.Count-s.Refused
	if s.Refused > 0 {
		if (admitted|s.Refused|s.RefusedMax)&^refusedMask != 0 {
			sh.setWideState(sl, wideState{int64(s.Count), int64(s.Refused), int64(s.RefusedMax)})
			return
		}
		n = hasRefused | s.RefusedMax<<(2*refusedBits) | s.Refused<<refusedBits | admitted
	}
	sh.freeOverflowState(sl)
	sl.stateOrIndex = n
}

// fixedState returns the state of sl, a fixed window.
func (sh *shard) fixedState(sl *slot) algorithm.FixedState {
	if sl.form() == wideForm || sl.stateOrIndex&hasRefused != 0 {
		return sh.refusingState(sl)
	}
	return algorithm.FixedState{Count: sl.stateOrIndex}
}

// refusingState is fixedState for a window that has counted refused hits.
func (sh *shard) refusingState(sl *slot) algorithm.FixedState {
	n := sl.stateOrIndex
	if sl.form() == wideForm {
		w := &sh.overflow.wideStates.items[n]
		return algorithm.FixedState{Count: uint64(w[0]), Refused: uint64(w[1]), RefusedMax: uint64(w[2])}
	}
	refused := n >> refusedBits & refusedMask
	return algorithm.FixedState{
		Count: n&refusedMask + refused, Refused: refused,
		RefusedMax: n >> (2 * refusedBits) & refusedMask,
	}
}

// counterState returns the state of id. A log must not be written to.
func (sh *shard) counterState(l *algorithm.Limit, id counterID, now int64) (st algorithm.State) {
	if sl, _ := sh.findSlot(id, now); sl != nil {
		st = sh.unpackState(l, sl)
	}
	return st
}

// lookOutcome returns the outcome of h.AsLook().
func (sh *shard) lookOutcome(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	look := h.AsLook()
	v := sh.applyHit(&look, id, now)
	sl, _ := sh.findSlot(id, now)
	sl.recordUse(h, &v, now)
	return v
}
