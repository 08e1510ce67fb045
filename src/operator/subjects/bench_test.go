package subjects

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

// BenchmarkShare decides batches of 32 requests on 100,000 counters in memory. Rounds with a Tracker and without one
// alternate, so that both see the same machine. It reports the time of a request without the Tracker, and what the
// Tracker adds, in the round that a quarter of the rounds is faster than: slower ones were disturbed. As the Tracker
// counts as many decisions per second in half of the time, it costs more here than in a service.
func BenchmarkShare(b *testing.B) {
	for _, tt := range []struct {
		name  string
		limit int
	}{{"admitted", 1_000_000_000}, {"denied", 0}} {
		b.Run(tt.name, func(b *testing.B) {
			store := limitertest.Store(b, memory.Config{})
			text := fmt.Sprintf("domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: %d}}]",
				tt.limit)
			set := limitertest.Rules(b, text)
			counters, tracker := metrics.New(metrics.Config{}), New(64)
			counters.UseRules(set)
			tracker.UseRules(set)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			go func() { _ = tracker.Run(ctx) }()
			limiters := []*limiter.Limiter{
				limiter.New(limiter.Config{Backend: store, Recorders: []limiter.Recorder{counters}}),
				limiter.New(limiter.Config{Backend: store, Recorders: []limiter.Recorder{counters, tracker}}),
			}
			for _, l := range limiters {
				l.UseRules(set)
			}
			const keys, batchSize, batches = 100_000, 32, 8
			entries := make([][]rules.Entry, keys)
			for i := range entries {
				entries[i] = []rules.Entry{{Key: []byte("user"), Value: fmt.Appendf(nil, "user-%d", i)}}
			}
			domain, next := []byte("d"), 0
			var m limiter.Many
			round := func(l *limiter.Limiter) time.Duration {
				start := time.Now()
				for range batches {
					for range batchSize {
						next = (next + 7919) % keys
						item := m.Add()
						item.Request.Domain = domain
						item.Request.Descriptors = append(item.Request.Descriptors, limiter.Descriptor{Entries: entries[next]})
					}
					l.CheckMany(b.Context(), &m)
					m.Reset(16)
				}
				return time.Since(start)
			}
			var took [2][]time.Duration
			for b.Loop() {
				for i, l := range limiters {
					took[i] = append(took[i], round(l))
				}
			}
			perRequest := func(list []time.Duration) float64 {
				slices.Sort(list)
				return float64(list[len(list)/4].Nanoseconds()) / (batches * batchSize)
			}
			without, with := perRequest(took[0]), perRequest(took[1])
			b.ReportMetric(without, "ns/request-without")
			b.ReportMetric(with-without, "ns/request-added")
		})
	}
}

// BenchmarkRecord is the cost of a decision alone.
func BenchmarkRecord(b *testing.B) {
	for _, tt := range []struct {
		name   string
		weight uint64
	}{{"unsampled", maxWeight}, {"sampled", 1}} {
		b.Run(tt.name, func(b *testing.B) {
			tracker, set := seededTracker(b, 4, 1, twoRules)
			tracker.random = New(1).random
			values := make([][]byte, 100_000)
			for i := range values {
				values[i] = fmt.Appendf(nil, "user-%d", i)
			}
			q := newQuestion(set, 0)
			for i := range 100_000 {
				q.set(values[i], 1, false)
				tracker.Record(&q.req, &q.a)
			}
			s := &tracker.rules[metrics.RuleName{Domain: "d", Rule: "d.user"}].samplers[Hits]
			s.setWeight(tt.weight)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.samples = 0
				i = (i + 7919) % len(values)
				q.set(values[i], 1, false)
				tracker.Record(&q.req, &q.a)
			}
		})
	}
}
