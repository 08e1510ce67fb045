package backendtest

import (
	"context"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

func (suite *Suite) testBatch(t *testing.T, open func(*testing.T) backend.Backend) {
	limit := fixedWindow(3, 365*24*time.Hour)
	t.Run("empty", func(t *testing.T) { send(t, open(t), time.Time{}) })
	t.Run("a hit sees those before it", func(t *testing.T) {
		h := backend.Hit{Key: []byte("k"), Limit: limit, Amount: 2}
		v := send(t, open(t), epoch, h, backend.Hit{Key: []byte("other"), Limit: limit, Amount: 1, GroupID: 1},
			backend.Hit{Key: h.Key, Limit: limit, Amount: 2, GroupID: 2})
		if v[0].After != 2 || v[1].After != 1 || v[2].Before != 2 || !v[2].Over {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("two groups, one refused", func(t *testing.T) {
		if suite.NoGroups {
			t.Skip("the store has no groups")
		}
		hit := func(key string, n uint64, group uint16) backend.Hit {
			return backend.Hit{Key: []byte(key), Limit: limit, Amount: n, GroupID: group, Atomic: true}
		}
		v := send(t, open(t), epoch, hit("a", 1, 1), hit("b", 4, 1), hit("a", 1, 2), hit("c", 1, 2))
		if v[0].Charged || !v[1].Over || v[2].Before != 0 || !v[2].Charged || !v[3].Charged {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("nothing is kept of a batch", func(t *testing.T) {
		store := open(t)
		key := []byte("mine")
		b := backend.Batch{
			Hits:     []backend.Hit{{Key: key, Limit: limit, Amount: 1}},
			Verdicts: make([]backend.Verdict, 1), Now: epoch,
		}
		if err := store.Take(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		copy(key, "your")
		if v := send(t, store, epoch, backend.Hit{Key: []byte("mine"), Limit: limit, Amount: 1})[0]; v.After != 2 {
			t.Errorf("the counter is %d, want 2", v.After)
		}
	})
	t.Run("old verdicts are overwritten", func(t *testing.T) {
		old := backend.Verdict{Outcome: algorithm.Outcome{
			Over: true, WithinMinInterval: true, Before: 9, After: 9,
			Remaining: 9, RetryAfter: 9, FullUntil: epoch.UnixNano(),
		}, Cached: true, Err: context.Canceled}
		b := backend.Batch{
			Hits:     []backend.Hit{{Key: []byte("k"), Limit: limit, Amount: 1}},
			Verdicts: []backend.Verdict{old}, Now: epoch,
		}
		if err := open(t).Take(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		_, want := algorithm.TakeFixed(limit, 0, epoch.UnixNano(), charge, 1)
		if v := b.Verdicts[0]; !suite.equal(v, backend.Verdict{Outcome: want}) || v.Cached || v.Err != nil {
			t.Errorf("got %+v, want %+v", v, want)
		}
	})
	t.Run("its own clock", func(t *testing.T) {
		suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
			store, limit := open(t), countingBlocked(kind, 3, limit.Period)
			before := time.Now()
			v := send(t, store, time.Time{}, backend.Hit{Key: []byte("k"), Limit: limit, Amount: 3})[0]
			want := newReferee(false).takeGroup([]backend.Hit{{Key: []byte("k"), Limit: limit, Amount: 3}},
				before.UnixNano())[0]
			if v.ResetAfter > want.ResetAfter+time.Second || v.ResetAfter < want.ResetAfter-time.Minute {
				t.Errorf("resets in %v, want about %v", v.ResetAfter, want.ResetAfter)
			}
			if v := send(t, store, time.Time{}, backend.Hit{Key: []byte("k"), Limit: limit, Amount: 1})[0]; !v.Over {
				t.Error("the fourth of three passed")
			}
		})
	})
	t.Run("misuse", func(t *testing.T) {
		store := open(t)
		good := backend.Hit{Key: []byte("k"), Limit: limit, Amount: 1}
		for name, b := range map[string]backend.Batch{
			"no limit":         {Hits: []backend.Hit{{Key: []byte("k")}}, Verdicts: make([]backend.Verdict, 1)},
			"too few verdicts": {Hits: []backend.Hit{good}},
			"amount": {
				Hits:     []backend.Hit{{Limit: limit, Amount: algorithm.MaxAmount + 1}},
				Verdicts: make([]backend.Verdict, 1),
			},
			"tag": {
				Hits:     []backend.Hit{{Key: []byte("k"), TagLength: 2, Limit: limit}},
				Verdicts: make([]backend.Verdict, 1),
			},
			"before 1970": {
				Hits: []backend.Hit{good}, Verdicts: make([]backend.Verdict, 1),
				Now: time.Unix(-1, 0),
			},
		} {
			if err := store.Take(t.Context(), &b); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}

// testKeys shows that counters are told apart by every byte of their keys, by kind and by period.
func (suite *Suite) testKeys(t *testing.T, open func(*testing.T) backend.Backend) {
	long := make([]byte, 70_000)
	keys := []string{
		"", "a", "A", "ab", "a b", "a\x00", "a\x00b", "a\r\nb", "\xff\xfe", "a_1", "{a}", "ключ",
		string(long), string(long[1:]),
	}
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		store, limit := open(t), countingBlocked(kind, 100, time.Hour)
		for round := range uint64(2) {
			for i, k := range keys {
				want := uint64(i)*(round+1) + round + 1
				if v := send(t, store, epoch, backend.Hit{
					Key: []byte(k), Limit: limit,
					Amount: uint64(i) + 1,
				})[0]; v.After != want {
					t.Errorf("key %.20q: got %d, want %d", k, v.After, want)
				}
			}
		}
	})
	t.Run("kinds and periods", func(t *testing.T) {
		store := open(t)
		// Whether fixed windows of two lengths share a counter when they begin together depends on the store: in Redis
		// they do, as in envoyproxy/ratelimit. So at this time no two begin together.
		at := epoch.Add(25*time.Hour + 61*time.Minute)
		var hits []backend.Hit
		for _, kind := range suite.Kinds {
			for _, period := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
				hits = append(hits, backend.Hit{
					Key: []byte("one"), Limit: countingBlocked(kind, 100, period),
					Amount: uint64(len(hits)) + 1,
				})
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

// testRules shows that a rule may change: a raised limit leaves room at once, a lowered one counts what was used
// before.
func (suite *Suite) testRules(t *testing.T, open func(*testing.T) backend.Backend) {
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		store := open(t)
		rule := func(most uint64) *algorithm.Limit {
			l := countingBlocked(kind, most, time.Hour)
			if kind == algorithm.GCRA {
				l.Max = 3 // Max is the rate of a GCRA; the test raises the burst
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
