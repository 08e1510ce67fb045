package service

import (
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
)

// bufferedStats are the figures of the budget that all callers share, and of what
// the gRPC port refused for it, for statsd and the debug port.
func (s *Service) bufferedStats(add func(metrics.Stat)) {
	add(metrics.Stat{Name: "ratelimit.buffered.bytes", Kind: metrics.KindGauge, Value: s.held.Held()})
	add(metrics.Stat{Name: "ratelimit.buffered.evicted", Kind: metrics.KindCounter, Value: s.held.Evicted()})
	st := s.front.grpc.GuardStats()
	add(metrics.Stat{Name: "ratelimit.grpc.cx_stalled", Kind: metrics.KindCounter, Value: st.Stalled})
	add(metrics.Stat{Name: "ratelimit.grpc.cx_slowed", Kind: metrics.KindCounter, Value: st.Slowed})
	add(metrics.Stat{Name: "ratelimit.grpc.streams_refused", Kind: metrics.KindCounter, Value: st.LongRefused})
}

// bufferedSamples are the same as native metrics.
func (s *Service) bufferedSamples(add func(prometheus.Sample)) {
	add(prometheus.Sample{Name: "ratelimit_buffered_bytes", Help: "Bytes held for callers: requests, unread replies, streams, HTTP bodies.", Kind: metrics.KindGauge, Value: float64(s.held.Held())})
	add(prometheus.Sample{Name: "ratelimit_buffered_max_bytes", Help: "The most bytes held for callers, MAX_BUFFERED_BYTES.", Kind: metrics.KindGauge, Value: float64(s.held.Max())})
	add(prometheus.Sample{Name: "ratelimit_buffered_evicted_total", Help: "Connections closed because they held the most when MAX_BUFFERED_BYTES was reached.", Kind: metrics.KindCounter, Value: float64(s.held.Evicted())})
	st := s.front.grpc.GuardStats()
	count := func(name, help string, value int64) {
		add(prometheus.Sample{Name: "ratelimit_grpc_" + name + "_total", Help: help, Kind: metrics.KindCounter, Value: float64(value)})
	}
	count("stalled_connections", "Connections closed because the client did not read for 10 s.", st.Stalled)
	count("slowed_reads", "Reads delayed because a client sent more control frames or resets than it may.", st.Slowed)
	count("refused_streams", "Health watches and reflection calls beyond the number that is allowed.", st.LongRefused)
}
