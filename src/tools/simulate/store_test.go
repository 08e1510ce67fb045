package simulate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/redis/credentials"
	"ratelimit/testbed/redistest"
)

// A closed store leaves none of its keys in Redis, of whatever form, and all others.
func TestCloseDeletesKeys(t *testing.T) {
	t.Parallel()
	secret := func(password string) credentials.Source {
		return credentials.PerConnection(func() (string, string, error) { return "", password, nil })
	}
	set := redistest.StartSentinel(t,
		redistest.SentinelOptions{Password: "watch", Server: redistest.Options{Password: "secret"}})
	s, err := openRedis(t.Context(), redis.Config{
		Credentials: secret("secret"),
		Sentinel:    &redis.Sentinel{Primary: set.PrimaryName, Addrs: set.SentinelAddrs, Credentials: secret("watch")},
	})
	if err != nil {
		t.Fatal(err)
	}
	own := s.keyPrefix
	for i := range 100 {
		for kind := range algorithm.Concurrency {
			b := backend.Batch{Verdicts: make([]backend.Verdict, 3)}
			for _, prefix := range []string{own, "x" + own, "other:"} {
				b.Hits = append(b.Hits, backend.Hit{
					Key: fmt.Appendf(nil, "%sd_k_%d_", prefix, i), TagLength: len(prefix) + len("d_"), Amount: 1,
					Limit: &algorithm.Limit{Kind: kind, Max: 10, Period: time.Minute, CountBlocked: kind == algorithm.FixedWindow},
				})
			}
			if err := errors.Join(s.Take(t.Context(), &b), b.FirstErr()); err != nil {
				t.Fatal(err)
			}
		}
	}
	primary := set.Primary(t)
	before := primary.Do(t, "DBSIZE").(int64)
	if err := s.close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, key := range primary.Do(t, "KEYS", "*").([]any) {
		if strings.HasPrefix(strings.TrimPrefix(key.(string), "{"), own) {
			t.Errorf("%s is left", key)
		}
	}
	if left := primary.Do(t, "DBSIZE").(int64); left != before/3*2 {
		t.Errorf("%d keys of %d are left, want two thirds", left, before)
	}
}
