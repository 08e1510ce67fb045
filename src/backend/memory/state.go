package memory

import (
	"math"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// state is the state of a counter of any kind. The zero value has no hits.
type state struct {
	count   uint64 // of a fixed window
	first   algorithm.FirstHit
	buckets algorithm.Buckets
	arrival algorithm.Arrival
	log     *algorithm.Log // nil: empty
}

// apply applies op to st.
func (st *state) apply(l *algorithm.Limit, at int64, op algorithm.Op, amount uint64) (v algorithm.Outcome) {
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

// pack writes st, which is neither a fixed nor a sliding window, to sl.
//
// Slots have 32 bytes for every kind, so there is one table and one order of eviction. The
// 16 bytes of count and expires hold
//
//	fixed window      the count; the window is part of the id
//	first-hit window  the count, and the end of the window plus the grace
//	sliding counter   both counts, 32 bits each, and the start of the current window plus
//	                  two periods and the grace
//	gcra              the arrival time
//
// The overflow holds, at the cost of a cache miss, buckets with counts of 2^32 or more or an
// end beyond the year 2262, arrivals with a last hit, and the logs of sliding windows.
func (sh *shard) pack(l *algorithm.Limit, sl *slot, st *state) {
	grace := sh.budget.grace
	switch l.Kind {
	case algorithm.FirstHitWindow: // also with a count of 0: the window goes on
		sl.count, sl.expires = st.first.Count, st.first.End+grace
	case algorithm.SlidingWindowCounter:
		b, lasts := st.buckets, 2*int64(l.Period)+grace
		ends := b.Start <= math.MaxInt64-lasts
		sl.expires = math.MaxInt64
		if ends {
			sl.expires = b.Start + lasts
		}
		if !ends || b.Previous > math.MaxUint32 || b.Current > math.MaxUint32 {
			sh.setWide(sl, wideState{b.Start, int64(b.Previous), int64(b.Current)})
			return
		}
		sh.makeInline(sl)
		sl.count = b.Previous<<32 | b.Current
	case algorithm.GCRA:
		a := st.arrival
		sl.expires = a.TAT + grace
		if a.Last != 0 {
			sl.expires = max(sl.expires, a.Last+int64(l.MinInterval)+grace)
			sh.setWide(sl, wideState{a.TAT, a.Last})
			return
		}
		sh.makeInline(sl)
		sl.count = uint64(a.TAT)
	}
}

// unpack returns the state of sl, which is live and of l's kind and period. A log is the
// slot's own.
func (sh *shard) unpack(l *algorithm.Limit, sl *slot) (st state) {
	var w wideState
	if sl.form() == wide {
		w = sh.overflow.wides.items[sl.count]
	}
	switch l.Kind {
	case algorithm.FixedWindow:
		st.count = sl.count
	case algorithm.FirstHitWindow:
		st.first = algorithm.FirstHit{Count: sl.count, End: sl.expires - sh.budget.grace}
	case algorithm.SlidingWindowCounter:
		st.buckets = algorithm.Buckets{Start: w[0], Previous: uint64(w[1]), Current: uint64(w[2])}
		if sl.form() == inline {
			st.buckets = algorithm.Buckets{
				Start:    sl.expires - 2*int64(l.Period) - sh.budget.grace,
				Previous: sl.count >> 32, Current: sl.count & math.MaxUint32,
			}
		}
	case algorithm.GCRA:
		st.arrival = algorithm.Arrival{TAT: w[0], Last: w[1]}
		if sl.form() == inline {
			st.arrival.TAT = int64(sl.count)
		}
	case algorithm.SlidingWindow:
		st.log = &sh.overflow.logs.items[sl.count]
	}
	return st
}

// state returns the state of id and its slot, if it has one. A log is the slot's own; it must
// not be written to.
func (sh *shard) state(l *algorithm.Limit, id counterID, now int64) (st state, sl *slot) {
	if sl, _ = sh.find(id, now); sl != nil {
		st = sh.unpack(l, sl)
	}
	return st, sl
}

// refuse returns the outcome of h.AsLook() for a hit whose group was refused.
func (sh *shard) refuse(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	st, sl := sh.state(h.Limit, id, now)
	v := st.apply(h.Limit, now, algorithm.Look, h.AsLook().Amount)
	sl.note(h, &v, now)
	return v
}
