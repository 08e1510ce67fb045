package memory

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/backendtest"
)

func TestSlotBytes(t *testing.T) {
	if size := unsafe.Sizeof(slot{}); size != slotBytes {
		t.Errorf("a slot takes %d bytes, not %d", size, slotBytes)
	}
	if size := unsafe.Sizeof(shard{}); size != 64 {
		t.Errorf("a shard takes %d bytes, not a cache line", size)
	}
}

func open(tb testing.TB, maxBytes int64) *Store {
	tb.Helper()
	return openWith(tb, Config{MaxBytes: maxBytes})
}

func openWith(tb testing.TB, cfg Config) *Store {
	tb.Helper()
	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { audit(tb, s) })
	return s
}

// audit counts what s holds, and compares it with what s says of it.
func audit(tb testing.TB, s *Store) {
	tb.Helper()
	var total, canary int64
	for i := range s.shards {
		sh := &s.shards[i]
		total += int64(cap(sh.slots))*slotBytes + auditNames(tb, i, sh)
		taken, used := 0, make(map[[2]uint64]bool)
		for j := range sh.slots {
			sl := &sh.slots[j]
			if sl.tagFormRank != 0 {
				taken++
			}
			id := counterID{sl.idHash, sl.tagFormRank &^ (formMask | rankMask)}
			if found, _ := sh.findSlot(id, sl.expiresAt-1); sl.expiresAt > 0 && found != sl {
				tb.Errorf("shard %d: slot %d of %d is not found", i, j, len(sh.slots))
			}
			if sl.form() > inlineForm {
				used[[2]uint64{uint64(sl.form()), sl.stateOrIndex}] = true
			}
		}
		if taken != int(sh.takenSlots) {
			tb.Errorf("shard %d: %d slots are taken, not %d", i, taken, sh.takenSlots)
		}
		b := sh.overflow
		if b == nil {
			continue
		}
		var hits int64
		for j := range b.logs.items {
			hits += int64(b.logs.items[j].Cap())
		}
		var held int64
		for j := range b.heldStates.items {
			held += b.heldStates.items[j].Bytes()
		}
		if hits*16+held != b.stateBytes || b.sizeBytes() != b.budgetedBytes {
			tb.Errorf("shard %d: logs of %d bytes and holds of %d, %d are counted; %d in all, %d are counted", i, hits*16,
				held, b.stateBytes, b.sizeBytes(), b.budgetedBytes)
		}
		for _, gap := range b.wideStates.freeIndexes {
			used[[2]uint64{wideForm, uint64(gap)}] = true
		}
		for _, gap := range b.logs.freeIndexes {
			used[[2]uint64{logForm, uint64(gap)}] = true
		}
		for _, gap := range b.heldStates.freeIndexes {
			used[[2]uint64{heldForm, uint64(gap)}] = true
		}
		if n := len(b.wideStates.items) + len(b.logs.items) + len(b.heldStates.items); len(used) != n {
			tb.Errorf("shard %d: %d places in overflows, %d are in use or free", i, n, len(used))
		}
		canary += b.sizeBytes()
	}
	if got := s.budget.usedBytes.Load(); got != total+canary || s.budget.overflowBytes.Load() != canary {
		tb.Errorf("%d bytes, %d in overflows; counted are %d and %d", total+canary, canary, got,
			s.budget.overflowBytes.Load())
	}
}

func TestSuite(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, func(t *testing.T) backend.Backend { return open(t, 0) })
}

