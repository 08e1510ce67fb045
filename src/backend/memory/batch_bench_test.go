package memory

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// BenchmarkBatch is a batch of independent hits on 100,000 counters, as the calls of a connection. It reports the time
// of a hit.
func BenchmarkBatch(b *testing.B) {
	const counters = 100_000
	for _, size := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("hits=%d", size), func(b *testing.B) {
			s := open(b, 1<<30)
			limit := &algorithm.Limit{Kind: algorithm.FixedWindow, Max: 1 << 40, Period: 24 * time.Hour}
			keys := make([][]byte, counters)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "bench_user_%d_", i)
			}
			batch := &backend.Batch{Hits: make([]backend.Hit, size), Verdicts: make([]backend.Verdict, size)}
			b.ReportAllocs()
			for b.Loop() {
				for i := range batch.Hits {
					batch.Hits[i] = backend.Hit{Key: keys[rand.IntN(counters)], Limit: limit, Amount: 1, GroupID: uint16(i)}
				}
				if err := s.Take(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/hit")
		})
	}
}
