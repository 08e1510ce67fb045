//go:build !race

package divvy

import (
	"strings"
	"testing"

	"ratelimit/src/frontend/pipeline"
)

// The race detector empties pools at random, so this runs without it: see
// `make test`.
//
// HITs on a connection that is there allocate nothing.
func TestHitDoesNotAllocate(t *testing.T) {
	s := build(t, Config{})
	c, r := &session{srv: s}, new(pipeline.Replies)
	burst := []byte(strings.Repeat("HIT ip=10.0.0.1 method=GET\nHIT user=x action=y\nhit ip=\xff\n", 20))
	hit := func() {
		if consumed, n, err := c.Answer(t.Context(), burst, false, r); n != 60 || consumed != len(burst) || err != nil {
			t.Fatalf("%d lines, %v", n, err)
		}
		r.Reset()
	}
	hit()
	if n := testing.AllocsPerRun(100, hit); n > 0 {
		t.Errorf("%v allocations for 60 HITs", n)
	}
}
