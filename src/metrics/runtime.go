package metrics

import "runtime"

// RuntimeFigures returns figures of the Go runtime, mostly of its memory, under the names of
// envoyproxy/ratelimit. Sizes are in bytes.
func RuntimeFigures() []Figure {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return []Figure{
		Gauge("ratelimit.go.alloc", m.Alloc),
		Gauge("ratelimit.go.sys", m.Sys),
		Gauge("ratelimit.go.heapAlloc", m.HeapAlloc),
		Gauge("ratelimit.go.heapSys", m.HeapSys),
		Gauge("ratelimit.go.heapIdle", m.HeapIdle),
		Gauge("ratelimit.go.heapInuse", m.HeapInuse),
		Gauge("ratelimit.go.heapReleased", m.HeapReleased),
		Gauge("ratelimit.go.heapObjects", m.HeapObjects),
		Gauge("ratelimit.go.nextGC", m.NextGC),
		Gauge("ratelimit.go.lastGC", m.LastGC),
		Gauge("ratelimit.go.gcCPUPercent", int64(m.GCCPUFraction*100)),
		Gauge("ratelimit.go.numGoroutine", runtime.NumGoroutine()),
		Count("ratelimit.go.totalAlloc", m.TotalAlloc),
		Count("ratelimit.go.mallocs", m.Mallocs),
		Count("ratelimit.go.frees", m.Frees),
		Count("ratelimit.go.pauseTotalNs", m.PauseTotalNs),
		Count("ratelimit.go.numGC", uint64(m.NumGC)),
	}
}
