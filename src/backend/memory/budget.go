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
	return int(max(b.max-b.beside.Load(), 0) / slotBytes / shardCount)
}

// Keys whose logs have expired may never come again, so every sweepEvery-th write
// to a shard looks at the next sweepSlots slots of some shard: four slots a write.
// In steady traffic a log is gone after as many writes as a fourth of all slots.
const (
	sweepEvery = 16
	sweepSlots = 4 * sweepEvery
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
	if due && s.budget.beside.Load() > 0 {
		sh := &s.shards[s.swept.Add(1)%shardCount]
		sh.mu.Lock()
		sh.sweep(now)
		sh.mu.Unlock()
	}
}

// sweep lets go of the logs of a few slots that have expired. When it has met
// hardly any live slots in the whole table, the table shrinks.
func (sh *shard) sweep(now int64) {
	b := sh.beside
	if b == nil {
		return
	}
	for range sweepSlots {
		if b.next >= len(sh.slots) {
			if b.met*8 < len(sh.slots) && len(sh.slots) > minSlots {
				sh.makeRoom(now)
				return
			}
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
}

// reclaimSlots is how many slots one call looks through to bring the store
// below its cap again, which takes some milliseconds; the next write goes on.
const reclaimSlots = 1 << 18

// reclaim brings the store below its cap. No shard's lock may be held.
func (s *Store) reclaim(now int64) {
	if !s.reclaiming.TryLock() {
		return // somebody does already
	}
	defer s.reclaiming.Unlock()
	seen, before, oldest := 0, uint32(0), second(now)
	for i := 0; i < 2*shardCount && seen < reclaimSlots && s.budget.over(0); i++ {
		if i == shardCount {
			// An eighth of a few is none, and so it was everywhere. Now those go
			// that have been idle for three quarters of the longest time.
			before = oldest + (second(now)-oldest)/4 + 1
		}
		sh := &s.shards[s.next%shardCount]
		s.next++
		sh.mu.Lock()
		seen += len(sh.slots)
		oldest = min(oldest, sh.shed(now, before))
		sh.mu.Unlock()
	}
}
