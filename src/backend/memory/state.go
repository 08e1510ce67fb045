package memory

import (
	"math"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// state is what a counter of any kind is to the arithmetic. The zero value is
// one that nobody has hit.
type state struct {
	count   uint64 // of a fixed window
	first   algorithm.FirstHit
	buckets algorithm.Buckets
	arrival algorithm.Arrival
	log     *algorithm.Log // nil: empty
}

// take applies op to st.
func (st *state) take(l *algorithm.Limit, at int64, op algorithm.Op, amount uint64) (v algorithm.Outcome) {
	switch l.Kind {
	case algorithm.FixedWindow:
		st.count, v = algorithm.TakeFixed(l, st.count, at, op, amount)
	case algorithm.FirstHitWindow:
		st.first, v = algorithm.TakeFirstHit(l, st.first, at, op, amount)
	case algorithm.SlidingWindowCounter:
		st.buckets, v = algorithm.TakeSlidingCounter(l, st.buckets, at, op, amount)
	case algorithm.GCRA:
		st.arrival, v = algorithm.TakeGCRA(l, st.arrival, at, op, amount)
	case algorithm.SlidingWindow:
		if st.log != nil {
			return algorithm.TakeSliding(l, st.log, at, op, amount)
		}
		var empty algorithm.Log
		return algorithm.TakeSliding(l, &empty, at, op, amount)
	}
	return v
}

// Slots are 32 bytes for every kind, so that there is one table, and one order in
// which counters are evicted. All of them leave 16 bytes for the state:
//
//	fixed window      the count; the window is part of the id
//	first-hit window  the count; it ends when the slot expires, but for the grace
//	sliding counter   both counts, 32 bits each; the current window ends a period
//	                  before the slot expires, but for the grace
//	gcra              the arrival time
//
// What does not fit is kept beside the table and costs another cache miss:
// buckets that have counted 2^32 or more, or whose end is beyond the year 2262;
// arrivals of limits with a minimum interval; and the logs of sliding windows.

// pack writes st, which is neither a fixed nor a sliding window, to sl.
func (sh *shard) pack(l *algorithm.Limit, sl *slot, st *state) {
	switch l.Kind {
	case algorithm.FirstHitWindow:
		// Also without a count: the window goes on.
		sl.count, sl.expires = st.first.Count, st.first.End+int64(sh.budget.grace)
	case algorithm.SlidingWindowCounter:
		sh.packBuckets(l, sl, st.buckets)
	case algorithm.GCRA:
		a := st.arrival
		sl.expires = a.TAT + int64(sh.budget.grace)
		if a.Last == 0 {
			sh.bringHome(sl)
			sl.count = uint64(a.TAT)
			return
		}
		sl.expires = max(sl.expires, a.Last+int64(l.MinInterval+sh.budget.grace))
		sh.sendBeside(sl, wideState{a.TAT, a.Last})
	}
}

func (sh *shard) packBuckets(l *algorithm.Limit, sl *slot, b algorithm.Buckets) {
	outlives := 2*int64(l.Period) + int64(sh.budget.grace) // the start of the window
	if b.Previous <= math.MaxUint32 && b.Current <= math.MaxUint32 && b.Start <= math.MaxInt64-outlives {
		sh.bringHome(sl)
		sl.count, sl.expires = b.Previous<<32|b.Current, b.Start+outlives
		return
	}
	sl.expires = math.MaxInt64
	if b.Start <= math.MaxInt64-outlives {
		sl.expires = b.Start + outlives
	}
	sh.sendBeside(sl, wideState{b.Start, int64(b.Previous), int64(b.Current)})
}

// unpack is the state in sl, which is live and was made by l's kind and period.
// A log is the slot's own.
func (sh *shard) unpack(l *algorithm.Limit, sl *slot) (st state) {
	var w wideState
	if sl.form() == wide {
		w = sh.beside.wides.items[sl.count]
	}
	switch l.Kind {
	case algorithm.FixedWindow:
		st.count = sl.count
	case algorithm.FirstHitWindow:
		st.first = algorithm.FirstHit{Count: sl.count, End: sl.expires - int64(sh.budget.grace)}
	case algorithm.SlidingWindowCounter:
		st.buckets = algorithm.Buckets{Start: w[0], Previous: uint64(w[1]), Current: uint64(w[2])}
		if sl.form() == here {
			st.buckets = algorithm.Buckets{
				Start:    sl.expires - 2*int64(l.Period) - int64(sh.budget.grace),
				Previous: sl.count >> 32, Current: sl.count & math.MaxUint32,
			}
		}
	case algorithm.GCRA:
		st.arrival = algorithm.Arrival{TAT: w[0], Last: w[1]}
		if sl.form() == here {
			st.arrival.TAT = int64(sl.count)
		}
	case algorithm.SlidingWindow:
		st.log = &sh.beside.logs.items[sl.count]
	}
	return st
}

// state is the state of id. A log is the slot's own; it must not be written to.
func (sh *shard) state(l *algorithm.Limit, id counterID, now int64) (st state) {
	if sl, _ := sh.find(id, now); sl != nil {
		st = sh.unpack(l, sl)
	}
	return st
}

// refuse is the verdict on h AsLook, when its group was refused.
func (sh *shard) refuse(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	var st state
	sl, _ := sh.find(id, now)
	if sl != nil {
		st = sh.unpack(h.Limit, sl)
	}
	v := st.take(h.Limit, now, algorithm.Look, h.AsLook().Amount)
	sl.note(h, &v, now)
	return v
}
