//go:build !race

package memory

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Only a log that grows allocates. The race detector empties pools at random, so this
// runs without it.
func TestTakeDoesNotAllocate(t *testing.T) {
	s := open(t, 0)
	at := epoch
	batch := backend.Batch{}
	add := func(key string, kind algorithm.Kind, atomic bool) {
		l := &algorithm.Limit{Kind: kind, Max: 1 << 40, Period: 24 * time.Hour}
		switch kind {
		case algorithm.GCRA:
			l.Burst = 1 << 30
		case algorithm.SlidingWindow:
			l.Max = 1000 // so it is refused in the end
		}
		batch.Hits = append(batch.Hits,
			backend.Hit{Key: []byte(key), Limit: l, Amount: 1, GroupID: uint16(len(batch.Hits)), Atomic: atomic})
		if atomic {
			batch.Hits[len(batch.Hits)-1].GroupID = 100
		}
	}
	for kind := range algorithm.Concurrency { // All kinds but concurrency.
		add("alone", kind, false)
		add("together", kind, true)
	}
	paced := *batch.Hits[len(batch.Hits)-1].Limit
	if paced.Kind != algorithm.GCRA {
		t.Fatal("the last kind is not gcra")
	}
	paced.MinInterval = time.Microsecond
	batch.Hits = append(batch.Hits, backend.Hit{Key: []byte("paced"), Limit: &paced, Amount: 1, GroupID: 101})
	batch.Verdicts = make([]backend.Verdict, len(batch.Hits))
	sendBatch := func() {
		at = at.Add(time.Millisecond)
		batch.Now = at
		if err := s.Take(t.Context(), &batch); err != nil {
			t.Fatal(err)
		}
	}
	for range 2000 {
		sendBatch()
	}
	if n := testing.AllocsPerRun(1000, sendBatch); n > 0 {
		t.Errorf("%v allocations", n)
	}
	for _, v := range batch.Verdicts[len(batch.Verdicts)-1:] {
		if v.Over || !v.Charged {
			t.Errorf("%+v", v)
		}
	}
}

// A group of the largest size works in memory that the next one uses again, and that is small enough to be kept: a
// group of twice as many hits needs twice as much.
func TestLargeGroupsDoNotAllocate(t *testing.T) {
	const most = 20_000 // The hits of 1,000 descriptors with 20 limits each.
	limit := &algorithm.Limit{Max: 1 << 40, Period: 24 * time.Hour}
	s, batch := open(t, 0), backend.Batch{Now: epoch}
	for i := range most {
		batch.Hits = append(batch.Hits, backend.Hit{Key: fmt.Append(nil, i), Limit: limit, Amount: 1, Atomic: true})
	}
	batch.Verdicts = make([]backend.Verdict, most)
	take := func() {
		if err := s.Take(t.Context(), &batch); err != nil {
			t.Fatal(err)
		}
	}
	take()
	if n := testing.AllocsPerRun(20, take); n > 0 {
		t.Errorf("%v allocations for a group of %d hits", n, most)
	}
	scratchOf := func(hits int) (bytes int) {
		g := new(groupScratch)
		g.addTrials(s, batch.Hits[:hits], epoch.UnixNano())
		return cap(g.trials)*int(unsafe.Sizeof(hitTrial{})) + cap(g.hitPlaces)*int(unsafe.Sizeof(hitPlace(0)))
	}
	if half, whole := scratchOf(most/2), scratchOf(most); whole*10 > half*22 || whole > 1<<20 {
		t.Errorf("a group of %d hits works in %d bytes, and one of half of them in %d", most, whole, half)
	}
}

// Once the sets of holds have grown, holds are taken, settled and released without an allocation, alone and in a group.
func TestHoldsDoNotAllocate(t *testing.T) {
	for _, limit := range []*algorithm.Limit{
		{Kind: algorithm.GCRA, Max: 1 << 29, Burst: 1 << 29, Period: time.Second, Hold: time.Second},
		{Kind: algorithm.Concurrency, Max: 100, Period: time.Second, Hold: time.Second},
	} {
		s, at, n := open(t, 0), epoch, uint64(0)
		b, keys := backend.Batch{Hits: make([]backend.Hit, 3), Verdicts: make([]backend.Verdict, 3)}, []byte("abc")
		sendHolds := func() {
			n++
			for _, op := range []algorithm.Op{algorithm.Charge, algorithm.Force} {
				at = at.Add(5 * time.Millisecond)
				b.Now = at
				for i := range b.Hits {
					b.Hits[i] = backend.Hit{
						Key: keys[i : i+1], Limit: limit, Amount: 1, Op: op, Atomic: i > 0,
						GroupID: uint16(min(i, 1)),
					}
					binary.LittleEndian.PutUint64(b.Hits[i].HoldID[:], n)
				}
				if err := s.Take(t.Context(), &b); err != nil || !b.Verdicts[0].Charged || !b.Verdicts[2].Charged {
					t.Fatalf("%+v, %v", b.Verdicts, err)
				}
			}
		}
		for range 1000 {
			sendHolds()
		}
		if n := testing.AllocsPerRun(1000, sendHolds); n > 0 {
			t.Errorf("%v: %v allocations", limit.Kind, n)
		}
	}
}

// A group whose hits share a sliding window decides them without a copy of its log.
func TestGroupsOnLongLogsDoNotAllocate(t *testing.T) {
	s := open(t, 0)
	at, limit := epoch, &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 1000, Period: 24 * time.Hour}
	one := backend.Hit{Key: []byte("k"), Limit: limit, Amount: 1, Atomic: true}
	batch := backend.Batch{Hits: []backend.Hit{one, one}, Verdicts: make([]backend.Verdict, 2)}
	sendBatch := func() {
		at = at.Add(time.Millisecond)
		batch.Now = at
		if err := s.Take(t.Context(), &batch); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 {
		sendBatch()
	}
	if v := batch.Verdicts[1]; v.After != 1000 {
		t.Fatalf("%+v, want 1000 after it", v)
	}
	if n := testing.AllocsPerRun(100, sendBatch); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// The store takes no more memory than it says, while it grows and when it is full: blocks are larger than what is asked
// for.
func TestBytesAreWhatTheHeapTakes(t *testing.T) {
	const maxBytes = 8 << 20
	heapBytes := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, nameBytes := range []int{0, 20, 100} {
		before := heapBytes()
		s := openWith(t, Config{MaxBytes: maxBytes, KeepNames: nameBytes > 0})
		shards := heapBytes() - before
		day := &algorithm.Limit{Max: 100, Period: 24 * time.Hour, CountBlocked: true}
		b := backend.Batch{Hits: []backend.Hit{{Limit: day, Amount: 1}}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
		for n := range 240_000 {
			b.Hits[0].Key = fmt.Appendf(b.Hits[0].Key[:0], "%0*d", nameBytes, n)
			if err := s.Take(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
			if n%10_000 != 0 {
				continue
			}
			if took, says := heapBytes()-before-shards, s.Bytes(); took > says+says/100+64<<10 || says > maxBytes {
				t.Fatalf("names of %d bytes, %d counters: the store takes %d bytes and says %d", nameBytes, n, took, says)
			}
		}
		if st := s.Stats(); st.EvictedKeys == 0 || st.Bytes < maxBytes*3/4 {
			t.Errorf("names of %d bytes: %+v", nameBytes, st)
		}
	}
}
