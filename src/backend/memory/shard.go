package memory

import (
	"math"
	"math/bits"
	"sync"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// slot is one counter. It holds no pointer, so the garbage collector never
// looks into a table, however large. What count means depends on the kind of
// limit; see pack.
type slot struct {
	hash    uint64
	tag     uint32 // its low bits are the form, and the rank; 0: free
	used    uint32 // second in which it was last asked, for eviction
	count   uint64
	expires int64 // nanoseconds since the epoch; from then on as good as free
}

const (
	slotBytes = 32 // the size of a slot; a test holds it to that
	minSlots  = 4
)

// The forms of a slot say where its state is.
const (
	here   = 1 + iota // in the slot
	wide              // in the shard's wides, at index count
	logged            // in the shard's logs, at index count

	formBits = 3
)

func (sl *slot) form() uint32 { return sl.tag & formBits }

func (sl *slot) setForm(form uint32) { sl.tag = sl.tag&^formBits | form }

func (sl *slot) is(id counterID) bool {
	return sl.hash == id.hash && sl.tag&^(formBits|rankBits) == id.tag
}

// live says whether the slot is a counter that still counts.
func (sl *slot) live(now int64) bool { return sl.tag != 0 && sl.expires > now }

// shard is an open-addressed hash table with linear probing. A slot that was
// ever taken stays taken until the table is rebuilt or compacted, so chains never
// break; an expired one is taken over by the next newcomer that passes it.
type shard struct {
	mu     sync.Mutex
	slots  []slot
	taken  int
	budget *budget
	beside *beside // nil: all state is in the slots
	writes uint8   // counts for Store.tidy
	_      [7]byte // a cache line of its own
}

// apply does what h asks for. mu must be held, as for all methods below. Most
// rules are fixed windows, which go the shortest way.
func (sh *shard) apply(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	if h.Limit.Kind != algorithm.FixedWindow {
		return sh.applyOther(h, id, now)
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
	sl.expires = now + int64(v.ResetAfter+sh.budget.grace)
	return v
}

// applyOther is apply for all kinds but fixed windows.
func (sh *shard) applyOther(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	if h.Limit.Kind == algorithm.SlidingWindow {
		return sh.applySliding(h, id, now)
	}
	sl, free := sh.find(id, now)
	var st state
	if sl != nil {
		st = sh.unpack(h.Limit, sl)
	}
	arrival, first := st.arrival, st.first
	v := st.take(h.Limit, now, h.Op, h.Amount)
	if !v.Charged && st.arrival == arrival && st.first == first { // a refused hit may pull in times that are too far ahead
		sl.note(h, &v, now)
		return v
	}
	if sl == nil {
		sl = sh.create(id, free, now)
	}
	sh.pack(h.Limit, sl, &st)
	sl.note(h, &v, now)
	return v
}

// second is the time of use in a slot.
func second(now int64) uint32 { return uint32(now / 1e9) }

// home is the first place to look for a hash: its high bits scaled to the
// table, whose length need not be a power of two.
func (sh *shard) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(sh.slots)))
	return int(hi)
}

// find returns the live slot of id, or nil and, if there is one on the way, an
// expired slot that id may take over: its own, so that no counter has two when
// a clock steps back, or else the first.
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

// create takes a slot for id: the free one that find saw, or a fresh one.
func (sh *shard) create(id counterID, free *slot, now int64) *slot {
	if free == nil {
		if (sh.taken+1)*4 > len(sh.slots)*3 {
			sh.makeRoom(now)
		}
		free = sh.fresh(id.hash)
		sh.taken++
	} else if free.form() != here {
		sh.release(free)
	}
	*free = slot{hash: id.hash, tag: id.tag | here, used: second(now)}
	return free
}

// fresh is the first slot on the way of hash that was never taken.
func (sh *shard) fresh(hash uint64) *slot {
	i := sh.home(hash)
	for sh.slots[i].tag != 0 {
		if i++; i == len(sh.slots) {
			i = 0
		}
	}
	return &sh.slots[i]
}

// release ends a slot, and gives back what it has beside the table.
func (sh *shard) release(sl *slot) {
	sh.bringHome(sl)
	sl.expires = 0
}

// countLive is how many slots still count.
func (sh *shard) countLive(now int64) int {
	live := 0
	for i := range sh.slots {
		if sh.slots[i].live(now) {
			live++
		}
	}
	return live
}

// makeRoom drops what has expired from the table, which gets smaller if that frees
// most of it, and else twice as large while the budget allows. At the cap it evicts
// an eighth of the slots instead, and moves the rest in place: a flood of new
// counters then allocates nothing.
func (sh *shard) makeRoom(now int64) {
	live, size, most := sh.countLive(now), len(sh.slots), sh.budget.slotsEach()
	switch {
	case size == 0 || live*8 < size:
		sh.rebuild(live*4, now) // a quarter full
		return
	case live*2 > size && size < most-most/8: // what is gained is worth it
		sh.rebuild(min(size*2, most), now)
		return
	case live*8 > size*5: // as large as may be, and still too full
		sh.evict(now, live-size*5/8)
	}
	sh.compact(now)
}

// compact removes all slots that are not live, without a second table. It starts
// behind a slot that was never taken, so each chain is behind it as a whole: a slot
// that is taken out and put in again lands at its old place or further ahead.
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
		*sh.fresh(moved.hash) = moved
	}
}

// shed gives memory back: what has expired, and if that is not enough an eighth of
// the counters, or as many as were last asked before the given second. It returns
// the second in which the longest idle was.
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
	fit := func() int { return min(len(sh.slots), max(live*3/2+1, minSlots)) }
	if sh.budget.over(int64(len(sh.slots)-fit()) * slotBytes) {
		drop := max(live/8, idle)
		sh.evict(now, drop)
		live -= drop
	}
	if size := fit(); size < len(sh.slots) {
		sh.rebuild(size, now)
	}
	return oldest
}

// clear gives all memory back.
func (sh *shard) clear() {
	sh.budget.addTable(int64(-len(sh.slots)) * slotBytes)
	if sh.beside != nil {
		sh.budget.addBeside(-sh.beside.counted)
	}
	sh.slots, sh.taken, sh.beside = nil, 0, nil
}

// rebuild makes a table of the given size, or the smallest one, of all that is
// live.
func (sh *shard) rebuild(size int, now int64) {
	old, canary := sh.slots, sh.beside
	sh.clear()
	sh.slots = make([]slot, max(size, minSlots))
	sh.budget.addTable(int64(len(sh.slots)) * slotBytes)
	for i := range old {
		if !old[i].live(now) {
			continue
		}
		sl := sh.fresh(old[i].hash)
		*sl = old[i]
		sh.taken++
		switch sl.form() {
		case wide:
			sl.count = sh.side().wides.put(canary.wides.items[sl.count])
		case logged:
			sl.count = sh.side().putLog(canary.logs.items[sl.count])
		}
	}
	sh.weigh()
}
