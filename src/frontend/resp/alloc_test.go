//go:build !race

package resp

import (
	"slices"
	"testing"

	"ratelimit/src/frontend/pipeline"
)

// Requests on a connection that is there allocate nothing. The race detector empties pools at random, so this runs
// without it.
func TestRequestsDoNotAllocate(t *testing.T) {
	s := build(t, Config{})
	c, r := s.newSession(elsewhere), new(pipeline.Replies)
	burst := slices.Repeat(slices.Concat(
		bulk("RATELIMIT", "api", "user", "alex"), bulk("CL.THROTTLE", "k", "15", "30", "60"),
		bulk("RATELIMIT.TREE", "limits", "1", "user", "alex", "trade"),
		bulk("ratelimit", "api", "user", "alex", "path", "login", "HITS", "2"),
	), 5)
	ask := func() {
		if consumed, n, err := c.Answer(t.Context(), burst, false, r); consumed != len(burst) || n != 20 || err != nil {
			t.Fatalf("%d commands, %v", n, err)
		}
		r.Reset()
	}
	ask()
	if n := testing.AllocsPerRun(100, ask); n > 0 {
		t.Errorf("%v allocations for 20 commands", n)
	}
}
