// Package heap sets the garbage collector's target and the memory limit from what lives on
// the heap, and returns memory to the system after loads of rules and after counters became more or fewer.
package heap

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// minGrowthBytes is the least growth of the heap between two collections. A few megabytes live, and a call that grpc-go
// or net/http serves leaves 5 KB of garbage: at 20,000 a second Go's own rule collects 16 times a second, this three
// times. Other calls leave none.
const minGrowthBytes = 32 << 20

const (
	otherMemoryBytes = 64 << 20 // bounds the memory beside counters, connections and requests.
	// what Go's memory limit does not count: the pages of the program file in use, and what the heap overshoots.
	programBytes            = 28 << 20
	runtimeBytes            = 12 << 20 // the memory of the Go runtime in an idle process.
	idleLiveBytes           = 8 << 20  // live on the heap of an idle process without counters.
	minGrowthNearLimitBytes = 8 << 20
)

// Tuner sets how much the heap may grow after each collection. A nil Tuner does nothing.
type Tuner struct {
	stopped             atomic.Bool
	previousGCPercent   int   // restored by Stop.
	previousMemoryLimit int64 // GOMEMLIMIT, which Stop restores.
	counterMemory       atomic.Pointer[counterMemory]
	awaitsRules         atomic.Bool   // set by AwaitRules until the first RulesLoaded.
	rulesLoaded         chan struct{} // a message after a load of rules.
	returnUnused        func()        // returnUnusedMemory. Tests replace it.
	freeMemory          func()        // debug.FreeOSMemory. Tests replace it.
}

// counterMemory is the memory of the counters in this process, and its cap.
type counterMemory struct {
	bytes    func() int64
	maxBytes int64
}

// Tune sets the growth of the heap after each collection until Stop is called. It returns
// nil if GOGC is set. GOMEMLIMIT always holds; unless GOGC is set, it includes the program.
func Tune(lookup func(string) (string, bool)) *Tuner {
	if gogc, _ := lookup("GOGC"); gogc != "" {
		return nil
	}
	t := &Tuner{
		previousGCPercent: debug.SetGCPercent(100), previousMemoryLimit: debug.SetMemoryLimit(-1),
		rulesLoaded: make(chan struct{}, 1), returnUnused: returnUnusedMemory, freeMemory: debug.FreeOSMemory,
	}
	t.tune(&collectionMarker{new(byte)})
	return t
}

// Watch names the memory of the counters and its cap. Counters have no pointers, so they
// cost the collector nothing: they add no growth, and near the cap they reduce it.
func (t *Tuner) Watch(bytes func() int64, max int64) {
	if t != nil {
		t.counterMemory.Store(&counterMemory{bytes, max})
	}
}

// Stop restores Go's own rule.
func (t *Tuner) Stop() {
	if t != nil {
		t.stopped.Store(true)
		debug.SetGCPercent(t.previousGCPercent)
		debug.SetMemoryLimit(t.previousMemoryLimit)
	}
}

// tune sets the growth of the heap from what lives after a collection, and runs again after the next.
func (t *Tuner) tune(c *collectionMarker) {
	if t.stopped.Load() {
		return
	}
	u, limit := memoryInUse(), withoutProgram(t.previousMemoryLimit)
	u.awaitsRules = t.awaitsRules.Load()
	if m := t.counterMemory.Load(); m != nil {
		u.counterBytes, u.maxCounterBytes = min(m.bytes(), u.liveHeapBytes), m.maxBytes
		limit = min(limit, u.memoryLimit())
	}
	debug.SetMemoryLimit(limit)
	debug.SetGCPercent(u.gcPercent())
	runtime.SetFinalizer(c, t.tune)
}

// collectionMarker is garbage for each collection. It has a pointer, because the runtime may
// allocate small objects without pointers together.
type collectionMarker struct{ _ *byte }

// memoryUse is the memory of the process in bytes.
type memoryUse struct {
	liveHeapBytes   int64 // what the last collection left on the heap.
	nonHeapBytes    int64 // for stacks and the Go runtime.
	counterBytes    int64 // a part of liveHeapBytes.
	maxCounterBytes int64 // the cap on counters, or 0 if none are in this process.
	unusedHeapBytes int64 // memory of the heap that has garbage or nothing, and that the system has not got back.
	awaitsRules     bool  // true if no rules have been loaded yet.
}

func memoryInUse() memoryUse {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(s)
	bytes := func(i int) int64 { return int64(s[i].Value.Uint64()) }
	live, heap := bytes(0), bytes(2)+bytes(3)+bytes(4)
	return memoryUse{liveHeapBytes: live, nonHeapBytes: bytes(1) - heap - bytes(5), unusedHeapBytes: heap - live}
}

