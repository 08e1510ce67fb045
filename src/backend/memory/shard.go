package memory

import (
	"math"
	"math/bits"
	"sync"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// slot is one counter. It has no pointers, so the garbage collector skips the tables.
type slot struct {
	hash    uint64
	tag     uint32 // the low bits are the form and the rank; 0: never taken
	used    uint32 // the second in which it was last asked, for eviction
	count   uint64 // see state.pack
	expires int64  // nanoseconds since the Unix epoch; from then on it may be taken over
}

const (
	slotBytes = 32 // the size of a slot
	minSlots  = 4
)

// The form of a slot says where its state is.
const (
	inline = 1 + iota // in the slot
	wide              // in overflow.wides[count]
	logged            // in overflow.logs[count]

	formBits = 3
)

func (sl *slot) form() uint32 { return sl.tag & formBits }

func (sl *slot) setForm(form uint32) { sl.tag = sl.tag&^formBits | form }

func (sl *slot) is(id counterID) bool {
	return sl.hash == id.hash && sl.tag&^(formBits|rankBits) == id.tag
}

func (sl *slot) live(now int64) bool { return sl.tag != 0 && sl.expires > now }

// shard is an open-addressed hash table with linear probing. A slot once taken stays taken
// until the table is rebuilt or compacted, so chains never break. A new counter takes over
// an expired slot on its way.
type shard struct {
	mu       sync.Mutex // must be held by callers of all methods
	slots    []slot
	taken    int
	budget   *budget
	overflow *overflow // nil: all state is in the slots
	writes   uint8     // see sweepDue
	_        [7]byte   // pads to a cache line
}

// apply applies h to its counter. Fixed windows, the most common kind, take a short path.
func (sh *shard) apply(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	switch h.Limit.Kind {
	case algorithm.FixedWindow:
	case algorithm.SlidingWindow:
		return sh.applySliding(h, id, now)
	default:
		return sh.applyState(h, id, now)
	}
	sl, free := sh.find(id, now)
	var count uint64
	if sl != nil {
		count = sl.count
	}
	after, v := algorithm.TakeFixed(h.Limit, count, now, h.Op, h.Amount)
	if after == count {
		sl.note(h, &v, now)
		return v
	}
	if sl == nil {
		sl = sh.create(id, free, now)
	}
	sl.count = after
	sl.note(h, &v, now)
	sl.expires = now + int64(v.ResetAfter) + sh.budget.grace
	return v
}

// applyState is apply for the kinds whose state is packed into a slot.
func (sh *shard) applyState(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	sl, free := sh.find(id, now)
	var st state
	if sl != nil {
		st = sh.unpack(h.Limit, sl)
	}
	arrival, first := st.arrival, st.first
	v := st.apply(h.Limit, now, h.Op, h.Amount)
	// A refused hit may change a state that is too far ahead of the clock.
	if v.Charged || st.arrival != arrival || st.first != first {
		if sl == nil {
			sl = sh.create(id, free, now)
		}
		sh.pack(h.Limit, sl, &st)
	}
	sl.note(h, &v, now)
	return v
}

// second returns the time of use for a slot.
func second(now int64) uint32 { return uint32(now / 1e9) }

// home returns the first place of a hash: its high bits scaled to the length of the table,
// which need not be a power of two.
func (sh *shard) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(sh.slots)))
	return int(hi)
}

// find returns the live slot of id. If there is none, it returns an expired slot that id may
// take over, if there is one: its own, so that a counter never has two when the clock is set
// back, or else the first on the way.
func (sh *shard) find(id counterID, now int64) (live, free *slot) {
	if len(sh.slots) == 0 {
		return nil, nil
	}
	for i := sh.home(id.hash); ; i++ {
		if i == len(sh.slots) {
			i = 0
		}
		sl := &sh.slots[i]
		switch {
		case sl.tag == 0:
			return nil, free
		case sl.is(id):
			if sl.expires <= now {
				return nil, sl
			}
			return sl, nil
		case sl.expires <= now && free == nil:
			free = sl
		}
	}
}

// create returns a slot for id: free, the expired one that find returned, or a new one.
func (sh *shard) create(id counterID, free *slot, now int64) *slot {
	if free == nil {
		if (sh.taken+1)*4 > len(sh.slots)*3 {
			sh.makeRoom(now)
		}
		free = sh.untaken(id.hash)
		sh.taken++
	} else {
		sh.makeInline(free)
	}
	*free = slot{hash: id.hash, tag: id.tag | inline, used: second(now)}
	return free
}

