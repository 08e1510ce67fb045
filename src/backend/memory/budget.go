package memory

import "sync/atomic"

// budget is the memory cap of a store and what is used of it.
//
// Keys are spread evenly, so each table may have an equal share. Logs vary in size a
// thousandfold, so they take what they need, and tables share the rest. Above the cap shards
// shed in turn, each what has been idle for longest in it.
type budget struct {
	max      int64
	grace    int64 // nanoseconds; see Config.Grace
	shards   int64
	total    atomic.Int64 // bytes of tables and overflows
	overflow atomic.Int64 // bytes of overflows
	evicted  atomic.Int64
}

func (b *budget) addOverflow(bytes int64) {
	b.total.Add(bytes)
	b.overflow.Add(bytes)
}

// exceeded reports whether the store is above its cap, less the bytes about to be freed.
func (b *budget) exceeded(freed int64) bool { return b.total.Load()-freed > b.max }

// slotsEach returns how many slots each shard may have.
func (b *budget) slotsEach() int {
	return int(min(max(b.max-b.overflow.Load(), 0)/slotBytes/b.shards, maxSlots))
}

// The keys of expired logs may never be asked again. So every sweepEvery-th write to a shard
// checks the next sweepSlots slots of the store: a log is freed after as many writes as a
// quarter of all slots. A shard counts as sweepLeast slots at least.
const (
	sweepEvery = 16
	sweepSlots = 4 * sweepEvery
	sweepLeast = 8
)

// sweepDue counts a write, and reports whether the store should be swept.
func (sh *shard) sweepDue() bool {
	sh.writes++
	return sh.writes%sweepEvery == 0
}

// tidy brings the store below its cap, and sweeps if that is due. The caller must not hold
// the lock of a shard.
func (s *Store) tidy(due bool, now int64) {
	if s.budget.exceeded(0) {
		s.reclaim(now)
	}
	if !due || s.budget.overflow.Load() == 0 {
		return
	}
	for seen := 0; seen < sweepSlots; {
		sh := &s.shards[s.swept.Add(1)%uint32(len(s.shards))]
		sh.mu.Lock()
		seen += max(sh.sweep(now), sweepLeast)
		sh.mu.Unlock()
	}
}

// sweep frees the overflow of expired slots among the next few, and returns how many slots
// it checked. At the end of a table with few live slots it shrinks the table.
func (sh *shard) sweep(now int64) (seen int) {
	o := sh.overflow
	if o == nil {
		return 0
	}
	n := min(sweepSlots, len(sh.slots))
	for range n {
		if o.next >= len(sh.slots) {
			o.next, o.live = 0, 0
		}
		sl := &sh.slots[o.next]
		o.next++
		if sl.live(now) {
			o.live++
		} else if sl.form() > inline {
			sh.release(sl)
		}
	}
	if o.next >= len(sh.slots) && o.live*8 < len(sh.slots) && len(sh.slots) > minSlots {
		sh.makeRoom(now)
	}
	return n
}

// reclaimSlots is how many slots one call of reclaim checks, which takes some milliseconds.
const reclaimSlots = 1 << 18

// reclaimer is the state of reclaim between calls. It visits all shards in turn.
type reclaimer struct {
	next   int    // the next shard
	rounds int    // completed since the store was below its cap
	oldest uint32 // the earliest second of last use seen in this round
	before uint32 // see shed
}

// reclaim frees memory until the store is below its cap, or until the call has checked enough
// slots; then the next write goes on. The caller must not hold the lock of a shard.
func (s *Store) reclaim(now int64) {
	if !s.reclaiming.TryLock() {
		return // another goroutine reclaims
	}
	defer s.reclaiming.Unlock()
	r := &s.reclaimer
	for seen := 0; seen < reclaimSlots && s.budget.exceeded(0); {
		if r.next == len(s.shards) {
			r.next = 0
			if r.rounds++; r.rounds > 1 {
				// All shards have so few counters that an eighth of them is none. Now the
				// counters go that have been idle for three quarters of the longest time.
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
	if !s.budget.exceeded(0) {
		r.rounds, r.before = 0, 0
	}
}