// gcPercent returns the GOGC with which the heap grows enough. Memory without counters may double at least, as with
// Go's own rule, but only grow by three quarters before the first rules, which are most of it. The heap starts with 4
// MiB, so GOGC is at most 1600.
//
//	live 8 MiB,   no counters         -> 400, collect at 40 MiB
//	live 264 MiB, counters 256 of 256 -> 6,   collect at 280 MiB
func (u memoryUse) gcPercent() int {
	other := u.liveHeapBytes - u.counterBytes
	if u.awaitsRules {
		other = other / 4 * 3
	}
	room := max(minGrowthBytes, other)
	left := u.maxCounterBytes + otherMemoryBytes - programBytes - runtimeBytes - u.liveHeapBytes
	if u.maxCounterBytes > 0 && left < room {
		room = max(left, other, minGrowthNearLimitBytes)
	}
	return int(min(max(100*room/max(u.liveHeapBytes, 1), 1), 1600))
}

// withoutProgram returns a limit on the memory of the Go runtime with which the process stays within limit: the heap
// grows to the limit before Go collects, and the program is resident besides. A limit that has hardly room for the
// program loses at most a quarter.
//
//	224 MiB -> 196 MiB
//	32 MiB  -> 24 MiB
func withoutProgram(limit int64) int64 {
	if limit == math.MaxInt64 {
		return limit
	}
	return max(limit-programBytes, limit/4*3)
}

// memoryLimit returns the limit on the memory of the runtime, which then returns unused memory at
// once; without it the process may keep a tenth of the heap unused. Live memory without
// counters may double, so that many rules do not cause constant collections.
//
//	cap 256 MiB, live beside counters 8 MiB,  12 MiB beside the heap -> 292 MiB
//	cap 256 MiB, live beside counters 28 MiB, 32 MiB beside the heap -> 352 MiB
func (u memoryUse) memoryLimit() int64 {
	ownBytes := otherMemoryBytes - programBytes + max(u.nonHeapBytes-runtimeBytes, 0)
	return u.maxCounterBytes + ownBytes + 2*max(u.liveHeapBytes-u.counterBytes-idleLiveBytes, 0)
}

// quietBeforeRelease is how long no rules were loaded before memory is returned. Loads in quick succession use the same
// memory.
const quietBeforeRelease = 2 * time.Second

// AwaitRules tells that no requests are served before the first RulesLoaded. Until then the heap grows less.
func (t *Tuner) AwaitRules() {
	if t != nil {
		t.awaitsRules.Store(true)
	}
}

// RulesLoaded tells that rules were loaded, which may have left a lot of memory unused. It never blocks.
func (t *Tuner) RulesLoaded() {
	if t == nil {
		return
	}
	t.awaitsRules.Store(false)
	select {
	case t.rulesLoaded <- struct{}{}:
	default: // Run has not seen the load before.
	}
}

// Run returns memory to the system until ctx ends: what loads of rules leave unused, if it is a lot, and what counters
// leave that became many more or fewer.
func (t *Tuner) Run(ctx context.Context) error {
	if t == nil {
		return nil
	}
	var quiet <-chan time.Time
	var growth counterGrowth
	ticks := time.NewTicker(counterGrowthInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.rulesLoaded:
			quiet = time.After(quietBeforeRelease)
		case <-quiet:
			quiet = nil
			t.returnUnused()
		case <-ticks.C:
			if m := t.counterMemory.Load(); m != nil && growth.hasPaused(m.bytes()) {
				t.freeMemory()
			}
		}
	}
}

// counterGrowth notices when counters that became more or fewer change no longer. Their tables have then left memory
// that the runtime would keep: up to minGrowthBytes of garbage, and a tenth of the heap.
type counterGrowth struct {
	latestBytes   int64 // the memory of the counters at the last call of hasPaused.
	returnedBytes int64 // the memory of the counters when hasPaused last returned true.
}

const (
	counterGrowthInterval = 2 * time.Second // the time between two calls of counterGrowth.hasPaused.
	minReturnedBytes      = 8 << 20         // the least change for which memory is returned.
)

// hasPaused reports whether memory is to be returned to the system, which takes a collection. bytes is the memory of
// the counters now.
//
//	160 MiB, 150 at the last return, 160 two seconds ago -> yes
//	160 MiB, 150 at the last return, 155 two seconds ago -> no, they grow
//	155 MiB, 150 at the last return                      -> no, returns are rare
func (g *counterGrowth) hasPaused(bytes int64) bool {
	step := max(bytes-g.latestBytes, g.latestBytes-bytes)
	g.latestBytes = bytes
	change := max(bytes-g.returnedBytes, g.returnedBytes-bytes)
	if step > bytes/128 || change < max(minReturnedBytes, bytes/16) {
		return false
	}
	g.returnedBytes = bytes
	return true
}

// returnUnusedMemory returns unused memory to the system, if it is a lot.
func returnUnusedMemory() {
	if u := memoryInUse(); u.isWorthRelease() {
		debug.FreeOSMemory()
	}
}

// isWorthRelease reports whether unused memory is to be returned to the system, which takes a collection.
//
//	live 250 MiB, 80 MiB unused  -> no
//	live 250 MiB, 100 MiB unused -> yes
func (u memoryUse) isWorthRelease() bool {
	return u.unusedHeapBytes > max(2*minGrowthBytes, u.liveHeapBytes/3)
}
