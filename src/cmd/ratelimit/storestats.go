package main

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

// batchFigures are how large the batches of one Redis are, and how long they
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
	labels := []string{"store", name}
	return func(add func(prometheus.Sample)) {
		st := store.Stats()
		gauge := func(name, help string, value float64) {
			add(prometheus.Sample{Name: "ratelimit_store_" + name, Help: help, Labels: labels, Kind: metrics.KindGauge, Value: value})
		}
		count := func(name, help string, value float64, more ...string) {
			add(prometheus.Sample{Name: "ratelimit_store_" + name, Help: help, Labels: append(labels[:2:2], more...), Kind: metrics.KindCounter, Value: value})
		}
		gauge("servers", "Servers that calls are sent to: one, or the primaries of a cluster.", float64(st.Servers))
		gauge("connections", "Connections that are open.", float64(st.Open))
		gauge("calls_waiting", "Calls that wait for an answer.", float64(st.Waiting))
		count("dials_total", "Connections that were tried.", float64(st.Dials))
		count("batches_failed_total", "Batches without a whole answer.", float64(st.Failed))
		count("commands_total", "Commands in all batches.", float64(st.Commands))
		count("sent_on_total", "Hits that a node of a cluster sent on to another.", float64(st.SentOn))
		for class, n := range st.Errors {
			count("errors_total", "Hits that the store did not answer, by cause.", float64(n), "cause", class)
		}
		add(prometheus.Sample{Name: "ratelimit_store_batch_hits", Help: "Hits that were sent in one batch.", Labels: labels, Histogram: &batches.sizes})
		add(prometheus.Sample{Name: "ratelimit_store_round_trip_seconds", Help: "How long a batch took to be answered.", Labels: labels, Histogram: &batches.trips})
	}
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
