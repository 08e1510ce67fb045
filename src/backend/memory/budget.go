package memory

import (
	"slices"
	"sync"
	"sync/atomic"
)

// memoryBudget is the memory cap of a store and what is used of it.
//
// Keys are spread evenly, so each table may have an equal share. Logs vary in size a
// thousandfold, so they take what they need, and tables share the rest, but at least a quarter of
// the cap: a shard that must evict from a handful of counters evicts one in use. Above the cap
// the shards shrink in turn; each drops the counters that have been idle for longest in it.
type memoryBudget struct {
	maxBytes        int64 // Config.MaxBytes.
	graceNanos      int64 // Config.ExpiryGrace in nanoseconds.
	numShards       int64
	usedBytes       atomic.Int64 // the size of all tables, names and overflows.
	overflowBytes   atomic.Int64 // the size of all overflows.
	evictedCounters atomic.Int64 // Stats.EvictedKeys.
	usesVirtualTime atomic.Bool  // true if callers have set Batch.Now.
	nameOrders      sync.Pool    // contains *nameOrder.
}

func (b *memoryBudget) addOverflowBytes(bytes int64) {
	b.usedBytes.Add(bytes)
	b.overflowBytes.Add(bytes)
}

// isExceeded reports whether the store is above its cap after it has freed that many bytes.
func (b *memoryBudget) isExceeded(freed int64) bool { return b.usedBytes.Load()-freed > b.maxBytes }

// bytesPerShard returns how much memory each shard may have for its slots and names.
func (b *memoryBudget) bytesPerShard() int {
	return int(max(b.maxBytes-b.overflowBytes.Load(), b.maxBytes/4) / b.numShards)
}

// slotsPerShard returns how many slots a shard may have, if each has a name of so many bytes on average. Four fifths
// of the slots are in use at most, so a quarter of the memory for names is free or has names that are no longer needed.
func (b *memoryBudget) slotsPerShard(nameBytes int) int {
	slots := min(b.bytesPerShard()/(slotBytes+nameBytes), maxTableSlots)
	return largestBlock(slots*slotBytes) / slotBytes
}

// largestBlock returns the size of the largest block of memory of up to size bytes. The runtime has blocks of some 70
// sizes, and a slice takes the next larger one: up to an eighth more than it needs. See also roundToBlock.
func largestBlock(size int) int {
	sizes := blockSizes()
	i, found := slices.BinarySearch(sizes, size)
	if found {
		return size
	}
	return sizes[max(i-1, 0)]
}

// blockSizes returns the sizes of the blocks of memory for tables and names, in order.
var blockSizes = sync.OnceValue(func() (sizes []int) {
	for size := 0; size < maxTableSlots*slotBytes; {
		size = cap(slices.Grow([]byte(nil), roundToBlock(size+1)))
		sizes = append(sizes, size)
	}
	return sizes
})

// The runtime divides spans of pages into blocks of one size. Tables grow at about the same time, and a span with one
// table that has not grown yet is kept for others of its size: with several tables in a span, a quarter of all memory
// would be free and of no use. So above a page all tables and names have sizes of which a span has one or two.
const (
	pageBytes      = 8 << 10
	largeBlockUnit = 4 << 10 // A multiple of it is a page or more, or a span has two of it.
)

// roundToBlock returns the size of the block for a table or names of so many bytes.
func roundToBlock(size int) int {
	if size <= pageBytes {
		return size
	}
	return (size + largeBlockUnit - 1) / largeBlockUnit * largeBlockUnit
}

// An expired log may belong to a key that is never used again. So every writesPerSweep-th write to a
// shard checks the next shards of the store, with slotsPerSweep slots on average. Then a log is freed after as
// many writes as a quarter of all slots. A sweep counts each shard as minSlotsPerSweptShard slots at least.
const (
	writesPerSweep        = 256 // the range of shard.writeCount
	slotsPerSweep         = 4 * writesPerSweep
	minSlotsPerSweptShard = 8
)

// countWrite counts a write, and reports whether the store should be swept.
func (sh *shard) countWrite() bool {
	sh.writeCount++
	return sh.writeCount == 0
}

// freeMemory brings the store below its cap, and sweeps it if sweep is set. The caller must not hold the lock of a
// shard.
func (s *Store) freeMemory(sweep bool, now int64) {
	if s.budget.isExceeded(0) {
		s.reclaimMemory(now)
	}
	if !sweep || s.budget.overflowBytes.Load() == 0 {
		return
	}
	for due := s.dueSlots.Add(slotsPerSweep); due > 0; {
		sh := &s.shards[s.sweptShardCount.Add(1)%uint32(len(s.shards))]
		sh.mu.Lock()
		due = s.dueSlots.Add(-int64(max(sh.sweepExpired(now), minSlotsPerSweptShard)))
		sh.mu.Unlock()
	}
}

// sweepExpired frees the overflow of the expired slots of the shard, shrinks a table with few live slots, and returns
// how many slots it checked.
func (sh *shard) sweepExpired(now int64) (checked int) {
	if sh.overflow == nil {
		return 0
	}
	checked = len(sh.slots)
	live, _, _ := sh.dropExpired(now, 0)
	if live*8 < checked && checked > minTableSlots {
		sh.makeRoom(now)
	}
	return checked
}

// slotsPerReclaim is the number of slots that one call of reclaim checks, in some milliseconds.
const slotsPerReclaim = 1 << 18

// reclaimState is the state of reclaim between its calls, which visit all shards in turn.
type reclaimState struct {
	nextShard        int
	completedRounds  int    // counts how often all shards were visited since the store was below its cap.
	oldestUseSecond  uint32 // the earliest slot.lastUseSecond that this round has seen.
	idleBeforeSecond uint32 // the argument of shard.shrinkTable.
}

// reclaimMemory frees memory until the store is below its cap, or until the call has checked slotsPerReclaim slots. In
// the second case the next write continues. The caller must not hold the lock of a shard.
func (s *Store) reclaimMemory(now int64) {
	if !s.reclaimMu.TryLock() {
		return // another goroutine reclaims
	}
	defer s.reclaimMu.Unlock()
	r := &s.reclaimState
	for checked := 0; checked < slotsPerReclaim && s.budget.isExceeded(0); {
		if r.nextShard == len(s.shards) {
			r.nextShard = 0
			if r.completedRounds++; r.completedRounds > 1 {
				// All shards have so few counters that an eighth of them is none. So this round
				// drops the counters that have been idle for three quarters of the longest time.
				r.idleBeforeSecond = r.oldestUseSecond + (unixSecond(now)-r.oldestUseSecond)/4 + 1
			}
			r.oldestUseSecond = unixSecond(now)
		}
		sh := &s.shards[r.nextShard]
		r.nextShard++
		sh.mu.Lock()
		checked += max(len(sh.slots), 1)
		r.oldestUseSecond = min(r.oldestUseSecond, sh.shrinkTable(now, r.idleBeforeSecond))
		sh.mu.Unlock()
	}
	if !s.budget.isExceeded(0) {
		r.completedRounds, r.idleBeforeSecond = 0, 0
	}
}
