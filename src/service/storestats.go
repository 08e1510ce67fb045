package service

import (
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/backend/redis"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
)

// memorySamples are the figures of the memory store as native metrics.
func memorySamples(store *memory.Store) func(func(prometheus.Sample)) {
	labels := []string{"store", "memory"}
	return func(add func(prometheus.Sample)) {
		st := store.Stats()
		add(prometheus.Sample{Name: "ratelimit_store_keys", Help: "Counters held, expired ones not swept yet included.", Labels: labels, Kind: metrics.KindGauge, Value: float64(st.Keys)})
		add(prometheus.Sample{Name: "ratelimit_store_bytes", Help: "Size of the tables of counters.", Labels: labels, Kind: metrics.KindGauge, Value: float64(st.Bytes)})
		add(prometheus.Sample{Name: "ratelimit_store_evicted_total", Help: "Live counters dropped for want of room.", Labels: labels, Kind: metrics.KindCounter, Value: float64(st.Evicted)})
	}
}

// memoryStats are the same under names for statsd and the debug port.
func memoryStats(store *memory.Store) func(func(metrics.Stat)) {
	return func(add func(metrics.Stat)) {
		st := store.Stats()
		add(metrics.Stat{Name: "ratelimit.memory.keys", Kind: metrics.KindGauge, Value: st.Keys})
		add(metrics.Stat{Name: "ratelimit.memory.bytes", Kind: metrics.KindGauge, Value: st.Bytes})
		add(metrics.Stat{Name: "ratelimit.memory.evicted", Kind: metrics.KindCounter, Value: st.Evicted})
	}
}

// redisStats are the figures of a Redis under upstream's names, and ours.
func redisStats(name string, store *redis.Store) func(func(metrics.Stat)) {
	return func(add func(metrics.Stat)) {
		st := store.Stats()
		prefix := "ratelimit." + name + "."
		add(metrics.Stat{Name: prefix + "cx_active", Kind: metrics.KindGauge, Value: st.Open})
		add(metrics.Stat{Name: prefix + "cx_total", Kind: metrics.KindCounter, Value: st.Dials})
		add(metrics.Stat{Name: prefix + "cx_local_close", Kind: metrics.KindCounter, Value: st.Dials - st.Open})
		add(metrics.Stat{Name: prefix + "batches", Kind: metrics.KindCounter, Value: st.Batches})
		add(metrics.Stat{Name: prefix + "batches_failed", Kind: metrics.KindCounter, Value: st.Failed})
		add(metrics.Stat{Name: prefix + "commands", Kind: metrics.KindCounter, Value: st.Commands})
		add(metrics.Stat{Name: prefix + "waiting", Kind: metrics.KindGauge, Value: st.Waiting})
	}
}

// batchFigures are how large the batches of one store are, and how long they
// take.
type batchFigures struct {
	sizes metrics.Sizes
	trips metrics.Histogram
}

func (f *batchFigures) observe(hits int, took time.Duration) {
	f.sizes.Observe(hits)
	f.trips.Observe(took)
}

// redisSamples are the same as native metrics.
func redisSamples(name string, store *redis.Store, batches *batchFigures) func(func(prometheus.Sample)) {
	return func(add func(prometheus.Sample)) {
		st := store.Stats()
		out := storeSamples{add, []string{"store", name}}
		out.connections(st.Servers, st.Open, st.Waiting, st.Dials)
		out.batches(st.Failed, st.Commands, batches)
		out.errors(st.Errors)
		out.breakers(st.BreakersOpen, st.BreakerOpened)
		out.count("sent_on_total", "Hits that a node of a cluster sent on to another.", st.SentOn)
	}
}

// storeSamples adds the native metrics of one store with servers.
type storeSamples struct {
	add    func(prometheus.Sample)
	labels []string
}

func (s *storeSamples) gauge(name, help string, value int64) {
	s.add(prometheus.Sample{Name: "ratelimit_store_" + name, Help: help, Labels: s.labels, Kind: metrics.KindGauge, Value: float64(value)})
}

func (s *storeSamples) count(name, help string, value int64, more ...string) {
	labels := append(s.labels[:2:2], more...)
	s.add(prometheus.Sample{Name: "ratelimit_store_" + name, Help: help, Labels: labels, Kind: metrics.KindCounter, Value: float64(value)})
}

func (s *storeSamples) connections(servers int, open, waiting, dials int64) {
	s.gauge("servers", "Servers that calls are sent to: one, the primaries of a cluster, or those of Memcached.", int64(servers))
	s.gauge("connections", "Connections that are open.", open)
	s.gauge("calls_waiting", "Calls that wait for an answer.", waiting)
	s.count("dials_total", "Connections that were tried.", dials)
}

func (s *storeSamples) batches(failed, commands int64, figures *batchFigures) {
	s.count("batches_failed_total", "Batches without a whole answer.", failed)
	s.count("commands_total", "Commands in all batches; with Memcached each is a batch.", commands)
	s.add(prometheus.Sample{Name: "ratelimit_store_batch_hits", Help: "Hits that were sent in one batch.", Labels: s.labels, Histogram: &figures.sizes})
	s.add(prometheus.Sample{Name: "ratelimit_store_round_trip_seconds", Help: "How long a batch took to be answered.", Labels: s.labels, Histogram: &figures.trips})
}

func (s *storeSamples) errors(byCause map[string]int64) {
	for cause, n := range byCause {
		s.count("errors_total", "Hits that the store did not answer, by cause.", n, "cause", cause)
	}
}

func (s *storeSamples) breakers(open int, opened int64) {
	s.gauge("breakers_open", "Servers that do not answer, so that they are only probed.", int64(open))
	s.count("breaker_opened_total", "How often the breaker of a server opened, as it did not answer.", opened)
}

// cacheStats are the figures of the over-limit cache under upstream's names.
func cacheStats(cache *overlimit.Cache) func(func(metrics.Stat)) {
	return func(add func(metrics.Stat)) {
		st := cache.Stats()
		gauge := func(name string, value int64) {
			add(metrics.Stat{Name: "ratelimit.localcache." + name, Kind: metrics.KindGauge, Value: value})
		}
		gauge("entryCount", st.Entries)
		gauge("hitCount", st.Hits)
		gauge("missCount", st.Misses)
		gauge("lookupCount", st.Lookups)
		gauge("overwriteCount", st.Overwrites)
		gauge("evacuateCount", st.Evacuated)
		gauge("expiredCount", st.Expired)
		gauge("averageAccessTime", st.AverageAccessTime)
	}
}
