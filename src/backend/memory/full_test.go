//go:build !race

// These tests fill stores with very many counters, each from one goroutine. The tests named Crowd and Suite do the same
// from several, with the race detector.

package memory

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

func TestCapHolds(t *testing.T) {
	t.Parallel()
	const maxBytes = 1 << 20
	s := open(t, maxBytes)
	day := &algorithm.Limit{Max: 1_000_000, Period: 24 * time.Hour, CountBlocked: true}
	const busy = 250
	at := epoch
	hits := uint64(0)
	for k := range uint64(75_000) {
		if k%125 == 0 { // the busy keys are used again and again
			at = at.Add(time.Second)
			hits++
			for b := range uint64(busy) {
				if v := hit(s, 1<<40+b, day, at); v.After != hits {
					t.Fatalf("busy key %d was forgotten: %d, want %d", b, v.After, hits)
				}
			}
		}
		hit(s, k, day, at)
	}
	st := s.Stats()
	if st.Bytes > maxBytes {
		t.Errorf("%d bytes, more than the cap", st.Bytes)
	}
	if st.EvictedKeys == 0 || st.Keys < maxBytes/slotBytes/2 {
		t.Errorf("%+v: want evictions, and at least half of the table in use", st)
	}
}

// With names the cap holds, and counters in use and refused callers outlast a flood of keys of any length.
func TestCapHoldsWithNames(t *testing.T) {
	t.Parallel()
	for _, keyBytes := range []int{8, 60, 1000} {
		t.Run(fmt.Sprint(keyBytes), func(t *testing.T) {
			t.Parallel()
			const maxBytes = 1 << 20
			s := openWith(t, Config{MaxBytes: maxBytes, KeepNames: true})
			key := make([]byte, keyBytes)
			day := &algorithm.Limit{Max: 1_000_000, Period: 24 * time.Hour, CountBlocked: true}
			strict := &algorithm.Limit{Kind: algorithm.GCRA, Max: 1, Period: 24 * time.Hour}
			at, seconds := epoch, uint64(0)
			for n := range uint64(20_000) {
				if n%125 == 0 {
					at = at.Add(time.Second)
					seconds++
					if v := hit(s, 1<<40, day, at); v.After != seconds {
						t.Fatalf("a counter in use was forgotten: %d, want %d", v.After, seconds)
					}
				}
				if n < 25 {
					hit(s, 1<<41+n, strict, at)
					hit(s, 1<<41+n, strict, at)
				}
				binary.BigEndian.PutUint64(key[keyBytes-8:], n)
				send(t, s, at, backend.Hit{Key: key, Limit: day, Amount: 1})
			}
			for n := range uint64(25) {
				if !hit(s, 1<<41+n, strict, at).Over {
					t.Fatalf("refused caller %d passes", n)
				}
			}
			st := s.Stats()
			least := maxBytes / int64(slotBytes*2+2*(maxEntryBytes-maxNameBytes+min(keyBytes, maxNameBytes)))
			if st.Bytes > maxBytes || st.EvictedKeys == 0 || st.Keys < least {
				t.Errorf("%+v: want at most %d bytes and at least %d counters", st, maxBytes, least)
			}
			t.Logf("%+v: %d bytes per counter", st, st.Bytes/st.Keys)
		})
	}
}

// A counter that expires and comes again has one name. Memory stays flat.
func TestNamesOfExpiredCounters(t *testing.T) {
	t.Parallel()
	s := openWith(t, Config{MaxBytes: 8 << 20, KeepNames: true})
	var flat int64
	for i := range 300 {
		for k := range uint64(500) {
			hit(s, k, snapshotLimits[int(k)%len(snapshotLimits)], epoch.Add(time.Duration(i)*time.Hour))
		}
		if i == 100 {
			flat = s.Bytes()
		}
	}
	if n := s.Bytes(); n > flat*3/2 {
		t.Errorf("%d bytes after 300 hours, %d after 100", n, flat)
	}
}

func TestManyKeysKeepTheirCounts(t *testing.T) {
	t.Parallel()
	s := open(t, 0)
	day := &algorithm.Limit{Max: 100, Period: 24 * time.Hour, CountBlocked: true}
	const keys = 100_000
	for round := range uint64(3) {
		for k := range uint64(keys) {
			if v := hit(s, k, day, epoch); v.After != round+1 {
				t.Fatalf("key %d has %d in round %d", k, v.After, round)
			}
		}
	}
	if st := s.Stats(); st.Keys != keys || st.EvictedKeys != 0 {
		t.Errorf("%+v, want %d keys and none evicted", st, keys)
	}
}

func TestAllIdleInTheSameSecond(t *testing.T) {
	t.Parallel()
	s := open(t, MinBytes)
	day := &algorithm.Limit{Max: 1, Period: 24 * time.Hour, CountBlocked: true}
	for k := range uint64(100_000) {
		if v := hit(s, k, day, epoch); v.Over {
			t.Fatalf("key %d met another's counter", k)
		}
	}
	if st := s.Stats(); st.Bytes > MinBytes || st.EvictedKeys < 90_000 {
		t.Errorf("%+v", st)
	}
}

