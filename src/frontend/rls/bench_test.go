package rls

import (
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/limiter"
)

// manyJSON is a body of /json with n descriptors of several entries.
func manyJSON(n, entries int) string {
	descriptor := `{"entries":[` + strings.Repeat(`{"key":"a","value":"b"},`, entries-1) + `{"key":"ip","value":"1"}]}`
	return `{"domain":"d","descriptors":[` + strings.Repeat(descriptor+",", n-1) + descriptor + `]}`
}

// BenchmarkNeighbour is a gRPC call of one descriptor, every 5 ms, beside 16 callers
// that send large requests all the time, and the slowest of its calls.
func BenchmarkNeighbour(b *testing.B) {
	const ruleFile = "domain: d\ndescriptors:\n  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 4000000000}}\n"
	s := startWith(b, ruleFile, limiter.Config{})
	ask := func(data []byte) { _ = s.ask(b.Context(), data) } // The large ones are no requests.
	small := encode(b, request(descriptor("ip", "1")))
	many := request()
	for range limiter.MaxDescriptors {
		many.Descriptors = append(many.Descriptors, descriptor("ip", "1"))
	}
	large := encode(b, many)
	h := s.JSONHandler()
	body := manyJSON(limiter.MaxDescriptors, 16)
	garbage := []byte(strings.Repeat("\x2a\x00", 2<<20))
	for _, tt := range []struct {
		name string
		ask  func()
	}{
		{"gRPC", func() { ask(large) }},
		{"gRPC of 4 MiB", func() { ask(garbage) }},
		{"json", func() { _ = post(h, body) }},
	} {
		b.Run(tt.name, func(b *testing.B) {
			const callers = 16
			done, stopped := make(chan struct{}), make(chan int)
			for range callers {
				go func() {
					for n := 0; ; n++ {
						select {
						case <-done:
							stopped <- n
							return
						default:
							tt.ask()
						}
					}
				}()
			}
			var took []time.Duration
			begun := time.Now()
			for b.Loop() {
				time.Sleep(5 * time.Millisecond) // the pace of the measured calls
				sent := time.Now()
				ask(small)
				took = append(took, time.Since(sent))
			}
			lasted := time.Since(begun)
			close(done)
			calls := 0
			for range callers {
				calls += <-stopped
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(calls)/lasted.Seconds(), "large/s")
		})
	}
}
