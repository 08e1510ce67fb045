package redis

import (
	"fmt"
	"hash/maphash"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// Charges on one key, alternately added up and looked at, cost the same however many
// there are.
func BenchmarkPipelineOfOneKey(b *testing.B) {
	for _, hits := range []int{1000, 2000, 4000, 8000} {
		b.Run(fmt.Sprint(hits), func(b *testing.B) {
			batch := many(hits, algorithm.FixedWindow, "k", false)
			for i := range batch.Hits {
				batch.Hits[i].Key = []byte("k_")
				if i%2 > 0 {
					batch.Hits[i].Op = algorithm.Look
				}
			}
			c := remote.NewCall()
			if err := (&protocol{cfg: new(Config)}).Fill(c, batch, epoch.UnixNano()); err != nil {
				b.Fatal(err)
			}
			p := pipeline{seed: maphash.MakeSeed()}
			b.ReportAllocs()
			for b.Loop() {
				p.Reset(hits)
				for i := range c.Hits {
					p.Add(c, i, i+1)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(hits), "ns/hit")
		})
	}
}
