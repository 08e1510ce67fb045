// Package heap sets the garbage collector's target and the memory limit from what lives on
// the heap.
package heap

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// headroom is how much the heap may grow between two collections at least.
//
// What lives here is a few megabytes, while gRPC makes some 5 KB of garbage a
// call. With Go's own rule, to collect when the heap has doubled, a server of
// 50,000 calls a second collects 40 times a second; with this, twice. At 2 x 32
// calls in flight, on memory, that took the CPU of a call from 14.9 to 11.9 µs
// (GOGC=400: 12.9), and the resident memory from 36 to 100 MB.
const headroom = 64 << 20

// beyondCounters is how much memory the process takes at most beside the cap on
// counters, and beside what connections and requests need.
const (
	beyondCounters = 64 << 20
	programBytes   = 24 << 20 // of the file that the program is, which no memory limit of Go's knows
	runtimeBytes   = 12 << 20 // the runtime's own memory, in a process with little to do
	usualLive      = 8 << 20  // what lives in such a process beside counters
	leastHeadroom  = 8 << 20
)

// Tuner gives the heap its headroom. A nil Tuner does nothing.
type Tuner struct {
	stopped  atomic.Bool
	percent  int   // before
	limit    int64 // before, that of GOMEMLIMIT
	counters atomic.Pointer[counterMemory]
}

// counterMemory is the memory of the counters in this process: how much it is, and
// its cap.
type counterMemory struct {
	bytes func() int64
	max   int64
}

// Tune gives the heap its headroom until Stop is called. GOGC wins if it is set;
// GOMEMLIMIT holds in any case.
func Tune(lookup func(string) (string, bool)) *Tuner {
	if gogc, _ := lookup("GOGC"); gogc != "" {
		return nil
	}
	t := &Tuner{percent: debug.SetGCPercent(100), limit: debug.SetMemoryLimit(-1)}
	t.tune(&collected{new(byte)})
	return t
}

// Watch says where the counters are. They have no pointers and are no work for the
// collector, however many there are, so they give the heap no headroom, and at
// their cap they take some of it.
func (t *Tuner) Watch(bytes func() int64, max int64) {
	if t != nil {
		t.counters.Store(&counterMemory{bytes, max})
	}
}

// Stop has Go's own rule hold again.
func (t *Tuner) Stop() {
	if t != nil {
		t.stopped.Store(true)
		debug.SetGCPercent(t.percent)
		debug.SetMemoryLimit(t.limit)
	}
}

// tune sets the headroom from what the last collection left.
func (t *Tuner) tune(c *collected) {
	if t.stopped.Load() {
		return
	}
	u := memoryInUse()
	if m := t.counters.Load(); m != nil {
		u.counters, u.most = min(m.bytes(), u.live), m.max
		debug.SetMemoryLimit(min(u.limit(), t.limit))
	}
	debug.SetGCPercent(u.gcPercent())
	runtime.SetFinalizer(c, t.tune) // again after the next collection
}

// collected is what the collector finds each time. It has a pointer, because
// the runtime may put small objects without any together with others.
type collected struct{ _ *byte }

// memoryUse is what the process uses of its memory, in bytes.
type memoryUse struct {
	live     int64 // of the heap, when it was last collected
	beside   int64 // stacks, and the runtime's own memory
	counters int64 // part of live
	most     int64 // cap on the counters; 0: none are here
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
	u := memoryUse{live: int64(s[0].Value.Uint64()), beside: int64(s[1].Value.Uint64())}
	for _, heap := range s[2:] {
		u.beside -= int64(heap.Value.Uint64())
	}
	return u
}

// gcPercent returns the GOGC that leaves headroom above what lives. What are no
// counters may double at least, as by Go's own rule. The heap is at least 4 MiB to
// begin with, so it is at most 1600.
//
//	live 8 MiB,   no counters         -> 800, collect at 72 MiB
//	live 264 MiB, counters 256 of 256 -> 7,   collect at 282 MiB
func (u memoryUse) gcPercent() int {
	other := u.live - u.counters
	room := max(headroom, other)
	if left := u.most + beyondCounters - programBytes - runtimeBytes - u.live; u.most > 0 && left < room {
		room = max(left, other, leastHeadroom)
	}
	return int(min(max(100*room/max(u.live, 1), 1), 1600))
}

// limit returns the limit on the memory that the runtime manages. It has the
// runtime give back what the heap does not need at once: without it a tenth of the
// heap may stay with the process unused. What lives beside counters may double, so
// that a process with many rules or requests does not collect garbage all the time.
//
//	cap 256 MiB, live beside counters 8 MiB,  12 MiB beside the heap -> 296 MiB
//	cap 256 MiB, live beside counters 28 MiB, 32 MiB beside the heap -> 356 MiB
func (u memoryUse) limit() int64 {
	return u.most + beyondCounters - programBytes + 2*max(u.live-u.counters-usualLive, 0) + max(u.beside-runtimeBytes, 0)
}
