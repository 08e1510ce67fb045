package leased_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/leased"
	"ratelimit/src/backend/memory"
)

// Batches find leases without a lock while others add, evict and remove leases. Each counter admits its limit all the
// same: no unit of another counter is used, and none is lost.
func TestLeasesMoveWhileBatchesFindThem(t *testing.T) {
	const counters, max, goroutines, batches, hits = 10_000, 10, 4, 120, 40
	shared, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	s := leased.New(leased.Config{
		// Some of the counters have room, and a lease that was not used for 10 ms is evicted.
		Next: shared, Replicas: func() int { return 1 }, MaxBytes: 700_000,
		Now: func() (time.Time, time.Duration) { return time.Now(), 100 * time.Since(start) },
	})
	limit := &algorithm.Limit{Max: max, Period: 50 * 365 * 24 * time.Hour}
	passed, done := make([]atomic.Int64, counters), make(chan struct{})
	var takers, others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				s.Refill(t.Context())
				s.SweepAll()
				s.Tick(t.Context())
				s.Heard(nil, false)
			}
		}
	})
	takeBatch := func(store backend.Backend, indexes []int) {
		b := backend.Batch{Hits: make([]backend.Hit, len(indexes)), Verdicts: make([]backend.Verdict, len(indexes))}
		for i, n := range indexes {
			b.Hits[i] = leasedHit(fmt.Sprint("key ", n), limit, 1)
			b.Hits[i].GroupID = uint16(i)
		}
		if err := store.Take(t.Context(), &b); err != nil {
			t.Error(err)
		}
		for i, n := range indexes {
			if !b.Verdicts[i].Over {
				passed[n].Add(1)
			}
		}
	}
	for g := range uint64(goroutines) {
		takers.Go(func() {
			rng, indexes := rand.New(rand.NewPCG(g, 0)), make([]int, hits)
			for range batches {
				for i := range indexes {
					indexes[i] = rng.IntN(1 + rng.IntN(1+rng.IntN(counters)))
				}
				takeBatch(s, indexes)
			}
		})
	}
	takers.Wait()
	close(done)
	others.Wait()
	st := s.Stats()
	s.Finish(t.Context())
	for n := range counters {
		takeBatch(shared, slices.Repeat([]int{n}, max)) // takes what is left
		if got := passed[n].Load(); got != max {
			t.Errorf("counter %d admits %d units", n, got)
		}
	}
	if st.Evictions == 0 || st.Served == 0 || st.UnitsLost > 0 {
		t.Errorf("leases did not move: %+v", st)
	}
}
