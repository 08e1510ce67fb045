package overlimit

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"ratelimit/src/backend"
)

// nowhere passes everything at once, so that only the cache is measured.
type nowhere struct{}

func (nowhere) Take(_ context.Context, b *backend.Batch) error {
	clear(b.Verdicts)
	return nil
}

func batch(hits ...backend.Hit) *backend.Batch {
	return &backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits))}
}

const benchKey = "mine_tenant_0123456789_path_/api/v1/things_"

func BenchmarkTake(b *testing.B) {
	over, under := fixed(1, 24*time.Hour), fixed(1<<40, 24*time.Hour)
	for _, bench := range []struct {
		name string
		hits []backend.Hit
	}{
		{"hit", []backend.Hit{hit("over", over, 1)}},
		{"pass-through", []backend.Hit{hit(benchKey, under, 1)}},
		{"pass-through of 4", []backend.Hit{
			hit("a", under, 1), hit("b", under, 1), hit("c", under, 1),
			hit("d", under, 1),
		}},
		{"1 of 2 goes on", []backend.Hit{hit("over", over, 1), hit(benchKey, under, 1)}},
		{"refund", []backend.Hit{{Key: []byte(benchKey), Limit: under, Amount: 1, Op: refund}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			s := &spy{next: counters(b)}
			c := New(s, 8<<20)
			send(b, c, time.Time{}, hit("over", over, 2))
			c.nextStore = nowhere{}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				batch := batch(bench.hits...)
				for pb.Next() {
					if err := c.Take(context.Background(), batch); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// The index around the entries is not part of Config.Bytes: this is what it
// comes to.
func BenchmarkMemory(b *testing.B) {
	for _, bytes := range []int{MinBytes, 8 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("KiB=%d", bytes>>10), func(b *testing.B) {
			for b.Loop() {
				var before, after runtime.MemStats
				store := counters(b)
				runtime.GC()
				runtime.ReadMemStats(&before)
				c := New(nowhere{}, bytes)
				s := new(scratch)
				for k := range uint64(bytes / 72 * 2) {
					m := hitLookup{}
					binary.LittleEndian.PutUint64(m.id[:], k*0x9E3779B97F4A7C15)
					c.storeEntry(s, &m, cacheEntry{validUntil: int64(time.Hour), counterState: 1}, true)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(bytes), "bytes/byte")
				b.ReportMetric(float64(c.Stats().Entries), "entries")
				runtime.KeepAlive(store)
			}
		})
	}
}
