//go:build !race

package overlimit

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
)

// What the next store does not allocate, the cache does not either. The race
// detector empties pools at random, so this runs without it.
func TestTakeDoesNotAllocate(t *testing.T) {
	over, under := fixed(1, 24*time.Hour), fixed(1<<40, 24*time.Hour)
	c := New(counters(t), Config{})
	take(t, c, epoch, hit("over", over, 2))
	for name, b := range map[string]*algorithm.Batch{
		"answered":   batch(hit("over", over, 1)),
		"passed on":  batch(hit(benchKey, under, 1)),
		"both":       batch(hit("over", over, 1), hit(benchKey, under, 1)),
		"stored":     batch(hit("new", over, 2), algorithm.Hit{Key: []byte("new"), Limit: over, Amount: 1, Op: force}),
		"given back": batch(algorithm.Hit{Key: []byte("over"), Limit: under, Amount: 1, Op: refund}),
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
