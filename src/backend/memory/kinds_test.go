//go:build !race

package memory

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Small and large counts, near and far times, with and without an interval: what
// is in slots and what is in overflows come out as they went in.
func TestStatesKeepTheirValues(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, kind := range []algorithm.Kind{algorithm.FirstHitWindow, algorithm.SlidingWindowCounter, algorithm.GCRA} {
		for _, period := range []time.Duration{time.Microsecond, time.Second, 30 * 24 * time.Hour, algorithm.MaxPeriod} {
			t.Run(fmt.Sprintf("%v of %v", kind, period), func(t *testing.T) {
				s := open(t, 0)
				const keys = 2000
				states := make([]algorithm.State, keys)
				limits := []*algorithm.Limit{
					{Kind: kind, Max: 1000, Period: period},
					{Kind: kind, Max: 1 << 50, Period: period, CountBlocked: true},
				}
				if kind == algorithm.GCRA {
					limits[1].Max = 500
					interval := *limits[0]
					interval.MinInterval = period / 3
					limits = append(limits, &interval)
				}
				now := epoch
				if period == algorithm.MaxPeriod {
					now = time.Date(2149, 1, 1, 0, 0, 0, 0, time.UTC)
				}
				for range 20_000 {
					now = now.Add(time.Duration(rnd.Int64N(max(int64(min(period, time.Hour))/10_000, 2))))
					k := rnd.IntN(keys)
					h := backend.Hit{
						Key: fmt.Append(nil, k), Limit: limits[rnd.IntN(len(limits))], Op: algorithm.Op(rnd.IntN(4)),
						Amount: rnd.Uint64() >> (16 + rnd.IntN(48)),
					}
					if kind == algorithm.GCRA {
						h.Limit = limits[k%len(limits)] // with the interval, or without
					}
					want := states[k].Take(h.Limit, now.UnixNano(), h.Op, h.Amount)
					if got := send(t, s, now, h); got != (backend.Verdict{Outcome: want}) {
						t.Fatalf("at %v: %v of %d under %+v\n got %+v\nwant %+v", now, h.Op, h.Amount, *h.Limit, got, want)
					}
				}
			})
		}
	}
}

// Each key is hit in a first and, later, in a second window. When the clock
// steps back into the first, the second is still what counts: no counter is
// there twice.
func TestNoCounterIsThereTwice(t *testing.T) {
	t.Parallel()
	for _, limit := range []*algorithm.Limit{
		{Kind: algorithm.FirstHitWindow, Max: 10, Period: time.Minute},
		{Kind: algorithm.SlidingWindow, Max: 10, Period: time.Minute},
		{Kind: algorithm.SlidingWindowCounter, Max: 10, Period: time.Minute},
		{Kind: algorithm.GCRA, Max: 10, Period: time.Minute, Burst: 9},
	} {
		s := open(t, 0)
		const keys = 1000
		hit := func(k int, op algorithm.Op, n uint64, at time.Duration) backend.Verdict {
			return send(t, s, epoch.Add(at), backend.Hit{Key: fmt.Append(nil, k), Limit: limit, Op: op, Amount: n})
		}
		for k := range keys {
			hit(k, algorithm.Charge, 7, 0)
		}
		for k := range keys {
			if v := hit(k, algorithm.Charge, 4, time.Hour); v.Before != 0 {
				t.Fatalf("%v, key %d: %+v", limit.Kind, k, v)
			}
		}
		for k := range keys {
			v := hit(k, algorithm.Look, 0, time.Second)
			if want := uint64(4); v.Before != want && limit.Kind != algorithm.GCRA ||
				limit.Kind == algorithm.GCRA && v.Before != 10 {
				t.Fatalf("%v, key %d: %+v", limit.Kind, k, v)
			}
		}
		if st := s.Stats(); st.Keys > keys {
			t.Errorf("%v: %+v", limit.Kind, st)
		}
	}
}

var sliding = &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 1000, Period: time.Minute}

// The memory of logs that have expired comes back, although no hit asks for
// their keys again, as long as there is some traffic.
func TestLogsAreGivenBack(t *testing.T) {
	t.Parallel()
	s := open(t, 32<<20)
	for i := range 20 {
		for k := range uint64(4_000) {
			hit(s, k, sliding, epoch.Add(time.Duration(i)*time.Second))
		}
	}
	large := s.Stats().Bytes
	if least := int64(4_000 * (20*16 + 32)); large < least {
		t.Fatalf("%d bytes for hits that take %d at least", large, least)
	}
	day := &algorithm.Limit{Kind: algorithm.FixedWindow, Max: 1, Period: 24 * time.Hour, CountBlocked: true}
	later := epoch.Add(5 * time.Minute)
	hit(s, 1<<40, sliding, later)
	for range 20_000 {
		hit(s, 1<<40, day, later) // one key of another kind
	}
	if small := s.Stats().Bytes; small > large/5 {
		t.Errorf("%d bytes, %d at their largest", small, large)
	}
	for range 5 {
		for k := range uint64(4_000) { // looks at dropped counters change nothing
			hit(s, k, sliding, epoch.Add(20*time.Second))
		}
	}
}

