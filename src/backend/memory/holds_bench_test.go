package memory

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/harness"
)

// BenchmarkHolds compares, in one interleaved run, calls on counters with holds with plain charges: of as many
// counters, and of counters that take as much memory. Each counter has 8 open holds and remembers 50 that are done. The
// figures are medians: the CPU time of a plain charge, the ratios of each call to one on counters of as much memory,
// and their mean as a ratio to one on as many counters. Run it with -benchtime 1x. Only the ratios mean anything on a
// shared machine.
func BenchmarkHolds(b *testing.B) {
	plain := algorithm.Limit{Kind: algorithm.GCRA, Max: 1 << 29, Burst: 1 << 29, Period: time.Second}
	held := plain
	held.Hold = time.Second
	slots := algorithm.Limit{Kind: algorithm.Concurrency, Max: 100, Period: time.Second, Hold: time.Second}
	for _, keys := range []uint64{1, 1000, 58_000} {
		for _, run := range []struct {
			name    string
			limit   *algorithm.Limit
			closing algorithm.Op
		}{{"settle,gcra", &held, algorithm.Force}, {"release,concurrency", &slots, algorithm.Refund}} {
			b.Run(fmt.Sprintf("%s/keys=%d", run.name, keys), func(b *testing.B) {
				with := &holdLoad{limit: run.limit, closing: run.closing, keys: keys}
				with.open(b, 272)
				asMany, asLarge := &holdLoad{limit: &plain, keys: keys}, &holdLoad{limit: &plain, keys: keys}
				asMany.open(b, 1)
				if keys > 1 {
					asLarge.keys = uint64(with.store.Bytes()) * 3 / 4 / slotBytes
				}
				asLarge.open(b, 1)
				compareHolds(b, with, asMany, asLarge)
			})
		}
	}
}

// compareHolds reports the figures of BenchmarkHolds.
func compareHolds(b *testing.B, with, asMany, asLarge *holdLoad) {
	const rounds = 12
	for b.Loop() {
		for range max(5, min(30, 400_000/with.keys)) {
			for _, l := range []*holdLoad{with, asMany, asLarge} {
				for range rounds { // Counters that fit into the cache are there after the first round.
					l.measure(b, max(1000, min(l.keys, 100_000)))
				}
			}
		}
	}
	many, large, sum := asMany.median(), asLarge.median(), 0.0
	for call, unit := range []string{"take-x", "repeat-x", "close-x", "again-x"} {
		took := median(with.took[call])
		b.ReportMetric(took/large, unit)
		sum += took
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(large, "plain-ns")
	b.ReportMetric(sum/4/many, "as-many-x")
	b.ReportMetric(float64(with.store.Bytes())/float64(58*with.keys), "B/hold")
}

// holdLoad sends calls to all counters of a store in turn. With holds, the calls of a round take one, repeat that, send
// closing for an earlier one, or repeat that, in turn.
type holdLoad struct {
	limit   *algorithm.Limit
	closing algorithm.Op
	keys    uint64

	store          *Store
	batch          backend.Batch
	key            [8]byte
	sent, measured uint64
	took           [4][]float64 // the CPU times of a call, in nanoseconds, of the rounds of each kind.
}

// open opens the store, and sends so many calls to each counter.
func (l *holdLoad) open(b *testing.B, calls uint64) {
	l.store = openWith(b, Config{MaxBytes: 1 << 30})
	l.batch = backend.Batch{
		Hits:     []backend.Hit{{Key: l.key[:], Limit: l.limit, Amount: 1}},
		Verdicts: make([]backend.Verdict, 1), Now: epoch,
	}
	for range calls * l.keys {
		l.send(b)
	}
}

func (l *holdLoad) send(b *testing.B) {
	const open = 8
	round, k := l.sent/l.keys, l.sent%l.keys
	if k == 0 {
		l.batch.Now = l.batch.Now.Add(5 * time.Millisecond)
	}
	l.sent++
	binary.BigEndian.PutUint64(l.key[:], k)
	h := &l.batch.Hits[0]
	h.Op = algorithm.Charge
	if l.limit.Hold > 0 {
		hold := round/4 + open
		if round%4 > 1 {
			h.Op = l.closing
			hold -= open
		}
		binary.LittleEndian.PutUint64(h.HoldID[:], hold*0x9E3779B97F4A7C15|1)
	}
	if err := l.store.Take(b.Context(), &l.batch); err != nil || l.batch.Verdicts[0].Over {
		b.Fatal(err, l.batch.Verdicts[0])
	}
}

// measure sends so many calls. The calls of a round are measured together, unless there are few counters.
func (l *holdLoad) measure(b *testing.B, calls uint64) {
	kind := l.sent / l.keys % 4
	began := cpu(b)
	for range calls {
		l.send(b)
	}
	took := float64(cpu(b)-began) / float64(calls)
	if l.limit.Hold == 0 || l.keys < calls {
		kind = l.measured % 4
	}
	l.measured++
	l.took[kind] = append(l.took[kind], took)
}

func (l *holdLoad) median() float64 { return median(slices.Concat(l.took[:]...)) }

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

func cpu(b *testing.B) time.Duration {
	used, err := harness.CPUTime()
	if err != nil {
		b.Fatal(err)
	}
	return used
}
