package memory

import (
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// overflow holds the states of a shard that do not fit into slots. A slot's count is the
// index of its state.
type overflow struct {
	wides    arena[wideState] // without pointers
	logs     arena[algorithm.Log]
	logBytes int64 // of the hits in logs
	counted  int64 // bytes that the budget has counted
	next     int   // the slot that the next sweep starts with
	live     int   // live slots that the sweep has seen since slot 0
}

// wideState is a state of several numbers; see pack.
type wideState [3]int64

// logBytes returns the size of the hits in a log: 16 bytes each.
func logBytes(g *algorithm.Log) int64 { return 16 * int64(g.Cap()) }

// arena is a list of values with gaps that are used again.
type arena[T any] struct {
	items []T
	gaps  []uint32
}

// put stores v and returns its index.
func (a *arena[T]) put(v T) uint64 {
	if n := len(a.gaps); n > 0 {
		i := a.gaps[n-1]
		a.gaps = a.gaps[:n-1]
		a.items[i] = v
		return uint64(i)
	}
	a.items = append(a.items, v)
	return uint64(len(a.items) - 1)
}

// drop makes a gap at i. If nothing else is left, it frees all memory.
func (a *arena[T]) drop(i uint64) {
	var none T
	a.items[i] = none
	a.gaps = append(a.gaps, uint32(i))
	if len(a.items) == len(a.gaps) {
		*a = arena[T]{}
	}
}

func (a *arena[T]) bytes() int64 {
	var v T
	return int64(cap(a.items))*int64(unsafe.Sizeof(v)) + int64(cap(a.gaps))*4
}

func (o *overflow) bytes() int64 {
	return int64(unsafe.Sizeof(*o)) + o.logBytes + o.wides.bytes() + o.logs.bytes()
}

// outer returns sh.overflow, which it creates if there is none.
func (sh *shard) outer() *overflow {
	if sh.overflow == nil {
		sh.overflow = new(overflow)
	}
	return sh.overflow
}

// account tells the budget how the size of the overflow has changed.
func (sh *shard) account() {
	o := sh.overflow
	if o == nil {
		return
	}
	if n := o.bytes(); n != o.counted {
		sh.budget.addOverflow(n - o.counted)
		o.counted = n
	}
}

// makeInline frees the overflow of sl. The caller puts a state into the slot.
func (sh *shard) makeInline(sl *slot) {
	switch o := sh.overflow; sl.form() {
	case wide:
		o.wides.drop(sl.count)
	case logged:
		o.logBytes -= logBytes(&o.logs.items[sl.count])
		o.logs.drop(sl.count)
	default:
		return
	}
	sl.setForm(inline)
	sh.account()
}

// setWide stores the state of sl, which is not logged, in the overflow.
func (sh *shard) setWide(sl *slot, w wideState) {
	if sl.form() == wide {
		sh.overflow.wides.items[sl.count] = w
		return
	}
	sl.count = sh.outer().wides.put(w)
	sl.setForm(wide)
	sh.account()
}

// applySliding is apply for a sliding window, whose log is changed in place.
func (sh *shard) applySliding(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	sl, free := sh.find(id, now)
	var empty algorithm.Log
	log := &empty
	if sl != nil {
		log = &sh.overflow.logs.items[sl.count]
	}
	before := logBytes(log)
	v := algorithm.TakeSliding(h.Limit, log, now, h.Op, h.Amount)
	if !v.Charged {
		sl.note(h, &v, now)
		return v
	}
	after := logBytes(log)
	if sl == nil {
		sl = sh.create(id, free, now)
		sl.count = sh.outer().logs.put(empty)
		sl.setForm(logged)
	}
	sl.note(h, &v, now)
	// A clock that was set back is behind the newest hit, which keeps its end.
	sl.expires = max(sl.expires, now+int64(v.ResetAfter)+sh.budget.grace)
	sh.overflow.logBytes += after - before
	sh.account()
	if log.Len() == 0 {
		sh.release(sl)
	} else if after > sh.budget.max/2 {
		sh.release(sl)
		sh.budget.evicted.Add(1)
	}
	return v
}
