package leased_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/leased"
	"ratelimit/src/backend/memory"
)

// BenchmarkTake compares hits that leases decide with hits that the memory store decides. Both take turns, and the
// fastest turn counts, so that the figures hold on a machine with other work.
func BenchmarkTake(b *testing.B) {
	l := &algorithm.Limit{Max: 1 << 31, Period: time.Minute, CountBlocked: true}
	for _, counters := range []int{1, 100_000, 1_000_000} {
		shared, err := memory.New(memory.Config{})
		if err != nil {
			b.Fatal(err)
		}
		front := leased.New(leased.Config{Next: shared, Replicas: func() int { return 1 }, MaxBytes: 256 << 20})
		keys := make([][]byte, counters)
		for i := range keys {
			keys[i] = fmt.Appendf(nil, "mine_%08d_", i)
			for range 2 {
				take(b, front, leasedHit(string(keys[i]), l, 2))
			}
		}
		for _, hits := range []int{1, 32} {
			b.Run(fmt.Sprint("counters=", counters, "/hits=", hits), func(b *testing.B) {
				next := 0
				batch := &backend.Batch{Hits: make([]backend.Hit, hits), Verdicts: make([]backend.Verdict, hits)}
				turn := func(store backend.Backend) (nanos float64) {
					const batches = 64
					start := time.Now()
					for range batches {
						for i := range batch.Hits {
							batch.Hits[i] = backend.Hit{
								Key: keys[next], Limit: l, Amount: 1, GroupID: uint16(i), Counting: backend.Leased,
							}
							if next += 7919; next >= counters {
								next %= counters
							}
						}
						if err := store.Take(b.Context(), batch); err != nil {
							b.Fatal(err)
						}
					}
					return float64(time.Since(start)) / float64(batches*hits)
				}
				exact, fromLease := math.Inf(1), math.Inf(1)
				for b.Loop() {
					exact = min(exact, turn(shared))
					fromLease = min(fromLease, turn(front))
				}
				b.ReportMetric(exact, "memory-ns/hit")
				b.ReportMetric(fromLease, "leased-ns/hit")
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(fromLease/exact, "leased/memory")
			})
		}
		if st := front.Stats(); st.Served == 0 {
			b.Errorf("%+v", st)
		}
	}
}
