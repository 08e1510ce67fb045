package prometheus

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"ratelimit/src/metrics"
)

func BenchmarkTiming(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := exporter(b, Config{})
			b.ReportAllocs()
			for b.Loop() {
				e.ObserveTimings("ratelimit_server.ShouldRateLimit.response_time", n, 3*time.Millisecond)
			}
		})
	}
}

// nowhere throws answers away.
type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header       { return n.header }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}

func BenchmarkScrape60000(b *testing.B) {
	var v values
	for i := range 10_000 {
		for _, stat := range []string{
			"near_limit", "over_limit", "over_limit_with_local_cache", "shadow_mode", "total_hits",
			"within_limit",
		} {
			v = append(v, metrics.Stat{
				Name:  fmt.Sprintf("ratelimit.service.rate_limit.domain.ip_10_0_%05d.%s", i, stat),
				Value: 1,
			})
		}
	}
	r := v.source()
	request, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("stats", func(b *testing.B) { // the registry's share
		for b.Loop() {
			r.Stats()
		}
	})
	b.Run("first", func(b *testing.B) { // names are mapped
		b.ReportAllocs()
		for b.Loop() {
			exporter(b, Config{Registry: r}).Handler().ServeHTTP(nowhere{http.Header{}}, request)
		}
	})
	b.Run("later", func(b *testing.B) {
		e := exporter(b, Config{Registry: r})
		e.Handler().ServeHTTP(nowhere{http.Header{}}, request)
		b.ReportAllocs()
		for b.Loop() {
			e.Handler().ServeHTTP(nowhere{http.Header{}}, request)
		}
	})
}
