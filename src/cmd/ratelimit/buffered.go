package main

import (
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
)

// bufferedStats are the figures of the budget that all callers share, for statsd
// and the debug port.
func (s *server) bufferedStats(add func(metrics.Stat)) {
	add(metrics.Stat{Name: "ratelimit.buffered.bytes", Kind: metrics.KindGauge, Value: s.buffered.Held()})
	add(metrics.Stat{Name: "ratelimit.buffered.evicted", Kind: metrics.KindCounter, Value: s.buffered.Evicted()})
}

// bufferedSamples are the same as native metrics.
func (s *server) bufferedSamples(add func(prometheus.Sample)) {
	add(prometheus.Sample{Name: "ratelimit_buffered_bytes", Help: "Bytes held for callers: requests, unread replies, streams, HTTP bodies.", Kind: metrics.KindGauge, Value: float64(s.buffered.Held())})
	add(prometheus.Sample{Name: "ratelimit_buffered_max_bytes", Help: "The most bytes held for callers, MAX_BUFFERED_BYTES.", Kind: metrics.KindGauge, Value: float64(s.buffered.Max())})
	add(prometheus.Sample{Name: "ratelimit_buffered_evicted_total", Help: "Connections closed because they held the most when MAX_BUFFERED_BYTES was reached.", Kind: metrics.KindCounter, Value: float64(s.buffered.Evicted())})
}
