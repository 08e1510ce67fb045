package memory

import (
	"math/bits"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// rank says how much a live counter matters, so that at the cap those go first that
// matter least. What has expired goes before all of them, and of equal ranks those
// go first that have been idle longest.
//
// The rank is kept in the slot, as a table does not know the limits of its
// counters. Each hit but a look sets it from its verdict.
type rank uint32

const (
	// fleeting counters hold at most an eighth of their limit, and have not been
	// asked again in a later second: most of what a flood of new keys makes. They go
	// first while they are a quarter of a table or more; with fewer, newcomers would
	// not last until their second hit.
	fleeting rank = iota
	// ordinary counters hold more, or are in use.
	ordinary
	// denying counters are full and have refused a hit since they were. They go
	// last while they are no more than half of a table: with more, counters that
	// someone filled on purpose would keep out all others.
	denying

	ranks
)

// Where the rank is in a slot's tag.
const (
	rankShift = 2
	rankBits  = 3 << rankShift
)

func (sl *slot) rank() rank { return rank(sl.tag & rankBits >> rankShift) }

// note keeps what h and its verdict say of the counter: when it was last asked, and
// its rank. Looks leave no trace. sl may be nil.
func (sl *slot) note(h *backend.Hit, v *algorithm.Outcome, now int64) {
	if sl == nil || h.Op == algorithm.Look {
		return
	}
	at := second(now)
	r := rankAfter(h, v, sl.rank(), sl.used != at)
	sl.used = at
	sl.tag = sl.tag&^rankBits | uint32(r)<<rankShift
}

// rankAfter returns the rank of a counter that had another before h; again says that
// it was asked before, in an earlier second.
func rankAfter(h *backend.Hit, v *algorithm.Outcome, before rank, again bool) rank {
	capacity := h.Limit.Capacity()
	full := v.Interval || v.After >= capacity
	switch {
	case capacity == 0:
		return fleeting // refuses everything without a counter, too
	case full && (v.Over || before == denying && h.Op != algorithm.Charge):
		return denying
	case before != fleeting || again || v.After > capacity/8:
		return ordinary
	}
	return fleeting
}

// ageSteps is the number of results of ageStep.
const ageSteps = 240

// ageStep puts idle times, in seconds, into steps: exact below 16 s, and within an
// eighth of the time above.
func ageStep(idle uint32) int {
	if idle < 8 {
		return int(idle)
	}
	digits := bits.Len32(idle)
	return (digits-3)*8 + int(idle>>(digits-4)&7)
}

// evict drops that many live counters, those that matter least. It allocates
// nothing: it counts the counters of each step, and then drops all steps below the
// one in which the number is reached, and some of that one.
func (sh *shard) evict(now int64, drop int) {
	if drop <= 0 {
		return
	}
	order := sh.order(now)
	var steps [int(ranks) * ageSteps]uint16
	for i := range sh.slots {
		if sl := &sh.slots[i]; sl.live(now) {
			steps[order.step(sl)]++
		}
	}
	last, same := 0, drop // of the step last, same are dropped
	for int(steps[last]) < same {
		same -= int(steps[last])
		last++
	}
	// Somewhere else each time, or in a step the same places would always lose.
	start := int(uint64(now) % uint64(len(sh.slots)))
	for k := range sh.slots {
		sl := &sh.slots[(start+k)%len(sh.slots)]
		if !sl.live(now) {
			continue
		}
		step := order.step(sl)
		if step == last {
			same--
		}
		if step < last || step == last && same >= 0 {
			sh.release(sl)
		}
	}
	sh.budget.evicted.Add(int64(drop))
}

// order is that in which the counters of a table go.
type order struct {
	now   uint32
	place [ranks]int // of ranks with the same place the longest idle goes first
}

func (sh *shard) order(now int64) order {
	var count [ranks]int
	for i := range sh.slots {
		if sl := &sh.slots[i]; sl.live(now) {
			count[sl.rank()]++
		}
	}
	o := order{now: second(now), place: [ranks]int{fleeting: 0, ordinary: 1, denying: 2}}
	live := count[fleeting] + count[ordinary] + count[denying]
	if count[fleeting] < live/4 {
		o.place[fleeting] = o.place[ordinary]
	}
	if count[denying] > live/2 {
		o.place[denying] = o.place[ordinary]
	}
	return o
}

// step is lower for what goes first.
func (o *order) step(sl *slot) int {
	idle := uint32(0)
	if sl.used < o.now {
		idle = o.now - sl.used
	}
	return o.place[sl.rank()]*ageSteps + ageSteps - 1 - ageStep(idle)
}
