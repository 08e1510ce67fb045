package push

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"ratelimit/src/metrics"
)

func sink(b *testing.B, f Format, m ...Mogrifier) *Sink {
	s, err := New(Config{
		ReadStats: func() []metrics.Stat { return nil }, Addr: "x:1", Format: f, Mogrifiers: m,
		Tags: map[string]string{"env": "prod", "zone": "z"},
	})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// empty keeps room in the queue.
func (s *Sink) empty() {
	if n := s.WaitingBytes(); n > 1<<19 {
		s.discardBytes(n)
	}
}

func BenchmarkTiming(b *testing.B) {
	for name, d := range map[string]Format{"plain": Statsd, "dogstatsd": DogStatsD} {
		for _, n := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				s := sink(b, d)
				b.ReportAllocs()
				for b.Loop() {
					s.AddTimings("ratelimit_server.ShouldRateLimit.response_time", n, 3*time.Millisecond)
					s.empty()
				}
			})
		}
	}
}

func BenchmarkFlush60000(b *testing.B) {
	var stats []metrics.Stat
	for i := range 60_000 {
		stats = append(stats, c(fmt.Sprintf("ratelimit.service.rate_limit.domain.remote_address_10_0_%05d.total_hits", i), 0))
	}
	m := Mogrifier{
		regexp.MustCompile(`^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$`), "ratelimit.$3",
		map[string]string{"domain": "$1", "rule": "$2"},
	}
	for _, bench := range []struct {
		name  string
		sink  *Sink
		moved int64
	}{
		{"plain/none_moved", sink(b, Statsd), 0},
		{"plain/all_moved", sink(b, Statsd), 1},
		{"mogrified/all_moved", sink(b, DogStatsD, m), 1},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var deltas metrics.Deltas[*spelledName]
			now := slices.Clone(stats)
			var line []byte
			put := func(st metrics.Stat, added int64, n **spelledName) bool {
				if added == 0 {
					return true
				}
				if *n == nil {
					*n = new(bench.sink.lineFormat.spellName(st.Name))
				}
				line = bench.sink.lineFormat.appendLine(line[:0], **n, added, kindCounter)
				bench.sink.addLines(line, 1)
				bench.sink.empty()
				return true
			}
			b.ReportAllocs()
			for b.Loop() {
				for i := range now {
					now[i].Value += bench.moved
				}
				deltas.ForEachDelta(now, put)
				bench.sink.lineFormat.appendFlushEnd(nil)
			}
		})
	}
}
