package backendtest

import (
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// referee is a slow and simple store: a map of counters. It tries a group on copies, which it drops if a hit refuses.
type referee map[counter]*state

type counter struct {
	key    string
	kind   algorithm.Kind
	period time.Duration
	start  int64 // of a fixed window
}

// state is the state of a counter of any kind.
type state struct {
	count   uint64
	first   algorithm.FirstHit
	buckets algorithm.Buckets
	arrival algorithm.Arrival
	log     algorithm.Log
	until   int64 // when it expires, or somewhat earlier
}

func (st *state) clone() *state {
	c := *st
	c.log = st.log.Clone()
	return &c
}

func (st *state) apply(h *backend.Hit, now int64) (v algorithm.Outcome) {
	switch l := h.Limit; l.Kind {
	case algorithm.FixedWindow:
		st.count, v = algorithm.TakeFixed(l, st.count, now, h.Op, h.Amount)
	case algorithm.FirstHitWindow:
		st.first, v = algorithm.TakeFirstHit(l, st.first, now, h.Op, h.Amount)
	case algorithm.SlidingWindow:
		v = algorithm.TakeSliding(l, &st.log, now, h.Op, h.Amount)
	case algorithm.SlidingWindowCounter:
		var moved algorithm.Buckets
		if moved, v = algorithm.TakeSlidingCounter(l, st.buckets, now, h.Op, h.Amount); v.Charged {
			st.buckets = moved
		}
	case algorithm.GCRA:
		st.arrival, v = algorithm.TakeGCRA(l, st.arrival, now, h.Op, h.Amount)
	}
	if v.Charged {
		st.until = now + int64(v.ResetAfter)
	}
	return v
}

func counterOf(h *backend.Hit, now int64) counter {
	c := counter{key: string(h.Key), kind: h.Limit.Kind, period: h.Limit.Period}
	if c.kind == algorithm.FixedWindow {
		c.start, _ = algorithm.Window(now, c.period)
	}
	return c
}

// of returns the state of c, which it creates if there is none.
func (r referee) of(c counter) *state {
	if r[c] == nil {
		r[c] = new(state)
	}
	return r[c]
}

// group returns the verdicts on the hits of one group.
func (r referee) group(hits []backend.Hit, now int64) []backend.Verdict {
	verdicts := make([]backend.Verdict, len(hits))
	trial := make(referee)
	vetoed := false
	for i := range hits {
		c := counterOf(&hits[i], now)
		if trial[c] == nil {
			trial[c] = r.of(c).clone()
		}
		verdicts[i].Outcome = trial[c].apply(&hits[i], now)
		vetoed = vetoed || verdicts[i].Over && !hits[i].NoVeto
	}
	vetoed = vetoed && backend.AnyAtomic(hits)
	for i := range hits {
		st := r.of(counterOf(&hits[i], now))
		if !vetoed || !hits[i].Atomic {
			verdicts[i].Outcome = st.apply(&hits[i], now)
			continue
		}
		seen := hits[i].AsLook()
		verdicts[i].Outcome = algorithm.Uncharged(hits[i].Limit, st.clone().apply(&seen, now), verdicts[i].Outcome)
	}
	return verdicts
}
