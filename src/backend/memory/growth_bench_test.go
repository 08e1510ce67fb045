package memory

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// BenchmarkGrowth is the first hit of each of 4 million counters. It reports what a counter takes, and the durations of
// hits: the slowest ones move a table.
func BenchmarkGrowth(b *testing.B) {
	const counters = 4_000_000
	for _, keepNames := range []bool{false, true} {
		b.Run(fmt.Sprintf("names=%t", keepNames), func(b *testing.B) {
			took := make([]time.Duration, counters)
			limit := &algorithm.Limit{Kind: algorithm.FixedWindow, Max: 1 << 40, Period: 24 * time.Hour}
			batch := &backend.Batch{
				Hits: []backend.Hit{{Limit: limit, Amount: 1}}, Verdicts: make([]backend.Verdict, 1), Now: epoch,
			}
			for b.Loop() {
				s, err := New(Config{MaxBytes: 1 << 30, KeepNames: keepNames})
				if err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				for i := range counters {
					batch.Hits[0].Key = fmt.Appendf(batch.Hits[0].Key[:0], "api_k_%07d_", i)
					if err := s.Take(b.Context(), batch); err != nil {
						b.Fatal(err)
					}
					end := time.Now()
					took[i], start = end.Sub(start), end
				}
				b.ReportMetric(float64(s.Bytes())/counters, "B/counter")
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/counters, "ns/hit")
			slices.Sort(took)
			for _, share := range []float64{0.99, 0.999, 0.9999, 1} {
				d := took[int(share*(counters-1))]
				b.ReportMetric(float64(d.Nanoseconds())/1000, fmt.Sprintf("p%v-µs", share*100))
			}
		})
	}
}
