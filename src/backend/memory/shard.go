package memory

import (
	"math"
	"math/bits"
	"slices"
	"sync"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// slot is one counter. It has no pointers, so the garbage collector skips the tables.
type slot struct {
	idHash uint64 // the hash of the counter's id.
	// the tag of the counter's id, with the form and the rank in the low bits. It is 0 in an empty slot.
	tagFormRank   uint32
	lastUseSecond uint32 // the Unix time of the last hit other than a look.
	stateOrIndex  uint64 // the counter's state if that fits, and else where the state is in shard.overflow.
	expiresAt     int64  // the instant, in Unix nanoseconds, from which another counter may use the slot.
}

const (
	slotBytes     = 32 // the size of a slot in memory.
	minTableSlots = 4  // the number of slots in the smallest table.
)

// The form of a slot says where the state of its counter is.
const (
	inlineForm = 1 + iota // slots hold the state.
	wideForm              // wideForm slots have the state in overflow.wideStates.items[stateOrIndex].
	logForm               // logForm slots have the state in overflow.logs.items[stateOrIndex].

	heldForm = 1 << 4 // slots have the state in overflow.heldStates.items[stateOrIndex].

	formMask = 3 | heldForm
)

func (sl *slot) form() uint32 { return sl.tagFormRank & formMask }

func (sl *slot) setForm(form uint32) { sl.tagFormRank = sl.tagFormRank&^formMask | form }

// id returns the id of the counter of sl.
func (sl *slot) id() counterID { return counterID{sl.idHash, sl.tagFormRank &^ (formMask | rankMask)} }

func (sl *slot) hasID(id counterID) bool {
	return sl.idHash == id.hash && sl.tagFormRank&^(formMask|rankMask) == id.tag
}

func (sl *slot) isLive(now int64) bool { return sl.tagFormRank != 0 && sl.expiresAt > now }

// shard is an open-addressed hash table with linear probing. A slot that a counter has taken stays taken until the
// table is rebuilt or compacted, so chains never break. A new counter uses an expired slot on its way.
type shard struct {
	mu         sync.Mutex // must be held by callers of all methods.
	slots      []slot
	budget     *memoryBudget
	overflow   *overflowStates // nil while all state is in the slots.
	names      *nameLog        // nil if the store keeps no names.
	takenSlots int32           // the number of slots that are not empty.
	writeCount uint8           // counts writes for countWrite, and wraps around.
	_          [3]byte         // The padding makes a shard as large as a cache line.
}

// applyHit applies h to its counter. Fixed windows, the most common kind, take a short path.
func (sh *shard) applyHit(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	if h.Window != 0 {
		return sh.applyWindowRefund(*h, id, now)
	}
	if h.Limit.Hold > 0 {
		return sh.applyHeldHit(h, id, now)
	}
	switch h.Limit.Kind {
	case algorithm.FixedWindow:
	case algorithm.SlidingWindow:
		return sh.applySlidingHit(h, id, now)
	default:
		return sh.applyPackedHit(h, id, now)
	}
	sl, expired := sh.findSlot(id, now)
	var st algorithm.FixedState
	if sl != nil {
		st = sh.fixedState(sl)
	}
	after, v := algorithm.TakeFixed(h.Limit, st.CountUnder(h.Limit, h.Op), now, h.Op, h.Amount)
	if after != v.Before {
		if sl == nil {
			sl = sh.createSlot(h, id, expired, now)
		}
		if v.Over || st.Refused > 0 {
			st.Record(h.Limit, &v)
			sh.setFixedState(sl, &st)
		} else {
			sl.stateOrIndex = after
		}
		sl.expiresAt = now + int64(v.ResetAfter) + sh.budget.graceNanos
	}
	sl.recordUse(h, &v, now)
	return v
}

// applyWindowRefund is applyHit for a refund of units that one window counted.
func (sh *shard) applyWindowRefund(h backend.Hit, id counterID, now int64) algorithm.Outcome {
	st := sh.counterState(h.Limit, id, now)
	h.Amount, h.Window = h.AmountIn(&st, now), 0
	return sh.applyHit(&h, id, now)
}

// applyPackedHit is apply for the kinds whose state is packed into a slot.
func (sh *shard) applyPackedHit(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	sl, expired := sh.findSlot(id, now)
	var st algorithm.State
	if sl != nil {
		st = sh.unpackState(h.Limit, sl)
	}
	arrival, first, buckets := st.GCRA, st.FirstHit, st.SlidingCounter
	v := st.Take(h.Limit, now, h.Op, h.Amount)
	// Even a look may change a state that is too far ahead of the clock.
	if v.Charged || st.GCRA != arrival || st.FirstHit != first || st.SlidingCounter != buckets {
		if sl == nil {
			sl = sh.createSlot(h, id, expired, now)
		}
		sh.packState(h.Limit, sl, &st)
	}
	sl.recordUse(h, &v, now)
	return v
}

// unixSecond returns an instant in seconds since the Unix epoch.
func unixSecond(now int64) uint32 { return uint32(now / 1e9) }

// firstSlotIndex returns the index of the slot at which the search for a hash starts: its high bits
// scaled to the length of the table, which need not be a power of two.
func (sh *shard) firstSlotIndex(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(sh.slots)))
	return int(hi)
}

