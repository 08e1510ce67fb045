package memory

import (
	"math/bits"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// evictionRank says how much a live counter matters. At the cap the store evicts expired counters first,
// then those of the lowest rank, and of one rank those that have been idle for longest. Each
// hit but a look sets the rank from its verdict, since a table does not have the limits.
type evictionRank uint32

const (
	// rankNewcomer counters hold at most an eighth of their limit, and have not been used again in a later second. A flood
	// of new keys makes mostly newcomers. They are evicted first while they are a quarter of a table or more. With fewer,
	// new counters would be evicted before their second hit.
	rankNewcomer evictionRank = iota
	// rankActive counters hold more than an eighth of their limit, or were used again.
	rankActive
	// rankRefusing counters have reached their limit and refused a hit. They are evicted last while they are at most half
	// of a table. With more, they rank as active: else an attacker could fill the table with counters that are never
	// evicted.
	rankRefusing

	numRanks
)

// rankShift and rankMask say which bits of slot.tagFormRank hold the rank.
const (
	rankShift = 2
	rankMask  = 3 << rankShift
)

func (sl *slot) rank() evictionRank { return evictionRank(sl.tagFormRank & rankMask >> rankShift) }

// recordUse sets the time of the counter's last use, and its rank. Looks change neither. sl may be nil.
func (sl *slot) recordUse(h *backend.Hit, v *algorithm.Outcome, now int64) {
	if sl == nil || h.Op == algorithm.Look {
		return
	}
	at := unixSecond(now)
	r := rankAfter(h, v, sl.rank(), sl.lastUseSecond != at)
	sl.lastUseSecond = at
	sl.tagFormRank = sl.tagFormRank&^rankMask | uint32(r)<<rankShift
}

// rankAfter returns the rank of a counter after h. again says that the last use was in an earlier second.
func rankAfter(h *backend.Hit, v *algorithm.Outcome, before evictionRank, again bool) evictionRank {
	capacity := h.Limit.Capacity()
	full := v.WithinMinInterval || v.After >= capacity
	switch {
	case capacity == 0:
		return rankNewcomer // a limit of 0 refuses every hit, even without a counter
	case full && (v.Over || before == rankRefusing && h.Op != algorithm.Charge):
		return rankRefusing
	case before != rankNewcomer || again || v.After > capacity/8:
		return rankActive
	}
	return rankNewcomer
}

// numIdleTimeBuckets is the number of buckets of idleTimeBucket.
const numIdleTimeBuckets = 240

// idleTimeBucket returns the bucket of an idle time in seconds. Below 16 s each second has its own bucket,
// and above a bucket covers an eighth of the idle time or less.
func idleTimeBucket(idle uint32) int {
	if idle < 8 {
		return int(idle)
	}
	digits := bits.Len32(idle)
	return (digits-3)*8 + int(idle>>(digits-4)&7)
}

// idleCounts counts the live counters of a table by rank and by bucket of idle time.
type idleCounts [numRanks][numIdleTimeBuckets]uint16

// evictCounters drops as many of the live counters that matter least. It allocates nothing: it counts the counters of
// each step, and drops all steps below the one in which the number is reached, and a part of that one.
func (sh *shard) evictCounters(now int64, drop int) {
	if drop <= 0 {
		return
	}
	var counts idleCounts
	nowSecond := unixSecond(now)
	for i := range sh.slots {
		if sl := &sh.slots[i]; sl.isLive(now) {
			counts[sl.rank()][sl.idleBucket(nowSecond)]++
		}
	}
	levels := counts.rankLevels()
	last, inLast := 0, drop // all counters of the steps below last are dropped, and inLast counters of step last
	for {
		n := counts.inStep(&levels, last)
		if n >= inLast {
			break
		}
		inLast -= n
		last++
	}
	// The walk starts at another slot each time, so that no slot always loses.
	start := int(uint64(now) % uint64(len(sh.slots)))
	for k := range sh.slots {
		sl := &sh.slots[(start+k)%len(sh.slots)]
		if !sl.isLive(now) {
			continue
		}
		step := evictionStep(levels[sl.rank()], sl.idleBucket(nowSecond))
		if step == last {
			inLast--
		}
		if step < last || step == last && inLast >= 0 {
			sh.dropCounter(sl)
		}
	}
	sh.budget.evictedCounters.Add(int64(drop))
}

// rankLevels returns the level of each rank. Counters of lower levels are evicted first, and counters of one level by
// idle time.
func (c *idleCounts) rankLevels() [numRanks]int {
	var count [numRanks]int
	for rank := range c {
		for _, n := range c[rank] {
			count[rank] += int(n)
		}
	}
	levels := [numRanks]int{rankNewcomer: 0, rankActive: 1, rankRefusing: 2}
	live := count[rankNewcomer] + count[rankActive] + count[rankRefusing]
	if count[rankNewcomer] < live/4 {
		levels[rankNewcomer] = levels[rankActive]
	}
	if count[rankRefusing] > live/2 {
		levels[rankRefusing] = levels[rankActive]
	}
	return levels
}

// evictionStep returns the step of the counters of a level and a bucket of idle time. Counters of lower steps are
// evicted first.
func evictionStep(level, idleBucket int) int {
	return level*numIdleTimeBuckets + numIdleTimeBuckets - 1 - idleBucket
}

// inStep returns how many counters a step has.
func (c *idleCounts) inStep(levels *[numRanks]int, step int) (n int) {
	for rank, level := range levels {
		if level == step/numIdleTimeBuckets {
			n += int(c[rank][numIdleTimeBuckets-1-step%numIdleTimeBuckets])
		}
	}
	return n
}

// idleBucket returns the bucket of the counter's idle time.
func (sl *slot) idleBucket(nowSecond uint32) int {
	return idleTimeBucket(nowSecond - min(sl.lastUseSecond, nowSecond))
}
