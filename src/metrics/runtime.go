package metrics

import "runtime"

// GoRuntime is a Source of figures on this process' memory, under the names
// that envoyproxy/ratelimit uses.
func GoRuntime(add func(Stat)) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for _, s := range []Stat{
		{"alloc", KindGauge, int64(m.Alloc)},
		{"sys", KindGauge, int64(m.Sys)},
		{"heapAlloc", KindGauge, int64(m.HeapAlloc)},
		{"heapSys", KindGauge, int64(m.HeapSys)},
		{"heapIdle", KindGauge, int64(m.HeapIdle)},
		{"heapInuse", KindGauge, int64(m.HeapInuse)},
		{"heapReleased", KindGauge, int64(m.HeapReleased)},
		{"heapObjects", KindGauge, int64(m.HeapObjects)},
		{"nextGC", KindGauge, int64(m.NextGC)},
		{"lastGC", KindGauge, int64(m.LastGC)},
		{"gcCPUPercent", KindGauge, int64(m.GCCPUFraction * 100)},
		{"numGoroutine", KindGauge, int64(runtime.NumGoroutine())},
		{"totalAlloc", KindCounter, int64(m.TotalAlloc)},
		{"mallocs", KindCounter, int64(m.Mallocs)},
		{"frees", KindCounter, int64(m.Frees)},
		{"pauseTotalNs", KindCounter, int64(m.PauseTotalNs)},
		{"numGC", KindCounter, int64(m.NumGC)},
	} {
		s.Name = "ratelimit.go." + s.Name
		add(s)
	}
}
