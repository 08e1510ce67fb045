package memory

import (
	"sync/atomic"
	"time"
)

// budget is how much memory a store has, and takes, and how long counters may
// stay.
//
// Tables share alike, as keys are spread evenly; logs do not, as one key may
// have a thousand times as much as another. So logs take what they need, and
// each table may have its share of the rest. When that is too much in all, the
// shards give some back in turn, each what has been idle longest in it.
type budget struct {
	max     int64
	grace   time.Duration
	shards  int64
	total   atomic.Int64 // bytes of tables and what is beside them
	beside  atomic.Int64 // bytes of the latter
	evicted atomic.Int64
}

func (b *budget) addTable(bytes int64) { b.total.Add(bytes) }

func (b *budget) addBeside(bytes int64) {
	b.total.Add(bytes)
	b.beside.Add(bytes)
}

// over says whether the store is above its cap, once so many bytes are given
// back.
func (b *budget) over(back int64) bool { return b.total.Load()-back > b.max }

// slotsEach is how many slots each shard may have.
func (b *budget) slotsEach() int {
	return int(min(max(b.max-b.beside.Load(), 0)/slotBytes/b.shards, maxSlots))
}

// Keys whose logs have expired may never come again, so every sweepEvery-th write
// to a shard looks at the next sweepSlots slots of the store: four slots a write.
// In steady traffic a log is gone after as many writes as a fourth of all slots. A
// look at a shard counts as sweepLeast slots at least.
const (
	sweepEvery = 16
	sweepSlots = 4 * sweepEvery
	sweepLeast = 8
)

// due counts the writes to a shard, and says when to sweep. mu must be held.
func (sh *shard) due() bool {
	sh.writes++
	return sh.writes%sweepEvery == 0
}

// tidy sees to what a write leaves to be done. No shard's lock may be held.
func (s *Store) tidy(due bool, now int64) {
	if s.budget.over(0) {
		s.reclaim(now)
	}
	if !due || s.budget.beside.Load() == 0 {
		return
	}
	for seen := 0; seen < sweepSlots; {
		sh := &s.shards[s.swept.Add(1)%uint32(len(s.shards))]
		sh.mu.Lock()
		seen += max(sh.sweep(now), sweepLeast)
		sh.mu.Unlock()
	}
}

// sweep lets go of the logs of a few slots that have expired, and returns how many
// slots it looked at. When it has met hardly any live slots in the whole table, the
// table shrinks.
func (sh *shard) sweep(now int64) (seen int) {
	b := sh.beside
	if b == nil {
		return 0
	}
	n := min(sweepSlots, len(sh.slots))
	for range n {
		if b.next >= len(sh.slots) {
			b.next, b.met = 0, 0
		}
		sl := &sh.slots[b.next]
		b.next++
		if sl.live(now) {
			b.met++
		} else if sl.form() > here {
			sh.release(sl)
		}
	}
	if b.next >= len(sh.slots) && b.met*8 < len(sh.slots) && len(sh.slots) > minSlots {
		sh.makeRoom(now)
	}
	return n
}

// reclaimSlots is how many slots one call looks through to bring the store
// below its cap again, which takes some milliseconds; the next write goes on.
const reclaimSlots = 1 << 18

// reclaimer is where the store is in giving memory back: it goes round all shards
// again and again.
type reclaimer struct {
	next   int    // the next shard
	rounds int    // that were completed since the store was below its cap
	oldest uint32 // second in which the longest idle counter was, seen in this round
	before uint32 // see shed
}

// reclaim brings the store below its cap. No shard's lock may be held.
func (s *Store) reclaim(now int64) {
	if !s.reclaiming.TryLock() {
		return // another goroutine does already
	}
	defer s.reclaiming.Unlock()
	r := &s.reclaimer
	for seen := 0; seen < reclaimSlots && s.budget.over(0); {
		if r.next == len(s.shards) {
			r.next = 0
			if r.rounds++; r.rounds > 1 {
				// An eighth of a few is none, and so it was everywhere. Now as many go as
				// have been idle for three quarters of the longest time.
				r.before = r.oldest + (second(now)-r.oldest)/4 + 1
			}
			r.oldest = second(now)
		}
		sh := &s.shards[r.next]
		r.next++
		sh.mu.Lock()
		seen += max(len(sh.slots), 1)
		r.oldest = min(r.oldest, sh.shed(now, r.before))
		sh.mu.Unlock()
	}
	if !s.budget.over(0) {
		r.rounds, r.before = 0, 0
	}
}
