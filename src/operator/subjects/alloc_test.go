//go:build !race

package subjects

import (
	"fmt"
	"testing"
	"time"
)

// Once the lists are full, no decision allocates, sampled or not. The race detector allocates by itself.
func TestRecordDoesNotAllocate(t *testing.T) {
	tracker, set := seededTracker(t, 4, 1, twoRules)
	tracker.advance(time.Unix(1_000_000_000, 0))
	q := newQuestion(set, 0)
	values := make([][]byte, 10_000)
	for i := range values {
		values[i] = fmt.Appendf(nil, "user-%05d", i)
	}
	i := 0
	ask := func() {
		q.set(values[i%len(values)], 1, true)
		i++
		tracker.Record(&q.req, &q.a)
	}
	for range 100_000 {
		ask()
	}
	if n := testing.AllocsPerRun(1000, ask); n > 0 {
		t.Errorf("%v allocations", n)
	}
	tracker.advance(time.Unix(1_000_000_001, 0)) // More decisions are sampled again.
	if n := testing.AllocsPerRun(1000, ask); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
