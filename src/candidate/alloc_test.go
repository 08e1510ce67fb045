//go:build !race

package candidate_test

import (
	"testing"

	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
)

// A request that is judged allocates nothing, whatever decides it. The race detector empties pools at random, so this
// runs without it.
func TestJudgeDoesNotAllocate(t *testing.T) {
	for name, next := range map[string]string{
		"numbers": otherNumbers.Replace(testRules),
		"windows": otherWindows.Replace(testRules), "same": testRules,
	} {
		j := start(t, candidate.Config{Recorder: new(judgedCount)})
		j.UseCandidate(candidate.Rules{Set: load(t, next)})
		req, a, m := parse("ip=1_2 path=/pay,user=x file=/f/1"), new(limiter.Answer), new(limiter.Many)
		check := func() {
			if err := j.Check(t.Context(), req, a); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				addRequest(m, req)
			}
			j.CheckMany(t.Context(), m)
			m.Reset(16)
		}
		check()
		if n := testing.AllocsPerRun(100, check); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
