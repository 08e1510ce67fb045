//go:build !race

package memory

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

func TestRankAfter(t *testing.T) {
	const charge, refund, force = algorithm.Charge, algorithm.Refund, algorithm.Force
	for _, tt := range []struct {
		name   string
		max    uint64
		before evictionRank
		again  bool
		op     algorithm.Op
		v      algorithm.Outcome
		want   evictionRank
	}{
		{"the first of many", 100, rankNewcomer, false, charge, algorithm.Outcome{After: 1}, rankNewcomer},
		{"an eighth", 80, rankNewcomer, false, charge, algorithm.Outcome{After: 10}, rankNewcomer},
		{"more than an eighth", 80, rankNewcomer, false, charge, algorithm.Outcome{After: 11}, rankActive},
		{"asked again later", 100, rankNewcomer, true, charge, algorithm.Outcome{After: 2}, rankActive},
		{"it stays so", 100, rankActive, false, charge, algorithm.Outcome{After: 1}, rankActive},
		{"full, and nothing refused", 1, rankNewcomer, false, charge, algorithm.Outcome{After: 1}, rankActive},
		{"refused by a full one", 1, rankActive, false, charge, algorithm.Outcome{Over: true, After: 1}, rankRefusing},
		{"refused, and counted", 1, rankNewcomer, false, charge, algorithm.Outcome{Over: true, After: 2}, rankRefusing},
		{
			"refused for its size by one with room", 100, rankNewcomer, false, charge,
			algorithm.Outcome{Over: true, After: 1},
			rankNewcomer,
		},
		{
			"refused by the interval", 100, rankActive, false, charge,
			algorithm.Outcome{Over: true, WithinMinInterval: true, After: 1},
			rankRefusing,
		},
		{"passes again", 1, rankRefusing, true, charge, algorithm.Outcome{After: 1}, rankActive},
		{"a refund makes room", 10, rankRefusing, false, refund, algorithm.Outcome{After: 9}, rankActive},
		{"a refund makes no room", 10, rankRefusing, false, refund, algorithm.Outcome{After: 12}, rankRefusing},
		{"forced beyond", 10, rankRefusing, false, force, algorithm.Outcome{After: 20}, rankRefusing},
		{
			"a limit of 0 needs no counter", 0, rankRefusing, true, charge,
			algorithm.Outcome{Over: true, After: 3},
			rankNewcomer,
		},
	} {
		h := &backend.Hit{Limit: &algorithm.Limit{Max: tt.max, Period: time.Hour}, Op: tt.op}
		if got := rankAfter(h, &tt.v, tt.before, tt.again); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestAgeStep(t *testing.T) {
	last := -1
	for idle := range uint32(1 << 16) {
		step := idleTimeBucket(idle)
		if idle < 16 && step != int(idle) || step < last || step > last+1 {
			t.Fatalf("%d s: step %d, the one before %d", idle, step, last)
		}
		last = step
	}
	if step := idleTimeBucket(1<<32 - 1); step != numIdleTimeBuckets-1 {
		t.Errorf("the longest is step %d of %d", step, numIdleTimeBuckets)
	}
}

// floodedBytes is the cap of a store that a flood fills some five times.
const floodedBytes = 2 * MinBytes

// floodOf returns the cap of a store, and how many counters with a limit fill it some five times.
func floodOf(limit *algorithm.Limit) (maxBytes int64, counters uint64) {
	if limit.Hold > 0 {
		return 1 << 20, 20_000
	}
	return floodedBytes, 25_000
}

// What is over its limit stays so, without being asked, while others come that fill
// the store some five times, and so does a group of limits.
func TestDenyingCountersSurviveAFlood(t *testing.T) {
	t.Parallel()
	few, many, one := long(3), long(100), long(1)
	for name, flood := range map[string][]*algorithm.Limit{"nearly empty": many, "full": one} {
		for k, limit := range flood {
			t.Run(fmt.Sprintf("%s/%v %d", name, limit.Kind, k), func(t *testing.T) {
				t.Parallel()
				maxBytes, others := floodOf(limit)
				s := open(t, maxBytes)
				banned := func(i int, at time.Time) bool {
					return send(t, s, at, backend.Hit{Key: fmt.Append(nil, "banned", i), Limit: few[i], Amount: 1}).Over
				}
				group := func(at time.Time) bool {
					b := backend.Batch{Now: at, Verdicts: make([]backend.Verdict, 2), Hits: []backend.Hit{
						{Key: []byte("group"), Limit: few[1], Amount: 1, Atomic: true},
						{Key: []byte("group"), Limit: many[4], Amount: 1, Atomic: true},
					}}
					if err := s.Take(t.Context(), &b); err != nil {
						t.Fatal(err)
					}
					return b.Verdicts[0].Over
				}
				for range 4 {
					for i := range few {
						banned(i, epoch)
					}
					group(epoch)
				}
				at := epoch
				for n := range others {
					if n%(others/100) == 0 {
						at = at.Add(time.Second)
					}
					hit(s, n, limit, at)
				}
				if s.Stats().EvictedKeys == 0 {
					t.Error("nothing was evicted")
				}
				for i := range few {
					if !banned(i, at) {
						t.Errorf("the caller that was over its %v passes", few[i].Kind)
					}
				}
				if !group(at) {
					t.Error("the group passes")
				}
			})
		}
	}
}

// Counters that someone filled on purpose are bounded as all others, and the
// longest idle of them go. Counters in use stay, full or not.
func TestFloodOfDenyingCounters(t *testing.T) {
	t.Parallel()
	for k, limit := range long(1) {
		t.Run(fmt.Sprintf("%v %d", limit.Kind, k), func(t *testing.T) {
			t.Parallel()
			maxBytes, others := floodOf(limit)
			s := open(t, maxBytes)
			day := &algorithm.Limit{Max: 1_000_000, Period: 24 * time.Hour, CountBlocked: true}
			at, second := epoch, uint64(0)
			for n := range others {
				if n%125 == 0 {
					at = at.Add(time.Second)
					second++
					if v := hit(s, 1<<40, day, at); v.After != second {
						t.Fatalf("a counter in use was forgotten: %d, want %d", v.After, second)
					}
					if v := hit(s, 1<<41, limit, at); v.Over != (second > 1) {
						t.Fatalf("a refused caller that keeps asking was forgotten: %+v", v)
					}
				}
				hit(s, n, limit, at)
				hit(s, n, limit, at)
			}
			if st := s.Stats(); st.Bytes > maxBytes || st.EvictedKeys == 0 {
				t.Errorf("%+v", st)
			}
			var k [8]byte
			binary.BigEndian.PutUint64(k[:], others-1)
			if v := send(t, s, at, backend.Hit{Key: k[:], Limit: limit, Op: algorithm.Look, Amount: 1}); !v.Over {
				t.Error("the last of the flood was forgotten")
			}
		})
	}
}

// Counters that hold something outlast those that hardly do, however long they
// have been idle.
func TestNearlyEmptyCountersGoFirst(t *testing.T) {
	t.Parallel()
	s := open(t, 1<<20)
	day := &algorithm.Limit{Max: 100, Period: 24 * time.Hour, CountBlocked: true}
	const halfFull = 5000
	for k := range uint64(halfFull) {
		for range 50 {
			hit(s, 1<<40+k, day, epoch)
		}
	}
	for n := range uint64(100_000) {
		hit(s, n, day, epoch.Add(time.Hour+time.Duration(n/1000)*time.Second))
	}
	for k := range uint64(halfFull) {
		if v := hit(s, 1<<40+k, day, epoch.Add(2*time.Hour)); v.Before != 50 {
			t.Fatalf("counter %d was forgotten: %+v", k, v)
		}
	}
}

func TestLargestBlock(t *testing.T) {
	for size, want := range map[int]int{
		-1: 8, 0: 8, 8: 8, 9: 8, 1100: 1024, 9 << 10: 8 << 10, 32 << 10: 32 << 10, 47 << 10: 40 << 10, 1 << 20: 128 << 10,
	} {
		if got := largestBlock(size); got != want {
			t.Errorf("up to %d bytes: %d, want %d", size, got, want)
		}
	}
}

// A full store evicts and takes in newcomers without any allocation, with names, too.
func TestEvictionDoesNotAllocate(t *testing.T) {
	for _, keepNames := range []bool{false, true} {
		s := openWith(t, Config{MaxBytes: floodedBytes, KeepNames: keepNames})
		day := &algorithm.Limit{Max: 100, Period: 24 * time.Hour, CountBlocked: true}
		var k [40]byte
		b := backend.Batch{
			Hits: []backend.Hit{{Key: k[:], Limit: day, Amount: 1}}, Verdicts: make([]backend.Verdict, 1),
			Now: epoch,
		}
		n := uint64(0)
		hitNew := func() {
			for range 1000 {
				n++
				binary.BigEndian.PutUint64(k[32:], n)
				if err := s.Take(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 25 {
			hitNew()
		}
		before := s.Stats().EvictedKeys
		if allocs := testing.AllocsPerRun(25, hitNew); allocs > 0 {
			t.Errorf("names %t: %v allocations for 1,000 new counters", keepNames, allocs)
		}
		if evicted := s.Stats().EvictedKeys - before; evicted < 22_000 {
			t.Errorf("names %t: %d were evicted", keepNames, evicted)
		}
	}
}
