package resp

import (
	"fmt"
	"testing"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/testbed/limitertest"
)

// BenchmarkAnswer answers 16 commands of a pipeline about 100,000 counters, without a network.
func BenchmarkAnswer(b *testing.B) {
	for _, name := range []string{"RATELIMIT", "CL.THROTTLE", "RATELIMIT.TREE"} {
		b.Run(name, func(b *testing.B) {
			store := limitertest.Store(b, memory.Config{MaxBytes: 64 << 20})
			l := limiter.New(limiter.Config{Backend: store})
			l.UseRules(loadRules(b))
			s := build(b, Config{Limiter: l})
			bursts := make([][]byte, 100_000/16)
			for i := range 100_000 / 16 * 16 {
				key := fmt.Sprintf("%012d", i*7919%100_000)
				args := map[string][]string{
					"RATELIMIT":      {"RATELIMIT", "api", "user", key},
					"CL.THROTTLE":    {"CL.THROTTLE", key, "15", "30", "60"},
					"RATELIMIT.TREE": {"RATELIMIT.TREE", "limits", "1", "user", key, "trade"},
				}[name]
				bursts[i/16] = append(bursts[i/16], bulk(args...)...)
			}
			c, r := s.newSession(elsewhere), new(pipeline.Replies)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				r.Reset()
				if _, requests, err := c.Answer(b.Context(), bursts[n%len(bursts)], false, r); requests != 16 || err != nil {
					b.Fatal(requests, err)
				}
				n++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(16*n), "ns/command")
		})
	}
}