// findSlot returns the live slot of id. If there is none, it returns an expired slot that id may use, if there is one:
// its own, so that a counter never has two slots when the clock is set back, or else the first one on the way.
func (sh *shard) findSlot(id counterID, now int64) (live, expired *slot) {
	if len(sh.slots) == 0 {
		return nil, nil
	}
	for i := sh.firstSlotIndex(id.hash); ; i++ {
		if i == len(sh.slots) {
			i = 0
		}
		sl := &sh.slots[i]
		switch {
		case sl.tagFormRank == 0:
			return nil, expired
		case sl.hasID(id):
			if sl.expiresAt <= now {
				return nil, sl
			}
			return sl, nil
		case sl.expiresAt <= now && expired == nil:
			expired = sl
		}
	}
}

// createSlot returns a slot for the counter of h, whose id is id: the expired one that findSlot returned, or an empty
// one.
func (sh *shard) createSlot(h *backend.Hit, id counterID, expired *slot, now int64) *slot {
	if sh.names == nil {
		return sh.takeSlot(id, expired, now)
	}
	var ref nameRef
	if expired != nil && expired.hasID(id) {
		ref = *sh.slotRef(expired) // A counter keeps its name.
	}
	if ref == 0 {
		e := nameOf(h)
		expired, ref = sh.addName(&e, expired, now)
	}
	sl := sh.takeSlot(id, expired, now)
	*sh.slotRef(sl) = ref
	return sl
}

// addName adds the name of a counter before it has a slot, and returns where it is. It also returns expired, or nil if
// the slot was moved meanwhile.
func (sh *shard) addName(e *nameEntry, expired *slot, now int64) (*slot, nameRef) {
	if size := maxEntryBytes - maxNameBytes + len(e.name); len(sh.names.entries)+size > cap(sh.names.entries) &&
		sh.makeNameRoom(size, now) {
		expired = nil
	}
	return expired, sh.names.append(e)
}

// takeSlot is createSlot without the name.
func (sh *shard) takeSlot(id counterID, expired *slot, now int64) *slot {
	sl := expired
	if sl == nil {
		if int(sh.takenSlots+1)*5 > len(sh.slots)*4 {
			sh.makeRoom(now)
		}
		sl = sh.findEmptySlot(id.hash)
		sh.takenSlots++
	} else {
		sh.freeOverflowState(sl)
	}
	*sl = slot{idHash: id.hash, tagFormRank: id.tag | inlineForm, lastUseSecond: unixSecond(now)}
	return sl
}

// findEmptySlot returns the first empty slot on the way of a hash.
func (sh *shard) findEmptySlot(hash uint64) *slot {
	i := sh.firstSlotIndex(hash)
	for sh.slots[i].tagFormRank != 0 {
		if i++; i == len(sh.slots) {
			i = 0
		}
	}
	return &sh.slots[i]
}

// dropCounter makes a counter expire, and frees its overflow.
func (sh *shard) dropCounter(sl *slot) {
	sh.freeOverflowState(sl)
	sl.expiresAt = 0
}

// dropExpired drops the expired counters. It returns how many are live, how many of these were last used before the
// second idleBefore, and the earliest second of last use.
func (sh *shard) dropExpired(now int64, idleBefore uint32) (live, idle int, oldestUse uint32) {
	oldestUse = math.MaxUint32
	for i := range sh.slots {
		sl := &sh.slots[i]
		if !sl.isLive(now) {
			sh.dropCounter(sl)
			continue
		}
		live++
		oldestUse = min(oldestUse, sl.lastUseSecond)
		if sl.lastUseSecond < idleBefore {
			idle++
		}
	}
	return live, idle, oldestUse
}

