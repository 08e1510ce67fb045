package backendtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// model is a store that is slow and obviously right: a map from key and window
// to count. A group is tried on a copy of the map, which is thrown away if
// somebody refuses.
type model map[modelKey]uint64

type modelKey struct {
	key    string
	period time.Duration
	start  int64
}

func keyOf(h *algorithm.Hit, now int64) modelKey {
	start, _ := algorithm.Window(now, h.Limit.Period)
	return modelKey{string(h.Key), h.Limit.Period, start}
}

func (m model) apply(h *algorithm.Hit, now int64) (v algorithm.Verdict) {
	k := keyOf(h, now)
	after, v := algorithm.TakeFixed(h.Limit, m[k], now, h.Op, h.Amount)
	m[k] = after
	return v
}

// group returns the verdicts on the hits of one group.
func (m model) group(hits []algorithm.Hit, now int64) []algorithm.Verdict {
	verdicts := make([]algorithm.Verdict, len(hits))
	trial := maps.Clone(m)
	vetoed := false
	for i := range hits {
		verdicts[i] = trial.apply(&hits[i], now)
		vetoed = vetoed || verdicts[i].Over && !hits[i].NoVeto
	}
	for i := range hits {
		h := &hits[i]
		if !vetoed || !h.Atomic {
			verdicts[i] = m.apply(h, now)
			continue
		}
		seen := h.AsLook()
		v := m.apply(&seen, now)
		if v.Over = verdicts[i].Over; v.Over {
			v.Remaining, v.RetryAfter = 0, verdicts[i].RetryAfter
		} else {
			v.RetryAfter = 0
		}
		verdicts[i] = v
	}
	return verdicts
}

// testReferee sends random batches to the store and to the model.
func testReferee(t *testing.T, open func(*testing.T) limiter.Backend) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	store, m := open(t), make(model)
	now := epoch
	limits := []*algorithm.Limit{
		fixed(0, time.Minute), fixed(3, time.Minute), fixed(10, time.Minute), uncounted(10, time.Minute),
		fixed(20, time.Hour), uncounted(7, 5*time.Minute), fixed(1<<40, time.Hour),
	}
	for round := range 2000 {
		now = now.Add(time.Duration(rnd.Int64N(int64(20 * time.Second))))
		var hits []algorithm.Hit
		for group := range 1 + rnd.IntN(3) {
			for range 1 + rnd.IntN(3) {
				limit := limits[rnd.IntN(len(limits))]
				hits = append(hits, algorithm.Hit{
					// Whether windows of two lengths share a counter when they begin
					// together is the store's business: in Redis they do, as upstream.
					Key:    fmt.Appendf(nil, "key-%d-%v", rnd.IntN(2), limit.Period),
					Tag:    len("key-"),
					Limit:  limit,
					Amount: uint64(rnd.IntN(5)),
					Op:     []algorithm.Op{charge, charge, charge, charge, look, refund, force}[rnd.IntN(7)],
					Group:  uint16(group),
					Atomic: rnd.IntN(2) == 0,
					NoVeto: rnd.IntN(4) == 0,
				})
			}
		}
		got := take(t, store, now, hits...)
		b := algorithm.Batch{Hits: hits}
		for i := 0; i < len(hits); i = b.GroupEnd(i) {
			for j, want := range m.group(hits[i:b.GroupEnd(i)], now.UnixNano()) {
				if !same(got[i+j], want) {
					t.Fatalf("round %d, hit %d of %d, at %v: %+v\n got %+v\nwant %+v", round, i+j, len(hits), now, hits[i+j], got[i+j], want)
				}
			}
		}
	}
}
