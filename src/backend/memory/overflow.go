package memory

import (
	"math"
	"time"
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// overflowStates holds the states of a shard that do not fit into slots. A slot's count is the index of its state.
type overflowStates struct {
	wideStates    arena[wideState]
	logs          arena[algorithm.Log]
	heldStates    arena[algorithm.HeldState]
	stateBytes    int64 // the size of the memory that logs and heldStates refer to.
	budgetedBytes int64 // the size of this overflow as the budget knows it.
}

// wideState is a state of several numbers; see pack.
type wideState [3]int64

// arena is a list of values with gaps that are used again.
type arena[T any] struct {
	items       []T
	freeIndexes []uint32
}

// addItem stores v and returns its index.
func (a *arena[T]) addItem(v T) uint64 {
	if n := len(a.freeIndexes); n > 0 {
		i := a.freeIndexes[n-1]
		a.freeIndexes = a.freeIndexes[:n-1]
		a.items[i] = v
		return uint64(i)
	}
	a.items = append(a.items, v)
	return uint64(len(a.items) - 1)
}

// removeItem makes a gap at i. If nothing else is left, it frees all memory.
func (a *arena[T]) removeItem(i uint64) {
	var zero T
	a.items[i] = zero
	a.freeIndexes = append(a.freeIndexes, uint32(i))
	if len(a.items) == len(a.freeIndexes) {
		*a = arena[T]{}
	}
}

func (a *arena[T]) sizeBytes() int64 {
	var v T
	return int64(cap(a.items))*int64(unsafe.Sizeof(v)) + int64(cap(a.freeIndexes))*4
}

func (o *overflowStates) sizeBytes() int64 {
	return int64(unsafe.Sizeof(*o)) + o.stateBytes +
		o.wideStates.sizeBytes() + o.logs.sizeBytes() + o.heldStates.sizeBytes()
}

// ensureOverflow returns sh.overflow, which it creates if there is none.
func (sh *shard) ensureOverflow() *overflowStates {
	if sh.overflow == nil {
		sh.overflow = new(overflowStates)
	}
	return sh.overflow
}

// updateOverflowBytes tells the budget how the size of the overflow has changed.
func (sh *shard) updateOverflowBytes() {
	o := sh.overflow
	if o == nil {
		return
	}
	if n := o.sizeBytes(); n != o.budgetedBytes {
		sh.budget.addOverflowBytes(n - o.budgetedBytes)
		o.budgetedBytes = n
	}
}

// freeOverflowState frees the overflow of sl, so that the caller can put a state into the slot itself.
func (sh *shard) freeOverflowState(sl *slot) {
	switch o := sh.overflow; sl.form() {
	case wideForm:
		o.wideStates.removeItem(sl.stateOrIndex)
	case logForm:
		o.stateBytes -= o.logs.items[sl.stateOrIndex].Bytes()
		o.logs.removeItem(sl.stateOrIndex)
	case heldForm:
		o.stateBytes -= o.heldStates.items[sl.stateOrIndex].Bytes()
		o.heldStates.removeItem(sl.stateOrIndex)
	default:
		return
	}
	sl.setForm(inlineForm)
	sh.updateOverflowBytes()
}

// setWideState stores w as the state of sl in the overflow. sl must not have a log.
func (sh *shard) setWideState(sl *slot, w wideState) {
	if sl.form() == wideForm {
		sh.overflow.wideStates.items[sl.stateOrIndex] = w
		return
	}
	sl.stateOrIndex = sh.ensureOverflow().wideStates.addItem(w)
	sl.setForm(wideForm)
	sh.updateOverflowBytes()
}

// evictIfLarge drops a counter whose state takes so many bytes in the overflow, if they are more than half of the
// memory.
func (sh *shard) evictIfLarge(sl *slot, bytes int64) {
	if bytes > sh.budget.maxBytes/2 {
		sh.dropCounter(sl)
		sh.budget.evictedCounters.Add(1)
	}
}

// readClockAgain returns the time of a hit that comes at now, before the newest hit of its counter. The other hit may
// have read the clock later and got the lock first. Then the clock is beyond the newest hit by now, unless it was set
// back.
func (sh *shard) readClockAgain(now int64) int64 {
	if sh.budget.usesVirtualTime.Load() {
		return now
	}
	return max(now, time.Now().UnixNano())
}

// applySlidingHit is apply for a sliding window, whose log is changed in place.
func (sh *shard) applySlidingHit(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	sl, expired := sh.findSlot(id, now)
	var empty algorithm.Log
	log := &empty
	if sl != nil {
		log = &sh.overflow.logs.items[sl.stateOrIndex]
	}
	before, newest := log.Bytes(), log.Newest()
	if newest > now {
		now = sh.readClockAgain(now)
	}
	v := algorithm.TakeSliding(h.Limit, log, now, h.Op, h.Amount)
	setBackBy := max(newest-log.Newest(), 0)
	if !v.Charged && setBackBy == 0 {
		sl.recordUse(h, &v, now)
		return v
	}
	after := log.Bytes()
	if sl == nil {
		sl = sh.createSlot(h, id, expired, now)
		sl.stateOrIndex = sh.ensureOverflow().logs.addItem(empty)
		sl.setForm(logForm)
	}
	sl.recordUse(h, &v, now)
	// An earlier hit may have come with a longer minimum interval.
	sl.expiresAt = max(sl.expiresAt-setBackBy, now+int64(v.ResetAfter)+sh.budget.graceNanos)
	sh.overflow.stateBytes += after - before
	sh.updateOverflowBytes()
	if log.Len() == 0 {
		sh.dropCounter(sl)
	} else {
		sh.evictIfLarge(sl, after)
	}
	return v
}

// applyHeldHit is apply for a limit with holds, whose state is changed in place. Even a look removes holds that have
// expired.
func (sh *shard) applyHeldHit(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	sl, expired := sh.findSlot(id, now)
	if sl == nil {
		return sh.createHeldState(h, id, expired, now)
	}
	held := &sh.overflow.heldStates.items[sl.stateOrIndex]
	before := held.Bytes()
	v := held.Take(h.Limit, now, h.Op, h.Amount, h.HoldID)
	sl.recordUse(h, &v, now)
	if v.Charged || v.HoldsExpired > 0 {
		// If a clock was set back, what an earlier hit has charged may expire later.
		sl.expiresAt = max(sl.expiresAt, sh.heldExpiry(h, held, &v, now))
	}
	if after := held.Bytes(); after != before {
		sh.overflow.stateBytes += after - before
		sh.updateOverflowBytes()
		sh.evictIfLarge(sl, after)
	}
	return v
}

// createHeldState is applyHeldHit for a counter that has no slot.
func (sh *shard) createHeldState(h *backend.Hit, id counterID, expired *slot, now int64) algorithm.Outcome {
	var held algorithm.HeldState
	v := held.Take(h.Limit, now, h.Op, h.Amount, h.HoldID)
	if v.Charged {
		sl := sh.createSlot(h, id, expired, now)
		sl.recordUse(h, &v, now)
		sl.expiresAt = sh.heldExpiry(h, &held, &v, now)
		addLongState(sh, &sh.ensureOverflow().heldStates, sl, heldForm, held, held.Bytes())
	}
	return v
}

// heldExpiry returns the slot.expiresAt of a counter after a hit.
func (sh *shard) heldExpiry(h *backend.Hit, held *algorithm.HeldState, v *algorithm.Outcome, now int64) int64 {
	grace := sh.budget.graceNanos
	return min(held.EmptyAt(h.Limit, now, v), math.MaxInt64-grace) + grace
}

// addLongState stores state in a, a list of sh.overflow, as the state of sl, which has none yet. state refers to so
// many bytes of memory. It drops the counter if they are more than half of the memory.
func addLongState[T any](sh *shard, a *arena[T], sl *slot, form uint32, state T, bytes int64) {
	sl.stateOrIndex = a.addItem(state)
	sl.setForm(form)
	sh.overflow.stateBytes += bytes
	sh.updateOverflowBytes()
	sh.evictIfLarge(sl, bytes)
}
