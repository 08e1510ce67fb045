package redis

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

// With the eviction policy of the example, a flood of keys that callers let live for 100 years, as with CL.THROTTLE,
// takes away no limit that is in use.
func TestFloodOfLongLivedKeys(t *testing.T) {
	t.Parallel()
	manifest := testfiles.Read(t, "../../../examples/kubernetes/redis.yaml")
	policy := regexp.MustCompile(`--maxmemory-policy, ([a-z-]+)`).FindSubmatch(manifest)
	if policy == nil {
		t.Fatal("the example sets no policy")
	}
	server := redistest.Start(t, redistest.Options{Args: []string{
		"--maxmemory", "4mb", "--maxmemory-policy",
		string(policy[1]),
	}})
	s := open(t, Config{Addr: server.Addr})
	hour := &algorithm.Limit{Max: 3, Period: time.Hour, CountBlocked: true}
	// This is CL.THROTTLE k 0 1 3153600000.
	century := &algorithm.Limit{
		Kind: algorithm.GCRA, Max: 1, Period: algorithm.MaxPeriod,
		Emission: 3_153_600_000 * time.Second, KeepsDebt: true,
	}
	now := time.Now()
	take := func(n int, limit *algorithm.Limit, amount uint64, key string) *backend.Batch {
		b := &backend.Batch{Now: now, Verdicts: make([]backend.Verdict, n)}
		for i := range n {
			b.Hits = append(b.Hits, backend.Hit{Key: fmt.Append(nil, key, i), Limit: limit, Amount: amount})
		}
		if err := s.Take(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	const limits = 200
	take(limits, hour, 3, "limit ")
	take(limits, hour, 1, "limit ")
	for round := range 10 {
		for part := range 5 {
			take(1000, century, 1, fmt.Sprint("flood ", round, part, " "))
		}
		b, lost := take(limits, hour, 1, "limit "), 0
		for i := range b.Verdicts {
			if b.Verdicts[i].After <= 3 {
				lost++
			}
		}
		if lost > 0 {
			t.Fatalf("%s: %d of %d limits are lost after %d keys", policy[1], lost, limits, 5000*(round+1))
		}
	}
	evicted := regexp.MustCompile(`evicted_keys:[1-9]`)
	if info := fmt.Sprint(server.Do(t, "INFO", "stats")); !evicted.MatchString(info) {
		t.Error("the flood was too small: Redis evicted nothing")
	}
}
