package simulate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/redis"
	"ratelimit/testbed/redistest"
)

// fill keeps counters of every form under keys with prefix and with other prefixes, and
// returns how many have prefix.
func fill(t *testing.T, s *redis.Store, prefix string) (n int) {
	t.Helper()
	for i := range 1500 { // more than one page
		for kind := algorithm.FixedWindow; kind <= algorithm.GCRA; kind++ {
			if i%100 != 0 && kind != algorithm.FixedWindow {
				continue
			}
			b := backend.Batch{Verdicts: make([]backend.Verdict, 3)}
			for _, p := range []string{prefix, "x" + prefix, "other:"} {
				b.Hits = append(b.Hits, backend.Hit{
					Key: fmt.Appendf(nil, "%sd_k_%d_", p, i), TagLength: len(p) + len("d_"), Amount: 1,
					Limit: &algorithm.Limit{Kind: kind, Max: 10, Period: time.Minute, CountBlocked: kind == algorithm.FixedWindow},
				})
			}
			if err := s.Take(t.Context(), &b); err != nil || b.FirstErr() != nil {
				t.Fatal(err, b.FirstErr())
			}
			n++
		}
	}
	return n
}

func secret(password string) func() (string, string, error) {
	return func() (string, string, error) { return "", password, nil }
}

func TestDeleteKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Password: "secret"})
	s := runRedis(t, redis.Config{Addr: server.Addr, Credentials: secret("secret")})
	const prefix = "p:"
	n := fill(t, s, prefix)
	before := server.Do(t, "DBSIZE").(int64)
	for range 2 { // the second time there is nothing to delete
		if err := deleteKeys(t.Context(), s, prefix); err != nil {
			t.Error(err)
		}
		if left := server.Do(t, "DBSIZE").(int64); left != before-int64(n) {
			t.Errorf("%d keys are left of %d", left, before)
		}
	}
	if slices.ContainsFunc(keysOf(t, server), func(key string) bool { return hasPrefix(key, prefix) }) {
		t.Error("keys with the prefix are left")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if deleteKeys(ctx, s, prefix) == nil {
		t.Error("a context that has ended")
	}
	server.Do(t, "ACL", "SETUSER", "default", "-scan")
	if err := deleteKeys(t.Context(), s, prefix); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("without a right: %v", err)
	}
	server.Do(t, "ACL", "SETUSER", "default", "+scan", "-unlink")
	fill(t, s, prefix)
	if err := deleteKeys(t.Context(), s, prefix); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("without another right: %v", err)
	}
	server.Stop()
	if deleteKeys(t.Context(), s, prefix) == nil {
		t.Error("without a server")
	}
}

func TestDeleteKeysOnSentinel(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t,
		redistest.SentinelOptions{Password: "watch", Server: redistest.Options{Password: "secret"}})
	s, err := openRedis(t.Context(), redis.Config{
		Credentials: secret("secret"),
		Sentinel:    &redis.Sentinel{Primary: set.PrimaryName, Addrs: set.SentinelAddrs, Credentials: secret("watch")},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := s.Backend.(*redis.Store)
	n := fill(t, r, s.keyPrefix)
	if err := s.close(t.Context()); err != nil {
		t.Error(err)
	}
	if slices.ContainsFunc(keysOf(t, set.Servers[0]), func(key string) bool { return hasPrefix(key, s.keyPrefix) }) {
		t.Errorf("some of %d keys are left", n)
	}
}

func TestDeleteKeysOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{Server: redistest.Options{Password: "secret"}})
	s := runRedis(t, redis.Config{Cluster: c.Addrs[:1], Credentials: secret("secret")})
	fill(t, s, "p:")
	if err := deleteKeys(t.Context(), s, "p:"); err != nil {
		t.Error(err)
	}
	for _, primary := range c.Primaries(t) {
		left := keysOf(t, primary)
		if slices.ContainsFunc(left, func(key string) bool { return hasPrefix(key, "p:") }) {
			t.Errorf("%s has some still", primary.Addr)
		}
		if len(left) == 0 {
			t.Errorf("%s has lost keys with other prefixes", primary.Addr)
		}
	}
}

func hasPrefix(key, prefix string) bool {
	return strings.HasPrefix(strings.TrimPrefix(key, "{"), prefix)
}

// keysOf returns all keys of a server.
func keysOf(t *testing.T, s *redistest.Server) (keys []string) {
	t.Helper()
	for _, v := range s.Do(t, "KEYS", "*").([]any) {
		keys = append(keys, v.(string))
	}
	return keys
}
