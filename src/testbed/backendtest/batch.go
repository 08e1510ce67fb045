package backendtest

import (
	"context"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

func (suite *Suite) testBatch(t *testing.T, open func(*testing.T) backend.Backend) {
	limit := fixed(3, 365*24*time.Hour)
	t.Run("empty", func(t *testing.T) { send(t, open(t), time.Time{}) })
	t.Run("a hit sees those before it", func(t *testing.T) {
		h := backend.Hit{Key: []byte("k"), Limit: limit, Amount: 2}
		v := send(t, open(t), epoch, h, backend.Hit{Key: []byte("other"), Limit: limit, Amount: 1, Group: 1}, backend.Hit{Key: h.Key, Limit: limit, Amount: 2, Group: 2})
		if v[0].After != 2 || v[1].After != 1 || v[2].Before != 2 || !v[2].Over {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("two groups, one refused", func(t *testing.T) {
		if suite.NoGroups {
			t.Skip("the store has no groups")
		}
		hit := func(key string, n uint64, group uint16) backend.Hit {
			return backend.Hit{Key: []byte(key), Limit: limit, Amount: n, Group: group, Atomic: true}
		}
		v := send(t, open(t), epoch, hit("a", 1, 1), hit("b", 4, 1), hit("a", 1, 2), hit("c", 1, 2))
		if v[0].Charged || !v[1].Over || v[2].Before != 0 || !v[2].Charged || !v[3].Charged {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("nothing is kept of a batch", func(t *testing.T) {
		store := open(t)
		key := []byte("mine")
		b := backend.Batch{Hits: []backend.Hit{{Key: key, Limit: limit, Amount: 1}}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
		if err := store.Take(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		copy(key, "your")
		if v := send(t, store, epoch, backend.Hit{Key: []byte("mine"), Limit: limit, Amount: 1})[0]; v.After != 2 {
			t.Errorf("the counter is %d, want 2", v.After)
		}
	})
	t.Run("old verdicts are overwritten", func(t *testing.T) {
		old := backend.Verdict{Outcome: algorithm.Outcome{Over: true, Interval: true, Before: 9, After: 9, Remaining: 9, RetryAfter: 9, FullUntil: epoch}, Cached: true, Err: context.Canceled}
		b := backend.Batch{Hits: []backend.Hit{{Key: []byte("k"), Limit: limit, Amount: 1}}, Verdicts: []backend.Verdict{old}, Now: epoch}
		if err := open(t).Take(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		_, want := algorithm.TakeFixed(limit, 0, epoch.UnixNano(), charge, 1)
		if v := b.Verdicts[0]; !suite.same(v, backend.Verdict{Outcome: want}) || v.Cached || v.Err != nil {
			t.Errorf("got %+v, want %+v", v, want)
		}
	})
	t.Run("its own clock", func(t *testing.T) {
		suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
			store, limit := open(t), blocked(kind, 3, limit.Period)
			before := time.Now()
			v := send(t, store, time.Time{}, backend.Hit{Key: []byte("k"), Limit: limit, Amount: 3})[0]
			want := referee{}.group([]backend.Hit{{Key: []byte("k"), Limit: limit, Amount: 3}}, before.UnixNano())[0]
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
			"amount":           {Hits: []backend.Hit{{Limit: limit, Amount: algorithm.MaxAmount + 1}}, Verdicts: make([]backend.Verdict, 1)},
			"tag":              {Hits: []backend.Hit{{Key: []byte("k"), Tag: 2, Limit: limit}}, Verdicts: make([]backend.Verdict, 1)},
			"before 1970":      {Hits: []backend.Hit{good}, Verdicts: make([]backend.Verdict, 1), Now: time.Unix(-1, 0)},
		} {
			if err := store.Take(t.Context(), &b); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
