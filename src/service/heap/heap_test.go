package heap

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryUse(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		memoryUse
		percent int
		limit   int64
	}{
		{memoryUse{}, 1600, 0},
		{memoryUse{1 * mib, 0, 0, 0, 0, false}, 1600, 0},
		{memoryUse{8 * mib, 0, 0, 0, 0, false}, 400, 0},
		{memoryUse{16 * mib, 0, 0, 0, 0, false}, 200, 0},
		{memoryUse{64 * mib, 0, 0, 0, 0, false}, 100, 0},
		{memoryUse{1 << 40, 0, 0, 0, 0, false}, 100, 0},
		{memoryUse{8 * mib, 12 * mib, 0, 256 * mib, 0, false}, 400, 292 * mib},
		{memoryUse{108 * mib, 12 * mib, 100 * mib, 256 * mib, 0, false}, 29, 292 * mib},
		{memoryUse{264 * mib, 12 * mib, 256 * mib, 256 * mib, 0, false}, 6, 292 * mib},
		// the 28 MiB that are no counters may double
		{memoryUse{284 * mib, 32 * mib, 256 * mib, 256 * mib, 0, false}, 9, 352 * mib},
		{memoryUse{200 * mib, 0, 0, 0, 0, true}, 75, 0},
		{memoryUse{8 << 40, 12 * mib, 8 << 40, 8 << 40, 0, false}, 1, 8<<40 + 36*mib},
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

func TestIsWorthRelease(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		liveMiB, unusedMiB int64
		want               bool
	}{
		{0, 0, false}, {10, 64, false}, {10, 65, true}, {900, 300, false}, {900, 301, true}, {10, -5, false},
	} {
		u := memoryUse{liveHeapBytes: tt.liveMiB * mib, unusedHeapBytes: tt.unusedMiB * mib}
		if got := u.isWorthRelease(); got != tt.want {
			t.Errorf("%+v: got %t", tt, got)
		}
	}
	if u := memoryInUse(); u.unusedHeapBytes < -u.liveHeapBytes || u.unusedHeapBytes > 1<<40 {
		t.Errorf("%d bytes of the heap are unused", u.unusedHeapBytes)
	}
}

// Memory is returned once, some time after the last of several loads.
func TestMemoryIsReturnedAfterLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var releases atomic.Int32
		tuner := &Tuner{rulesLoaded: make(chan struct{}, 1), returnUnused: func() { releases.Add(1) }}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tuner.Run(ctx) }()
		for _, step := range []struct {
			loads int
			wait  time.Duration
			want  int32
		}{
			{loads: 0, wait: time.Hour, want: 0},
			{loads: 3, wait: quietBeforeRelease - time.Second, want: 0},
			{loads: 1, wait: quietBeforeRelease - time.Second, want: 0},
			{loads: 0, wait: 2 * time.Second, want: 1},
			{loads: 0, wait: time.Hour, want: 1},
		} {
			for range step.loads {
				tuner.RulesLoaded()
			}
			time.Sleep(step.wait)
			synctest.Wait()
			if n := releases.Load(); n != step.want {
				t.Errorf("%+v: memory was returned %d times", step, n)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	var none *Tuner
	none.RulesLoaded()
	if err := none.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// Memory is returned once after counters became many more, and once after they became many fewer.
func TestMemoryIsReturnedAfterCountersGrow(t *testing.T) {
	const mib = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		var releases atomic.Int32
		var counterBytes atomic.Int64
		tuner := &Tuner{freeMemory: func() { releases.Add(1) }}
		tuner.Watch(counterBytes.Load, 1<<30)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tuner.Run(ctx) }()
		time.Sleep(time.Millisecond) // The steps are between the ticks.
		for _, step := range []struct {
			bytes    int64
			after    time.Duration
			releases int32
		}{
			{0, time.Hour, 0},
			{7 * mib, time.Hour, 0},
			{100 * mib, counterGrowthInterval, 0},
			{180 * mib, counterGrowthInterval, 0},
			{180*mib + 1, counterGrowthInterval, 1},
			{180*mib + 1, time.Hour, 1},
			{190 * mib, time.Hour, 1},
			{200 * mib, time.Hour, 2},
			{20 * mib, counterGrowthInterval, 2},
			{20 * mib, time.Hour, 3},
			{0, time.Hour, 4},
		} {
			counterBytes.Store(step.bytes)
			time.Sleep(step.after)
			synctest.Wait()
			if n := releases.Load(); n != step.releases {
				t.Errorf("%+v: memory was returned %d times", step, n)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// GOMEMLIMIT bounds the process: Go's own limit leaves room for the program, with counters and without.
func TestMemoryLimitIncludesProgram(t *testing.T) {
	const mib = 1 << 20
	before := debug.SetMemoryLimit(224 * mib)
	defer debug.SetMemoryLimit(before)
	gc := Tune(func(string) (string, bool) { return "", false })
	if got := debug.SetMemoryLimit(-1); got != 196*mib {
		t.Errorf("the limit is %d MiB, want 196", got/mib)
	}
	gc.Watch(func() int64 { return 0 }, 1<<40)
	gc.tune(&collectionMarker{new(byte)})
	if got := debug.SetMemoryLimit(-1); got != 196*mib {
		t.Errorf("with counters the limit is %d MiB, want 196", got/mib)
	}
	gc.Stop()
	if got := debug.SetMemoryLimit(-1); got != 224*mib {
		t.Errorf("the limit is %d MiB in the end, want 224", got/mib)
	}
	for limit, want := range map[int64]int64{math.MaxInt64: math.MaxInt64, 32 * mib: 24 * mib} {
		if got := withoutProgram(limit); got != want {
			t.Errorf("of %d bytes %d are for the runtime, want %d", limit, got, want)
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