// untaken returns the first slot on the way of hash that was never taken.
func (sh *shard) untaken(hash uint64) *slot {
	i := sh.home(hash)
	for sh.slots[i].tag != 0 {
		if i++; i == len(sh.slots) {
			i = 0
		}
	}
	return &sh.slots[i]
}

// release makes sl expire, and frees its overflow.
func (sh *shard) release(sl *slot) {
	sh.makeInline(sl)
	sl.expires = 0
}

// makeRoom drops expired counters. The table shrinks if most of it is then free, or else
// doubles while the budget allows. At the cap an eighth of the slots is evicted and the rest
// is moved in place, so a flood of new counters allocates nothing.
func (sh *shard) makeRoom(now int64) {
	live := 0
	for i := range sh.slots {
		if sh.slots[i].live(now) {
			live++
		}
	}
	size, most := len(sh.slots), sh.budget.slotsEach()
	switch {
	case size == 0 || live*8 < size:
		sh.rebuild(live*4, now) // a quarter full
		return
	case live*2 > size && size < most-most/8: // larger by an eighth at least
		sh.rebuild(min(size*2, most), now)
		return
	case live*8 > size*5:
		sh.evict(now, live-size*5/8)
	}
	sh.compact(now)
}

// compact removes all slots that are not live, in place. It starts behind a slot that was
// never taken, so behind it each chain is whole: a slot that is taken out and put in again
// lands at its old place or further ahead.
func (sh *shard) compact(now int64) {
	start := 0
	for sh.slots[start].tag != 0 {
		start++
	}
	n := len(sh.slots)
	for k := range n {
		sl := &sh.slots[(start+k)%n]
		if sl.tag == 0 {
			continue
		}
		if !sl.live(now) {
			sh.release(sl)
			*sl = slot{}
			sh.taken--
			continue
		}
		moved := *sl
		*sl = slot{}
		*sh.untaken(moved.hash) = moved
	}
}

// shed frees memory: of expired counters, and if that is not enough of an eighth of the
// counters, or of those that were last asked before the given second if they are more. It
// returns the earliest second in which a counter was last asked.
func (sh *shard) shed(now int64, before uint32) (oldest uint32) {
	live, idle := 0, 0
	oldest = math.MaxUint32
	for i := range sh.slots {
		sl := &sh.slots[i]
		if !sl.live(now) {
			sh.release(sl)
			continue
		}
		live++
		oldest = min(oldest, sl.used)
		if sl.used < before {
			idle++
		}
	}
	if live == 0 {
		sh.clear()
		return oldest
	}
	wantSlots := func() int { return min(len(sh.slots), max(live*3/2+1, minSlots)) }
	if sh.budget.exceeded(int64(len(sh.slots)-wantSlots()) * slotBytes) {
		drop := max(live/8, idle)
		sh.evict(now, drop)
		live -= drop
	}
	if size := wantSlots(); size < len(sh.slots) {
		sh.rebuild(size, now)
	}
	return oldest
}

// clear frees all memory of the shard.
func (sh *shard) clear() {
	sh.budget.total.Add(int64(-len(sh.slots)) * slotBytes)
	if sh.overflow != nil {
		sh.budget.addOverflow(-sh.overflow.counted)
	}
	sh.slots, sh.taken, sh.overflow = nil, 0, nil
}

// rebuild moves all live counters to a new table of size slots, or of minSlots.
func (sh *shard) rebuild(size int, now int64) {
	old, outer := sh.slots, sh.overflow
	sh.clear()
	sh.slots = make([]slot, max(size, minSlots))
	sh.budget.total.Add(int64(len(sh.slots)) * slotBytes)
	for i := range old {
		if !old[i].live(now) {
			continue
		}
		sl := sh.untaken(old[i].hash)
		*sl = old[i]
		sh.taken++
		switch sl.form() {
		case wide:
			sl.count = sh.outer().wides.put(outer.wides.items[sl.count])
		case logged:
			log := outer.logs.items[sl.count]
			sl.count = sh.outer().logs.put(log)
			sh.overflow.logBytes += logBytes(&log)
		}
	}
	sh.account()
}