// makeRoom drops expired counters. The table shrinks if most of it is then free, or else doubles while the budget
// allows. At the cap an eighth of the slots is evicted and the rest is moved in place, so a flood of new counters
// allocates nothing.
func (sh *shard) makeRoom(now int64) {
	live, _, _ := sh.dropExpired(now, 0)
	size, most := len(sh.slots), sh.budget.slotsPerShard(sh.names.averageNameBytes())
	switch {
	case size == 0 || live*8 < size:
		sh.rebuildTable(live*4, now) // the new table is a quarter full
		return
	case live*8 > size*5 && size < most-most/8: // the new table is larger by an eighth or more
		sh.rebuildTable(min(max(size*5/4, size+minTableSlots), most), now)
		return
	case live*8 > size*5:
		sh.evictCounters(now, live-size*5/8)
	}
	sh.compactTable(now)
}

// compactTable empties the slots of all dropped counters, and moves the others within the table. It starts at an empty
// slot, behind which each chain is whole. So a slot moves towards the start of its chain, or stays where it is.
func (sh *shard) compactTable(now int64) {
	start := 0
	for sh.slots[start].tagFormRank != 0 {
		start++
	}
	n := len(sh.slots)
	for k := range n {
		sl := &sh.slots[(start+k)%n]
		if sl.tagFormRank == 0 {
			continue
		}
		if !sl.isLive(now) {
			*sl = slot{}
			sh.takenSlots--
			if sh.names != nil {
				*sh.slotRef(sl) = 0
			}
			continue
		}
		moved := *sl
		*sl = slot{}
		to := sh.findEmptySlot(moved.idHash)
		*to = moved
		if sh.names != nil {
			ref := *sh.slotRef(sl)
			*sh.slotRef(sl) = 0
			*sh.slotRef(to) = ref
		}
	}
}

// shrinkTable frees the memory of expired counters. If the store stays above its cap, it evicts an eighth of the live
// counters, or all that were last used before the second idleBeforeSecond if they are more. It returns the earliest
// second of last use.
func (sh *shard) shrinkTable(now int64, idleBefore uint32) (oldestUse uint32) {
	live, idle, oldestUse := sh.dropExpired(now, idleBefore)
	if live == 0 {
		sh.freeAllMemory()
		return oldestUse
	}
	wantSlots := func() int { return min(len(sh.slots), max(live*3/2+1, minTableSlots)) }
	if sh.budget.isExceeded(int64(len(sh.slots)-wantSlots()) * slotBytes) {
		evicted := max(live/8, idle)
		sh.evictCounters(now, evicted)
		live -= evicted
	}
	if size := wantSlots(); size < len(sh.slots) {
		sh.rebuildTable(size, now)
	}
	sh.shrinkNames()
	return oldestUse
}

// freeAllMemory drops all counters and their names.
func (sh *shard) freeAllMemory() {
	sh.freeMemory()
	if sh.names != nil {
		sh.resizeRefs(0)
		sh.resizeNames(0)
	}
}

// freeMemory drops all counters. Names stay.
func (sh *shard) freeMemory() {
	sh.budget.usedBytes.Add(int64(-len(sh.slots)) * slotBytes)
	if sh.overflow != nil {
		sh.budget.addOverflowBytes(-sh.overflow.budgetedBytes)
	}
	sh.slots, sh.takenSlots, sh.overflow = nil, 0, nil
}

// rebuildTable moves all live counters to a new table of at least size slots, and at least minTableSlots.
func (sh *shard) rebuildTable(size int, now int64) {
	old, oldOverflow := sh.slots, sh.overflow
	sh.freeMemory()
	sh.slots = slices.Grow([]slot(nil), roundToBlock(max(size, minTableSlots)*slotBytes)/slotBytes)
	sh.slots = sh.slots[:cap(sh.slots)]
	sh.budget.usedBytes.Add(int64(len(sh.slots)) * slotBytes)
	var oldRefs []nameRef
	if sh.names != nil {
		oldRefs = sh.names.refs
		sh.resizeRefs(len(sh.slots))
	}
	for i := range old {
		if !old[i].isLive(now) {
			continue
		}
		sl := sh.findEmptySlot(old[i].idHash)
		*sl = old[i]
		sh.takenSlots++
		if sh.names != nil {
			*sh.slotRef(sl) = oldRefs[i]
		}
		switch sl.form() {
		case wideForm:
			sl.stateOrIndex = sh.ensureOverflow().wideStates.addItem(oldOverflow.wideStates.items[sl.stateOrIndex])
		case logForm:
			log := oldOverflow.logs.items[sl.stateOrIndex]
			sl.stateOrIndex = sh.ensureOverflow().logs.addItem(log)
			sh.overflow.stateBytes += log.Bytes()
		case heldForm:
			held := oldOverflow.heldStates.items[sl.stateOrIndex]
			sl.stateOrIndex = sh.ensureOverflow().heldStates.addItem(held)
			sh.overflow.stateBytes += held.Bytes()
		}
	}
	sh.updateOverflowBytes()
}
