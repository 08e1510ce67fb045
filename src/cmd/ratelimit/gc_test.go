package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 1600, 1 << 20: 1600, 8 << 20: 800, 16 << 20: 400, 64 << 20: 100, 1 << 40: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes: %d, want %d", live, got, want)
		}
	}
}

func TestTuneGC(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	tuneGC(func(string) (string, bool) { return "50", true })()
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("GOGC was set and is %d now", got)
	}
	stop := tuneGC(func(string) (string, bool) { return "", false })
	if got := debug.SetGCPercent(100); got <= 100 {
		t.Errorf("GOGC is %d", got)
	}
	runtime.GC()
	for deadline := time.Now().Add(10 * time.Second); debug.SetGCPercent(100) <= 100; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it is not tuned again after a collection")
		}
	}
	stop()
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("GOGC is %d in the end", got)
	}
}
