package memory

import (
	"time"
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// beside is what a shard keeps beside its table. Slots refer to it by number.
type beside struct {
	wides    arena[wideState] // without pointers, like the slots
	logs     arena[algorithm.Log]
	logBytes int64 // of the hits in logs
	counted  int64 // what the budget knows of
	next     int   // slot that the sweep looks at next
	met      int   // live slots that it has met since the first
}

// wideState is a state of several numbers; see pack.
type wideState [3]int64

// logBytes is what the hits in a log take: 16 bytes each, and there may be room
// for more.
func logBytes(g *algorithm.Log) int64 { return 16 * int64(g.Cap()) }

// arena is a list of values with gaps.
type arena[T any] struct {
	items []T
	gaps  []uint32
}

// put returns the number under which v is kept.
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

// drop makes a gap. When nothing else is left it gives all memory back.
func (a *arena[T]) drop(i uint64) {
	var none T
	a.items[i] = none
	a.gaps = append(a.gaps, uint32(i))
	if a.live() == 0 {
		*a = arena[T]{}
	}
}

func (a *arena[T]) live() int { return len(a.items) - len(a.gaps) }

func (a *arena[T]) bytes() int64 {
	var v T
	return int64(cap(a.items))*int64(unsafe.Sizeof(v)) + int64(cap(a.gaps))*4
}

func (b *beside) bytes() int64 {
	return int64(unsafe.Sizeof(*b)) + b.logBytes + b.wides.bytes() + b.logs.bytes()
}

func (b *beside) putLog(g algorithm.Log) uint64 {
	b.logBytes += logBytes(&g)
	return b.logs.put(g)
}

func (b *beside) dropLog(i uint64) {
	b.logBytes -= logBytes(&b.logs.items[i])
	b.logs.drop(i)
}

// side is sh.beside, made if need be.
func (sh *shard) side() *beside {
	if sh.beside == nil {
		sh.beside = new(beside)
	}
	return sh.beside
}

// weigh tells the budget of what has changed beside the table.
func (sh *shard) weigh() {
	b := sh.beside
	if b == nil {
		return
	}
	if n := b.bytes(); n != b.counted {
		sh.budget.addBeside(n - b.counted)
		b.counted = n
	}
}

// bringHome gives back what sl has beside the table. The state is then in the
// slot, where the caller puts it.
func (sh *shard) bringHome(sl *slot) {
	switch sl.form() {
	case wide:
		sh.beside.wides.drop(sl.count)
	case logged:
		sh.beside.dropLog(sl.count)
	default:
		return
	}
	sl.setForm(here)
	sh.weigh()
}

// sendBeside puts the state of sl, which has no log, beside the table.
func (sh *shard) sendBeside(sl *slot, w wideState) {
	if sl.form() == wide {
		sh.beside.wides.items[sl.count] = w
		return
	}
	sl.count = sh.side().wides.put(w)
	sl.setForm(wide)
	sh.weigh()
}

// applySliding is apply for a sliding window, whose log is changed in place.
func (sh *shard) applySliding(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	sl, free := sh.find(id, now)
	if sl == nil {
		var log algorithm.Log
		v := algorithm.TakeSliding(h.Limit, &log, now, h.Op, h.Amount)
		if v.Charged {
			sl = sh.create(id, free, now)
			sl.count = sh.side().putLog(log)
			sl.setForm(logged)
			sh.endLog(sl, now, v.ResetAfter)
			sl.note(h, &v, now)
			sh.weigh()
		}
		return v
	}
	log := &sh.beside.logs.items[sl.count]
	before := logBytes(log)
	v := algorithm.TakeSliding(h.Limit, log, now, h.Op, h.Amount)
	sl.note(h, &v, now)
	if !v.Charged {
		return v
	}
	after := logBytes(log)
	sh.beside.logBytes += after - before
	sh.weigh()
	sh.endLog(sl, now, v.ResetAfter)
	if log.Len() == 0 {
		sh.release(sl)
	} else if after > sh.budget.max/2 {
		sh.release(sl)
		sh.budget.evicted.Add(1)
	}
	return v
}

// endLog sets when sl ends. The clock may be behind the newest hit, which is
// remembered all the same.
func (sh *shard) endLog(sl *slot, now int64, reset time.Duration) {
	sl.expires = max(sl.expires, now+int64(reset+sh.budget.grace))
}
