//go:build !race

package leased_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/leased"
	"ratelimit/src/backend/memory"
)

// The race detector empties pools at random, so this runs without it.
func TestTakeDoesNotAllocate(t *testing.T) {
	shared, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := leased.New(leased.Config{Next: shared, Replicas: func() int { return 2 }})
	var b backend.Batch
	for _, kind := range []algorithm.Kind{
		algorithm.FixedWindow, algorithm.FirstHitWindow, algorithm.GCRA, algorithm.SlidingWindowCounter,
	} {
		l := &algorithm.Limit{Kind: kind, Max: 1 << 29, Period: time.Minute}
		if kind == algorithm.GCRA {
			l.Burst = 1 << 29
		}
		for range 40 { // More than are found at a time.
			h := leasedHit(fmt.Sprint("k", len(b.Hits)%20), l, 1)
			h.GroupID = uint16(len(b.Hits) / 2)
			b.Hits = append(b.Hits, h)
		}
	}
	b.Verdicts = make([]backend.Verdict, len(b.Hits))
	send := func() {
		if err := s.Take(t.Context(), &b); err != nil || b.FirstErr() != nil {
			t.Fatal(err, b.FirstErr())
		}
	}
	for range 100 {
		send()
	}
	for i := range b.Hits {
		b.Hits[i].Atomic = i%10 < 4
	}
	before := s.Stats().Served
	if n := testing.AllocsPerRun(1000, send); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if served, hits := s.Stats().Served-before, uint64(1001*len(b.Hits)); served < hits*9/10 {
		t.Errorf("%d of %d hits were decided without the store", served, hits)
	}
}

// discard is a store that admits all and keeps nothing.
type discard struct{}

func (discard) Take(_ context.Context, b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{}
	}
	return nil
}

// A counter takes at most 100 bytes with a key of 14 bytes, and the store says within a tenth what all of them take. At
// the cap it takes no more.
func TestBytesAreWhatTheHeapTakes(t *testing.T) {
	heapBytes := func() int64 {
		runtime.GC() // Pools keep their memory over one collection.
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, c := range []struct{ counters, limits, maxBytes int }{
		{1_000_000, 1, 120_000_000}, {200_000, 50_000, 24_000_000},
	} {
		s := leased.New(leased.Config{Next: discard{}, Replicas: func() int { return 1 }, MaxBytes: c.maxBytes})
		before := heapBytes() - s.Stats().Bytes
		b := backend.Batch{Hits: make([]backend.Hit, 1), Verdicts: make([]backend.Verdict, 1)}
		limit := &algorithm.Limit{Max: 1000, Period: time.Hour}
		for n := range c.counters {
			if n < c.limits {
				limit = &algorithm.Limit{Max: 1000 + uint64(n), Period: time.Hour}
			}
			b.Hits[0] = leasedHit(fmt.Sprintf("%014d", n), limit, 1)
			if err := s.Take(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
			if (n+1)%50_000 != 0 {
				continue
			}
			took, st := heapBytes()-before, s.Stats()
			t.Logf("%d limits, %d counters: %d bytes each, %d said", c.limits, st.Counters, took/st.Counters,
				st.Bytes/st.Counters)
			if took > st.Bytes+st.Bytes/10 || took < st.Bytes-st.Bytes/10 || st.Bytes > int64(c.maxBytes) {
				t.Errorf("%d counters take %d bytes, %d are said", st.Counters, took, st.Bytes)
			}
			if c.limits == 1 && n >= 100_000 && took > 100*st.Counters {
				t.Errorf("%d counters take %d bytes", st.Counters, took)
			}
		}
		if st := s.Stats(); (st.WithoutRoom+st.Evictions > 0) != (c.limits > 1) {
			t.Errorf("%+v", st)
		}
	}
}
