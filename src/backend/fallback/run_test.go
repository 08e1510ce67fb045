package fallback

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/algorithm"
)

// now is a hit by the clock of the store.
func now(t *testing.T, s *Store, h algorithm.Hit) algorithm.Verdict {
	t.Helper()
	b := algorithm.Batch{Hits: []algorithm.Hit{h}, Verdicts: make([]algorithm.Verdict, 1)}
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Verdicts[0]
}

// run runs stores until the returned function is called.
func run(t *testing.T, stores ...*Store) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, s := range stores {
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

func TestRunSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, limit := inMemory(t), fixed(100, time.Hour)
		s := open(t, next, 1)
		defer run(t, s)()
		next.down.Store(true)
		for range 5 {
			now(t, s, local("k", limit, 2))
		}
		time.Sleep(time.Minute)
		if owed, asked := s.Stats().Owed, next.asked.Load(); owed != 1 || asked > 100 {
			t.Errorf("%d counters are owed to after %d attempts", owed, asked)
		}
		next.down.Store(false)
		time.Sleep(settleMost + time.Millisecond)
		if got := now(t, s, algorithm.Hit{Key: []byte("k"), Limit: limit, Op: algorithm.Look}); got.Before != 10 || s.Stats().Owed != 0 || s.Stats().Returned != 1 {
			t.Errorf("%+v %+v", got, s.Stats())
		}
		idle := next.asked.Load()
		time.Sleep(time.Hour)
		if next.asked.Load() != idle {
			t.Error("the store is asked when nothing is owed")
		}
	})
}

// Replicas find out how many they are, by the store that they share.
func TestReplicasAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := inMemory(t)
		var told []int
		var stores []*Store
		for i := range 4 {
			cfg := Config{KeyPrefix: "p:"}
			if i == 0 {
				cfg.OnReplicas = func(_, after int) { told = append(told, after) }
			}
			s, err := New(&flaky{Backend: shared.Backend}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			stores = append(stores, s)
		}
		defer run(t, stores[0])()
		replicas := func() int { return stores[0].Stats().Replicas }
		time.Sleep(time.Minute)
		if replicas() != 1 || shared.asked.Load() != 0 {
			t.Fatal("replicas are counted though nobody needs to know")
		}
		for _, s := range stores {
			s.UseLocal(true)
		}
		stopTwo := run(t, stores[1], stores[2])
		defer run(t, stores[3])()
		for range 20 {
			time.Sleep(2 * census.Period)
			if replicas() != 4 {
				t.Fatalf("%d of 4 are counted", replicas())
			}
		}
		down := stores[0].next.(*flaky)
		down.down.Store(true)
		limit := fixed(10, time.Hour)
		if v := now(t, stores[0], local("k", limit, 3)); v.Over || v.Instead != algorithm.FailLocally {
			t.Errorf("%+v", v)
		}
		if v := now(t, stores[0], local("k", limit, 1)); !v.Over {
			t.Errorf("a share is 3 of 10: %+v", v)
		}
		stopTwo()
		time.Sleep(2 * census.Period)
		if replicas() != 4 {
			t.Errorf("without the store it is %d", replicas()) // the last number stays
		}
		down.down.Store(false)
		time.Sleep(2 * census.Period)
		if replicas() != 2 {
			t.Errorf("%d of 2 are counted", replicas())
		}
		if len(told) < 2 || told[len(told)-1] != 2 {
			t.Errorf("told of %v", told)
		}
	})
}
