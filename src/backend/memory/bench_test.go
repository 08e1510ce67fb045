package memory

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// BenchmarkGroup is a group of 20,000 hits that stand or fall together, the most of a
// request: 1,000 descriptors with 20 limits each. Its p99-µs is that of a hit on
// another counter every 2 ms meanwhile.
func BenchmarkGroup(b *testing.B) {
	const size = 20_000
	for _, limit := range []*algorithm.Limit{
		{Kind: algorithm.FixedWindow, Max: 1 << 40, Period: 24 * time.Hour},
		{Kind: algorithm.FirstHitWindow, Max: 1 << 40, Period: 24 * time.Hour},
		{Kind: algorithm.SlidingWindowCounter, Max: 1 << 40, Period: 24 * time.Hour},
		{Kind: algorithm.GCRA, Max: 1 << 40, Burst: 1 << 40, Period: 24 * time.Hour},
		{Kind: algorithm.SlidingWindow, Max: 1000, Period: 24 * time.Hour},
	} {
		for _, counters := range []int{1, size / 20, size / 2, size} {
			b.Run(fmt.Sprintf("%v/counters=%d", limit.Kind, counters),
				func(b *testing.B) { benchmarkGroup(b, limit, size, counters, 0) })
		}
	}
	long := &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 100_000, Period: 24 * time.Hour}
	b.Run("long logs", func(b *testing.B) { benchmarkGroup(b, long, size, size/2, 1000) })
}

// benchmarkGroup makes counters that have counted hits at as many instants before.
func benchmarkGroup(b *testing.B, limit *algorithm.Limit, size, counters, hits int) {
	s := open(b, 1<<30)
	begun := time.Now().Add(-time.Hour)
	for i := range hits {
		for k := range counters {
			if v := send(b, s, begun.Add(time.Duration(i)),
				backend.Hit{Key: fmt.Append(nil, k), Limit: limit, Amount: 1}); v.Over {
				b.Fatalf("hit %d: %+v", i, v)
			}
		}
	}
	group := &backend.Batch{Verdicts: make([]backend.Verdict, size)}
	for i := range size {
		group.Hits = append(group.Hits, backend.Hit{Key: fmt.Append(nil, i%counters), Limit: limit, Amount: 1, Atomic: true})
	}
	done, stopped := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var took []time.Duration
		alone := algorithm.Limit{Kind: algorithm.FixedWindow, Max: 1 << 40, Period: time.Hour}
		for i := 0; ; i++ {
			select {
			case <-done:
				stopped <- took
				return
			case <-time.After(2 * time.Millisecond):
			}
			begun := time.Now()
			hit(s, uint64(i), &alone, time.Time{})
			took = append(took, time.Since(begun))
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Take(b.Context(), group); err != nil {
			b.Fatal(err)
		}
	}
	close(done)
	took := <-stopped
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