// 16 slots a shard, and as much again for overflows: the suite's few keys never
// fill one, and the tables are as full as they get.
func TestSuiteAtASmallCap(t *testing.T) {
	t.Parallel()
	backendtest.Suite{Brief: true}.Run(t, func(t *testing.T) backend.Backend {
		s := open(t, 2*MinBytes)
		t.Cleanup(func() {
			if st := s.Stats(); st.EvictedKeys > 0 || st.Bytes > 2*MinBytes {
				t.Errorf("%+v", st)
			}
		})
		return s
	})
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []Config{{MaxBytes: MinBytes - 1}, {ExpiryGrace: -1}, {ExpiryGrace: MaxExpiryGrace + 1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

func TestSuiteWithGrace(t *testing.T) {
	t.Parallel()
	backendtest.Suite{Brief: true}.Run(t, func(t *testing.T) backend.Backend {
		s, err := New(Config{ExpiryGrace: MaxExpiryGrace})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func hit(s *Store, key uint64, limit *algorithm.Limit, at time.Time) backend.Verdict {
	var k [8]byte
	binary.BigEndian.PutUint64(k[:], key)
	b := backend.Batch{
		Hits:     []backend.Hit{{Key: k[:], Limit: limit, Amount: 1}},
		Verdicts: make([]backend.Verdict, 1),
		Now:      at,
	}
	if err := s.Take(context.Background(), &b); err != nil {
		panic(err)
	}
	return b.Verdicts[0]
}

// Windows that have ended make room for the next ones: memory stays flat
// without a sweep.
func TestExpiredCountersAreReplaced(t *testing.T) {
	t.Parallel()
	s := open(t, 0)
	second := &algorithm.Limit{Max: 1, Period: time.Second, CountBlocked: true}
	var bytes int64
	for i := range 200 {
		for k := range uint64(1000) {
			hit(s, k, second, epoch.Add(time.Duration(i)*time.Second))
		}
		if i == 50 {
			bytes = s.Stats().Bytes
		}
	}
	if st := s.Stats(); st.Bytes > 2*bytes || st.EvictedKeys != 0 {
		t.Errorf("after 200,000 windows: %+v; after 50,000 it were %d bytes", st, bytes)
	}
}

// Groups that are refused make no counters, and so drive out none.
func TestRefusedGroupsLeaveNothing(t *testing.T) {
	t.Parallel()
	s := open(t, MinBytes)
	day := &algorithm.Limit{Max: 1, Period: 24 * time.Hour, CountBlocked: true}
	const live = 500
	for k := range uint64(live) {
		hit(s, k, day, epoch)
	}
	keys := s.Stats().Keys
	for k := range uint64(20_000) {
		var fresh [8]byte
		binary.BigEndian.PutUint64(fresh[:], 1<<40+k)
		b := backend.Batch{
			Hits: []backend.Hit{
				{Key: fresh[:], Limit: day, Amount: 1, Atomic: true},
				{Key: make([]byte, 8), Limit: day, Amount: 1, Atomic: true}, // key 0, which is full
			},
			Verdicts: make([]backend.Verdict, 2),
			Now:      epoch,
		}
		if err := s.Take(t.Context(), &b); err != nil || !b.Verdicts[1].Over || b.Verdicts[0].Charged {
			t.Fatalf("%+v, %v", b.Verdicts, err)
		}
	}
	if st := s.Stats(); st.Keys != keys || st.EvictedKeys != 0 {
		t.Errorf("%+v, there were %d keys before", st, keys)
	}
}

// Each kind counts and admits every hit; a log of the hot key then has as many
// hits as come in a millisecond.
func BenchmarkTake(b *testing.B) {
	for _, limit := range []*algorithm.Limit{
		{Kind: algorithm.FixedWindow, Max: 1 << 40, Period: 24 * time.Hour, CountBlocked: true},
		{Kind: algorithm.FirstHitWindow, Max: 1 << 40, Period: 24 * time.Hour},
		{Kind: algorithm.SlidingWindowCounter, Max: 1 << 40, Period: 24 * time.Hour},
		{Kind: algorithm.GCRA, Max: 1 << 40, Burst: 1 << 40, Period: 24 * time.Hour},
		{Kind: algorithm.SlidingWindow, Max: algorithm.MaxLoggedHits, Period: 10 * time.Second},
	} {
		for _, keys := range []uint64{1, 1000, 1_000_000} {
			if limit.Kind == algorithm.SlidingWindow && keys < 1_000_000 {
				limit.Period = time.Millisecond * time.Duration(keys)
			}
			b.Run(fmt.Sprintf("%v/keys=%d", limit.Kind, keys), func(b *testing.B) { benchmarkTake(b, limit, keys) })
		}
	}
}

func benchmarkTake(b *testing.B, limit *algorithm.Limit, keys uint64) {
	s := open(b, 1<<30)
	for k := range keys {
		hit(s, k, limit, time.Time{})
	}
	bytes := s.Stats().Bytes
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var k [8]byte
		batch := backend.Batch{
			Hits:     []backend.Hit{{Key: k[:], Limit: limit, Amount: 1}},
			Verdicts: make([]backend.Verdict, 1),
		}
		n := uint64(0)
		for pb.Next() {
			n += 0x9E3779B97F4A7C15
			binary.BigEndian.PutUint64(k[:], n%keys)
			if err := s.Take(b.Context(), &batch); err != nil || batch.Verdicts[0].Over {
				b.Fatal(err, batch.Verdicts[0])
			}
		}
	})
	b.ReportMetric(float64(bytes)/float64(keys), "bytes/key")
}

func send(tb testing.TB, s *Store, at time.Time, h backend.Hit) backend.Verdict {
	tb.Helper()
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: at}
	if err := s.Take(tb.Context(), &b); err != nil {
		tb.Fatal(err)
	}
	return b.Verdicts[0]
}

// long are limits of all kinds for the length of a test.
func long(most uint64) []*algorithm.Limit {
	return []*algorithm.Limit{
		{Kind: algorithm.FixedWindow, Max: most, Period: 24 * time.Hour, CountBlocked: true},
		{Kind: algorithm.FixedWindow, Max: most, Period: 24 * time.Hour},
		{Kind: algorithm.FirstHitWindow, Max: most, Period: 24 * time.Hour},
		{Kind: algorithm.SlidingWindow, Max: most, Period: 24 * time.Hour},
		{Kind: algorithm.SlidingWindowCounter, Max: most, Period: 24 * time.Hour},
		{Kind: algorithm.GCRA, Max: most, Burst: most - 1, Period: 24 * time.Hour},
		{Kind: algorithm.GCRA, Max: most, Burst: most - 1, Period: 24 * time.Hour, MinInterval: 24 * time.Hour},
		{Kind: algorithm.GCRA, Max: most, Burst: most - 1, Period: 24 * time.Hour, Hold: time.Hour},
		{Kind: algorithm.Concurrency, Max: most, Period: 24 * time.Hour, Hold: 24 * time.Hour},
	}
}
