package memory

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"ratelimit/src/algorithm"
)

// slot is one counter. It holds no pointer, so the garbage collector never
// looks into a table, however large.
type slot struct {
	hash    uint64
	tag     uint32 // 0: free
	used    uint32 // second of the last change, for eviction
	count   uint64
	expires int64 // nanoseconds since the epoch; from then on as good as free
}

const (
	slotBytes = 32 // the size of a slot; a test holds it to that
	minSlots  = 16
)

// shard is an open-addressed hash table with linear probing. A slot that was
// ever taken stays taken until the table is rebuilt, so chains never break; an
// expired one is taken over by the next newcomer that passes it.
type shard struct {
	mu       sync.Mutex
	slots    []slot
	taken    int
	maxSlots int
	evicted  *atomic.Int64
	_        [64 - 56]byte // a cache line of its own
}

// apply does what h asks for. mu must be held, as for all methods below.
func (sh *shard) apply(h *algorithm.Hit, id id, now int64) algorithm.Verdict {
	sl, free := sh.find(id, now)
	var count uint64
	if sl != nil {
		count = sl.count
	}
	after, v := algorithm.TakeFixed(h.Limit, count, now, h.Op, h.Amount)
	if after == count {
		return v
	}
	if sl == nil {
		sl = sh.create(id, free, now)
	}
	sl.count = after
	sl.used = uint32(now / 1e9)
	sl.expires = now + int64(v.ResetAfter+grace)
	return v
}

// count is the current count of a key, 0 for one that is not there.
func (sh *shard) count(id id, now int64) uint64 {
	if sl, _ := sh.find(id, now); sl != nil {
		return sl.count
	}
	return 0
}

// home is the first place to look for a hash: its high bits scaled to the
// table, whose length need not be a power of two.
func (sh *shard) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(len(sh.slots)))
	return int(hi)
}

// find returns the live slot of id, or nil and, if there is one on the way, an
// expired slot that id may take over.
func (sh *shard) find(id id, now int64) (live, free *slot) {
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
		case sl.expires <= now:
			if free == nil {
				free = sl
			}
		case sl.hash == id.hash && sl.tag == id.tag:
			return sl, nil
		}
	}
}

// create takes a slot for id: the free one that find saw, or a fresh one.
func (sh *shard) create(id id, free *slot, now int64) *slot {
	if free == nil {
		if (sh.taken+1)*4 > len(sh.slots)*3 {
			sh.makeRoom(now)
		}
		i := sh.home(id.hash)
		for sh.slots[i].tag != 0 {
			if i++; i == len(sh.slots) {
				i = 0
			}
		}
		free = &sh.slots[i]
		sh.taken++
	}
	*free = slot{hash: id.hash, tag: id.tag}
	return free
}

// makeRoom rebuilds the table without what has expired: at the same size or
// smaller if that frees enough, else doubled, and at the cap without the
// eighth that has been idle longest.
func (sh *shard) makeRoom(now int64) {
	live := 0
	for i := range sh.slots {
		if sh.slots[i].tag != 0 && sh.slots[i].expires > now {
			live++
		}
	}
	size := len(sh.slots)
	switch {
	case live*8 < size:
		size = live * 4 // a quarter full
	case live*2 > size && size < sh.maxSlots:
		size = min(size*2, sh.maxSlots)
	case live*8 > size*5: // as large as may be, and still too full
		live = sh.evict(now, live, size*5/8)
	}
	old := sh.slots
	sh.slots = make([]slot, max(size, minSlots))
	sh.taken = live
	for i := range old {
		if old[i].tag == 0 || old[i].expires <= now {
			continue
		}
		j := sh.home(old[i].hash)
		for sh.slots[j].tag != 0 {
			if j++; j == len(sh.slots) {
				j = 0
			}
		}
		sh.slots[j] = old[i]
	}
}

// evict lets the longest idle of the live counters expire until only keep are
// left, and returns keep.
func (sh *shard) evict(now int64, live, keep int) int {
	idle := make([]uint32, 0, live)
	for i := range sh.slots {
		if sh.slots[i].tag != 0 && sh.slots[i].expires > now {
			idle = append(idle, sh.slots[i].used)
		}
	}
	slices.Sort(idle)
	drop := live - keep
	cutoff := idle[drop] // what was used before it goes, and as many of its own second as needed
	older, _ := slices.BinarySearch(idle, cutoff)
	same := drop - older
	for i := range sh.slots {
		sl := &sh.slots[i]
		if sl.tag == 0 || sl.expires <= now || sl.used > cutoff {
			continue
		}
		if sl.used == cutoff {
			if same == 0 {
				continue
			}
			same--
		}
		sl.expires = now
	}
	sh.evicted.Add(int64(drop))
	return keep
}
