//go:build !race

package split

import (
	"testing"
	"time"

	"ratelimit/src/backend"
)

// The race detector empties pools at random, so this runs without it.
func TestTakeDoesNotAllocate(t *testing.T) {
	store := New(counters(t), counters(t))
	for _, atomic := range []bool{false, true} {
		b := backend.Batch{
			Hits:     []backend.Hit{hit("s", 1, time.Second, 1), hit("m", 1, time.Minute, 1)},
			Verdicts: make([]backend.Verdict, 2),
			Now:      epoch,
		}
		b.Hits[0].Atomic, b.Hits[1].Atomic = atomic, atomic
		if n := testing.AllocsPerRun(1000, func() {
			if err := store.Take(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("atomic %t: %v allocations", atomic, n)
		}
	}
}
