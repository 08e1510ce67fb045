package heap

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestMemoryUse(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		memoryUse
		percent int
		limit   int64
	}{
		{memoryUse{0, 0, 0, 0}, 1600, 0},
		{memoryUse{1 * mib, 0, 0, 0}, 1600, 0},
		{memoryUse{8 * mib, 0, 0, 0}, 800, 0},
		{memoryUse{16 * mib, 0, 0, 0}, 400, 0},
		{memoryUse{64 * mib, 0, 0, 0}, 100, 0},
		{memoryUse{1 << 40, 0, 0, 0}, 100, 0},
		{memoryUse{8 * mib, 12 * mib, 0, 256 * mib}, 800, 296 * mib},
		{memoryUse{108 * mib, 12 * mib, 100 * mib, 256 * mib}, 59, 296 * mib},
		{memoryUse{264 * mib, 12 * mib, 256 * mib, 256 * mib}, 7, 296 * mib},
		{memoryUse{284 * mib, 32 * mib, 256 * mib, 256 * mib}, 9, 356 * mib}, // the 28 MiB that are no counters may double
		{memoryUse{8 << 40, 12 * mib, 8 << 40, 8 << 40}, 1, 8<<40 + 40*mib},
	} {
		limit := int64(0)
		if tt.maxCounterBytes > 0 {
			limit = tt.memoryUse.memoryLimit()
		}
		if percent := tt.gcPercent(); percent != tt.percent || limit != tt.limit {
			t.Errorf("%+v: GOGC %d, a limit of %d MiB", tt, percent, limit>>20)
		}
	}
}

func TestTuneGC(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	Tune(func(string) (string, bool) { return "50", true }).Stop()
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("GOGC was set and is %d now", got)
	}
	gc := Tune(func(string) (string, bool) { return "", false })
	if got := debug.SetGCPercent(100); got <= 100 {
		t.Errorf("GOGC is %d", got)
	}
	runtime.GC()
	for deadline := time.Now().Add(10 * time.Second); debug.SetGCPercent(100) <= 100; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it is not tuned again after a collection")
		}
	}
	limit := debug.SetMemoryLimit(-1)
	gc.Watch(func() int64 { return 0 }, 256<<20)
	runtime.GC()
	for deadline := time.Now().Add(10 * time.Second); debug.SetMemoryLimit(-1) == limit; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("counters make no limit on the memory")
		}
	}
	gc.Stop()
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("the memory limit is %d in the end, it was %d", got, limit)
	}
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("GOGC is %d in the end", got)
	}
}