// A table that was large once gets small again.
func TestTablesShrink(t *testing.T) {
	t.Parallel()
	s := open(t, 4<<20)
	minute := &algorithm.Limit{Max: 1, Period: time.Minute, CountBlocked: true}
	for k := range uint64(50_000) {
		hit(s, k, minute, epoch)
	}
	large := s.Stats().Bytes
	for i := range 300 { // a steady few, in ever new windows
		for k := range uint64(500) {
			hit(s, k, minute, epoch.Add(time.Duration(10+i)*time.Minute))
		}
	}
	if small := s.Stats().Bytes; small > large/8 {
		t.Errorf("%d bytes, %d at its largest", small, large)
	}
}

// However many others came, a clock that steps back finds what it left.
func TestGrace(t *testing.T) {
	t.Parallel()
	s, err := New(Config{ExpiryGrace: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	limits := []*algorithm.Limit{
		{Kind: algorithm.FixedWindow, Max: 5, Period: time.Second},
		{Kind: algorithm.FirstHitWindow, Max: 5, Period: time.Second},
		{Kind: algorithm.SlidingWindow, Max: 5, Period: time.Second},
		{Kind: algorithm.SlidingWindowCounter, Max: 5, Period: time.Second},
		{Kind: algorithm.GCRA, Max: 5, Burst: 4, Period: time.Second},
		{Kind: algorithm.GCRA, Max: 5, Burst: 4, Period: time.Second, MinInterval: time.Nanosecond},
	}
	for i, l := range limits {
		for range 2 {
			hit(s, uint64(i), l, epoch)
		}
	}
	for k := range uint64(100_000) {
		hit(s, 1000+k, limits[k%uint64(len(limits))], epoch.Add(59*time.Minute))
	}
	for i, l := range limits {
		want := uint64(2)
		if l.MinInterval > 0 {
			want = 1 // the second came too soon
		}
		if v := hit(s, uint64(i), l, epoch); v.Before != want {
			t.Errorf("%v: %+v, want %d", l.Kind, v, want)
		}
	}
}

// A store with little room keeps what it would keep in a flood: callers that are over their limit, and counters in use.
func TestSnapshotThatIsTooLarge(t *testing.T) {
	t.Parallel()
	const refusedCallers = 300
	s := open(t, 64<<20)
	limit := &algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 10, Period: 24 * time.Hour}
	for k := range uint64(refusedCallers) {
		for range 11 {
			hit(s, 1<<40+k, limit, epoch)
		}
	}
	for k := range uint64(100_000) {
		hit(s, k, limit, epoch.Add(time.Hour))
	}
	for k := range uint64(20) { // logs, of half a MB together
		b := backend.Batch{
			Hits:     []backend.Hit{{Key: fmt.Append(nil, k), Limit: sliding, Amount: 1}},
			Verdicts: make([]backend.Verdict, 1),
		}
		for i := range 1000 {
			b.Now = epoch.Add(time.Hour + time.Duration(i)*time.Microsecond)
			if err := s.Take(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
		}
	}
	const maxBytes = 2 << 20
	at := epoch.Add(time.Hour + time.Second)
	small, st := restored(t, maxBytes, snapshotOf(t, s, at), at)
	if n := small.Stats(); st.Evicted == 0 || st.Counters < 5000 || n.Bytes > maxBytes || n.EvictedKeys != st.Evicted ||
		st.Counters+st.Evicted != 100_320 {
		t.Errorf("%+v, %+v", st, n)
	}
	for k := range uint64(refusedCallers) {
		if v := hit(small, 1<<40+k, limit, at); !v.Over {
			t.Fatalf("refused caller %d passes", k)
		}
	}
}

// A store that was saved and restored again and again answers all hits as one that was not.
func TestRestoredStoreAnswersTheSame(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd, at := rand.New(rand.NewPCG(seed, 1)), epoch
			original, copied := open(t, 0), open(t, 0)
			for i := range 6000 {
				at = at.Add(time.Duration(rnd.Int64N(int64(time.Second))))
				if i%200 == 199 {
					copied, _ = restored(t, 0, snapshotOf(t, copied, at), at)
				}
				b := randomBatch(rnd, at)
				want := append([]backend.Verdict(nil), b.Verdicts...)
				if err := original.Take(t.Context(), &backend.Batch{Now: at, Hits: b.Hits, Verdicts: want}); err != nil {
					t.Fatal(err)
				}
				if err := copied.Take(t.Context(), b); err != nil {
					t.Fatal(err)
				}
				for k := range want {
					if b.Verdicts[k] != want[k] {
						t.Fatalf("step %d: %+v of %+v\n got %+v\nwant %+v", i, b.Hits[k], *b.Hits[k].Limit, b.Verdicts[k], want[k])
					}
				}
			}
		})
	}
}
