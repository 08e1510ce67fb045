package memory

import (
	"math/bits"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// rank says how much a live counter matters. At the cap expired counters go first, then
// those of the lowest rank, and of one rank those that have been idle for longest. Each hit
// but a look sets the rank from its verdict, since a table does not have the limits.
type rank uint32

const (
	// newcomer counters hold at most an eighth of their limit, and have not been asked again
	// in a later second. A flood of new keys makes mostly these. They go first while they
	// are a quarter of a table or more; with fewer, new counters would not last until their
	// second hit.
	newcomer rank = iota
	// active counters hold more, or were asked again.
	active
	// refusing counters have reached their limit and refused a hit. They are evicted last
	// while they are at most half of a table. With more, they rank as active: else an
	// attacker could fill the table with counters that are never evicted.
	refusing

	ranks
)

// The bits of the rank in a slot's tag.
const (
	rankShift = 2
	rankBits  = 3 << rankShift
)

func (sl *slot) rank() rank { return rank(sl.tag & rankBits >> rankShift) }

// note sets when the counter was last asked, and its rank. Looks change neither. sl may be nil.
func (sl *slot) note(h *backend.Hit, v *algorithm.Outcome, now int64) {
	if sl == nil || h.Op == algorithm.Look {
		return
	}
	at := second(now)
	r := rankAfter(h, v, sl.rank(), sl.used != at)
	sl.used = at
	sl.tag = sl.tag&^rankBits | uint32(r)<<rankShift
}

// rankAfter returns the rank of a counter after h. again says that it was last asked in an
// earlier second.
func rankAfter(h *backend.Hit, v *algorithm.Outcome, before rank, again bool) rank {
	capacity := h.Limit.Capacity()
	full := v.Interval || v.After >= capacity
	switch {
	case capacity == 0:
		return newcomer // it refuses everything without a counter, too
	case full && (v.Over || before == refusing && h.Op != algorithm.Charge):
		return refusing
	case before != newcomer || again || v.After > capacity/8:
		return active
	}
	return newcomer
}

// ageSteps is how many steps ageStep has.
const ageSteps = 240

// ageStep returns the step of an idle time in seconds: exact below 16 s, and within an eighth
// above.
func ageStep(idle uint32) int {
	if idle < 8 {
		return int(idle)
	}
	digits := bits.Len32(idle)
	return (digits-3)*8 + int(idle>>(digits-4)&7)
}

// evict drops that many live counters, those that matter least. It allocates nothing: it
// counts the counters of each step, and drops all steps below the one in which the number is
// reached, and a part of that one.
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
	last, same := 0, drop // all steps below last are dropped, and same counters of last
	for int(steps[last]) < same {
		same -= int(steps[last])
		last++
	}
	// It starts elsewhere each time, or the same places would always lose.
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

// order is the order in which the counters of a table are evicted.
type order struct {
	now   uint32
	place [ranks]int // ranks with the same place go by idle time alone
}

func (sh *shard) order(now int64) order {
	var count [ranks]int
	for i := range sh.slots {
		if sl := &sh.slots[i]; sl.live(now) {
			count[sl.rank()]++
		}
	}
	o := order{now: second(now), place: [ranks]int{newcomer: 0, active: 1, refusing: 2}}
	live := count[newcomer] + count[active] + count[refusing]
	if count[newcomer] < live/4 {
		o.place[newcomer] = o.place[active]
	}
	if count[refusing] > live/2 {
		o.place[refusing] = o.place[active]
	}
	return o
}

// step returns the step of a counter; lower steps go first.
func (o *order) step(sl *slot) int {
	idle := uint32(0)
	if sl.used < o.now {
		idle = o.now - sl.used
	}
	return o.place[sl.rank()]*ageSteps + ageSteps - 1 - ageStep(idle)
}
