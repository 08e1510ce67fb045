//go:build !race

package overlimit

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/src/backend"
)

// What the next store does not allocate, the cache does not either. The race
// detector empties pools at random, so this runs without it.
func TestTakeDoesNotAllocate(t *testing.T) {
	over, under := fixed(1, 24*time.Hour), fixed(1<<40, 24*time.Hour)
	c := New(counters(t), 0)
	send(t, c, epoch, hit("over", over, 2))
	for name, b := range map[string]*backend.Batch{
		"answered":   batch(hit("over", over, 1)),
		"passed on":  batch(hit(benchKey, under, 1)),
		"both":       batch(hit("over", over, 1), hit(benchKey, under, 1)),
		"stored":     batch(hit("new", over, 2), backend.Hit{Key: []byte("new"), Limit: over, Amount: 1, Op: force}),
		"given back": batch(backend.Hit{Key: []byte("over"), Limit: under, Amount: 1, Op: refund}),
	} {
		b.Now = epoch
		if n := testing.AllocsPerRun(1000, func() {
			if err := c.Take(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// A batch of 1,000 hits reuses memory, whatever is known of them; that of far more is
// not kept.
func TestLargeTakesDoNotAllocate(t *testing.T) {
	over, under := fixed(1, 24*time.Hour), fixed(1<<40, 24*time.Hour)
	c := New(counters(t), 0)
	const size = 1000
	known, unknown, both := batch(), batch(), batch()
	for i := range size {
		known.Hits = append(known.Hits, hit(fmt.Sprint("over ", i), over, 2))
		unknown.Hits = append(unknown.Hits, hit(fmt.Sprint("under ", i), under, 1))
	}
	both.Hits = append(append(both.Hits, known.Hits[:size/10]...), unknown.Hits[size/10:]...)
	for i, b := range []*backend.Batch{known, unknown, both} {
		b.Now, b.Verdicts = epoch, make([]backend.Verdict, size)
		if n := testing.AllocsPerRun(100, func() {
			if err := c.Take(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("batch %d: %v allocations", i, n)
		}
	}
	for hits, large := range map[int]bool{20 * size: true, size: false} {
		pool := map[bool]*scratchPool{true: &c.largeBatchPool, false: &c.smallBatchPool}[large]
		pool.release(&scratch{lookups: make([]hitLookup, hits)})
		if kept := pool.Get().(*scratch); cap(kept.lookups) >= hits {
			t.Errorf("room for %d hits is kept, large %t", cap(kept.lookups), large)
		}
	}
}