func TestCapHoldsWithLogs(t *testing.T) {
	t.Parallel()
	const maxBytes = 8 << 20
	s := open(t, maxBytes)
	const busy = 200
	at := epoch
	hour := &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 1_000_000, Period: time.Hour}
	hits := uint64(0)
	for k := range uint64(100_000) {
		if k%500 == 0 { // the busy keys are used again and again
			at = at.Add(time.Second)
			hits++
			for b := range uint64(busy) {
				if v := hit(s, 1<<40+b, hour, at); v.After != hits {
					t.Fatalf("busy key %d was forgotten: %d, want %d", b, v.After, hits)
				}
			}
		}
		hit(s, k, hour, at)
		if bytes := s.budget.usedBytes.Load(); bytes > maxBytes+16*4*(int64(hits)+8) {
			t.Fatalf("%d bytes, more than the cap and a key", bytes)
		}
	}
	if st := s.Stats(); st.EvictedKeys == 0 || st.Bytes < maxBytes/2 {
		t.Errorf("%+v: want evictions, and at least half of the memory in use", st)
	}
}

// When logs come, tables full of idle counters give way, and those that are
// used stay.
func TestTablesGiveWayToLogs(t *testing.T) {
	t.Parallel()
	const maxBytes = 1 << 20
	s := open(t, maxBytes)
	day := &algorithm.Limit{Kind: algorithm.FixedWindow, Max: 1 << 40, Period: 24 * time.Hour, CountBlocked: true}
	for k := range uint64(50_000) {
		hit(s, k, day, epoch)
	}
	at := epoch.Add(time.Second)
	for i := range uint64(1000) {
		at = at.Add(time.Millisecond * 20)
		for k := range uint64(25) {
			if v := hit(s, 1<<40+k, sliding, at); v.After != i+1 {
				t.Fatalf("log %d was forgotten: %d, want %d", k, v.After, i+1)
			}
		}
		if v := hit(s, 1<<41, day, at); v.After != i+1 {
			t.Fatalf("a counter in use was forgotten: %d, want %d", v.After, i+1)
		}
		if bytes := s.budget.usedBytes.Load(); bytes > maxBytes+16*1500 {
			t.Fatalf("%d bytes, more than the cap and a key", bytes)
		}
	}
}

// A log that would take more than half of the memory goes, and leaves the others
// alone.
func TestAGiantGoesAlone(t *testing.T) {
	t.Parallel()
	s := open(t, 1<<20)
	for k := range uint64(1000) {
		hit(s, k, sliding, epoch)
	}
	giant := &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: algorithm.MaxLoggedHits, Period: time.Hour}
	seen := uint64(0)
	for i := range 100_000 {
		v := hit(s, 1<<40, giant, epoch.Add(time.Duration(i)*time.Microsecond))
		if v.After < seen {
			break
		}
		seen = v.After
	}
	if seen < 1<<19/16/2 || seen > 1<<19/16 {
		t.Errorf("%d hits in half a MiB", seen)
	}
	if st := s.Stats(); st.EvictedKeys != 1 {
		t.Errorf("%+v", st)
	}
	for k := range uint64(1000) {
		if v := hit(s, k, sliding, epoch.Add(time.Second)); v.After != 2 {
			t.Fatalf("key %d was forgotten: %+v", k, v)
		}
	}
}

// A counter that refuses hits again and again is not idle.
func TestRefusedKeysStay(t *testing.T) {
	t.Parallel()
	for _, limit := range []*algorithm.Limit{
		{Kind: algorithm.FixedWindow, Max: 1, Period: 24 * time.Hour},
		{Kind: algorithm.FirstHitWindow, Max: 1, Period: 24 * time.Hour},
		{Kind: algorithm.SlidingWindow, Max: 1, Period: 24 * time.Hour},
		{Kind: algorithm.SlidingWindowCounter, Max: 1, Period: 24 * time.Hour},
		{Kind: algorithm.GCRA, Max: 1, Period: 24 * time.Hour},
	} {
		for _, atomic := range []bool{false, true} {
			s := open(t, 2*MinBytes)
			for i := range 8000 {
				at := epoch.Add(time.Duration(i) * 100 * time.Millisecond)
				v := send(t, s, at, backend.Hit{Key: []byte("refused"), Limit: limit, Amount: 1, Atomic: atomic})
				if v.Over != (i > 0) {
					t.Fatalf("%v, atomic %t, hit %d: %+v", limit.Kind, atomic, i, v)
				}
				send(t, s, at, backend.Hit{Key: fmt.Append(nil, i), Limit: limit, Amount: 1})
			}
			if s.Stats().EvictedKeys == 0 {
				t.Errorf("%v: nothing was evicted", limit.Kind)
			}
		}
	}
}
