package backendtest

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// testKeys shows that counters are told apart by every byte of their keys, by kind and by period.
func (suite *Suite) testKeys(t *testing.T, open func(*testing.T) backend.Backend) {
	long := make([]byte, 70_000)
	keys := []string{"", "a", "A", "ab", "a b", "a\x00", "a\x00b", "a\r\nb", "\xff\xfe", "a_1", "{a}", "ключ", string(long), string(long[1:])}
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		store, limit := open(t), blocked(kind, 100, time.Hour)
		for round := range uint64(2) {
			for i, k := range keys {
				want := uint64(i)*(round+1) + round + 1
				if v := send(t, store, epoch, backend.Hit{Key: []byte(k), Limit: limit, Amount: uint64(i) + 1})[0]; v.After != want {
					t.Errorf("key %.20q: got %d, want %d", k, v.After, want)
				}
			}
		}
	})
	t.Run("kinds and periods", func(t *testing.T) {
		store := open(t)
		// Whether fixed windows of two lengths share a counter when they begin together depends on the store: in Redis they do,
		// as in envoyproxy/ratelimit. So at this time no two begin together.
		at := epoch.Add(25*time.Hour + 61*time.Minute)
		var hits []backend.Hit
		for _, kind := range suite.Kinds {
			for _, period := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
				hits = append(hits, backend.Hit{Key: []byte("one"), Limit: blocked(kind, 100, period), Amount: uint64(len(hits)) + 1})
			}
		}
		for i, v := range append(send(t, store, at, hits...), send(t, store, at, hits...)...) {
			h := hits[i%len(hits)]
			if before := h.Amount * uint64(i/len(hits)); v.Before != before {
				t.Errorf("%v of %v begins with %d, want %d", h.Limit.Kind, h.Limit.Period, v.Before, before)
			}
		}
	})
}

// testRules shows that a rule may change: a raised limit leaves room at once, a lowered one counts what was used before.
func (suite *Suite) testRules(t *testing.T, open func(*testing.T) backend.Backend) {
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		store := open(t)
		rule := func(most uint64) *algorithm.Limit {
			l := blocked(kind, most, time.Hour)
			if kind == algorithm.GCRA {
				l.Max = 3 // the rate; what may be raised is the burst
			}
			return l
		}
		for i, st := range []struct {
			most uint64
			op   algorithm.Op
			n    uint64
			over bool
		}{
			{3, charge, 3, false},
			{3, look, 1, true},
			{5, charge, 2, false},
			{5, look, 1, true},
			{3, look, 1, true},
			{6, look, 1, false},
			{6, refund, 3, false},
			{3, look, 1, false},
			{2, look, 1, true},
		} {
			v := send(t, store, epoch, backend.Hit{Key: []byte("k"), Limit: rule(st.most), Op: st.op, Amount: st.n})[0]
			if v.Over != st.over {
				t.Fatalf("step %d: %v of %d under a limit of %d: %+v", i, st.op, st.n, st.most, v)
			}
		}
	})
}
