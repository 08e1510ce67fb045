package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/testbed/redistest"
)

// fillForgotten keeps counters of every form with and without a prefix, and
// returns how many have it.
func fillForgotten(t *testing.T, s *Store, prefix string) (n int) {
	t.Helper()
	for i := range 1500 { // more than SCAN looks at in one go
		for kind := algorithm.FixedWindow; kind <= algorithm.GCRA; kind++ {
			if i%100 != 0 && kind != algorithm.FixedWindow {
				continue
			}
			for _, p := range []string{prefix, "x" + prefix, "other:"} {
				h := backend.Hit{
					Key: fmt.Appendf(nil, "%sd_k_%d_", p, i), Tag: len(p) + len("d_"), Amount: 1,
					Limit: &algorithm.Limit{Kind: kind, Max: 10, Period: time.Minute, CountBlocked: kind == algorithm.FixedWindow},
				}
				if v := send(t, s, h); v.Err != nil {
					t.Fatal(v.Err)
				}
			}
			n++
		}
	}
	return n
}

func TestForget(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Password: "secret"})
	s := open(t, Config{Addr: server.Addr, Credentials: secret("secret")})
	const prefix = `p*[a]?\:` // no pattern
	server.Do(t, "SET", "pxa", "1")
	n := fillForgotten(t, s, prefix)
	before := server.Do(t, "DBSIZE").(int64)
	if got, err := s.Forget(t.Context(), prefix); err != nil || got != n {
		t.Errorf("%d of %d keys are deleted: %v", got, n, err)
	}
	if left := server.Do(t, "DBSIZE").(int64); left != before-int64(n) {
		t.Errorf("%d keys are left of %d", left, before)
	}
	for _, v := range server.Do(t, "KEYS", "*").([]any) {
		if key := strings.TrimPrefix(v.(string), "{"); strings.HasPrefix(key, prefix) {
			t.Errorf("%s is left", v)
		}
	}
	if got, err := s.Forget(t.Context(), prefix); err != nil || got != 0 {
		t.Errorf("again: %d, %v", got, err)
	}
	if _, err := s.Forget(t.Context(), ""); err == nil {
		t.Error("everything may be forgotten")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Forget(ctx, prefix); err == nil {
		t.Error("a context that has ended")
	}
	server.Do(t, "ACL", "SETUSER", "default", "-scan")
	if _, err := s.Forget(t.Context(), prefix); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("without a right: %v", err)
	}
	server.Do(t, "ACL", "SETUSER", "default", "+scan", "-unlink")
	fillForgotten(t, s, prefix)
	if _, err := s.Forget(t.Context(), prefix); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("without another right: %v", err)
	}
	server.Stop()
	if _, err := s.Forget(t.Context(), prefix); err == nil {
		t.Error("without a server")
	}
}

func TestForgetOnSentinel(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t, redistest.SentinelOptions{Password: "watch", Server: redistest.Options{Password: "secret"}})
	s := open(t, Config{
		Credentials: secret("secret"),
		Sentinel:    &Sentinel{Primary: set.PrimaryName, Addrs: set.SentinelAddrs, Credentials: secret("watch")},
	})
	n := fillForgotten(t, s, "p:")
	if got, err := s.Forget(t.Context(), "p:"); err != nil || got != n {
		t.Errorf("%d of %d keys are deleted: %v", got, n, err)
	}
}

func TestForgetOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{Server: redistest.Options{Password: "secret"}})
	s := open(t, Config{Cluster: c.Addrs[:1], Credentials: secret("secret")})
	n := fillForgotten(t, s, "p:")
	if got, err := s.Forget(t.Context(), "p:"); err != nil || got != n {
		t.Errorf("%d of %d keys are deleted: %v", got, n, err)
	}
	for _, primary := range c.Primaries(t) {
		left := keysOf(t, primary)
		if slices.ContainsFunc(left, func(key string) bool { return strings.HasPrefix(strings.TrimPrefix(key, "{"), "p:") }) {
			t.Errorf("%s has some still", primary.Addr)
		}
		if len(left) == 0 {
			t.Errorf("%s has nothing that is none of our business", primary.Addr)
		}
	}
}

// keysOf are all keys of a server.
func keysOf(t *testing.T, s *redistest.Server) (keys []string) {
	t.Helper()
	for _, v := range s.Do(t, "KEYS", "*").([]any) {
		keys = append(keys, v.(string))
	}
	return keys
}

func TestReadScan(t *testing.T) {
	next, keys, err := readScan([]any{"17", []any{"a", "b"}})
	if next != "17" || !slices.Equal(keys, []string{"a", "b"}) || err != nil {
		t.Errorf("%s, %q, %v", next, keys, err)
	}
	if _, keys, err = readScan([]any{"0", []any(nil)}); len(keys) > 0 || err != nil {
		t.Errorf("%q, %v", keys, err)
	}
	for _, reply := range [][]any{nil, {"0"}, {int64(0), []any{}}, {"0", "a"}, {"0", nil}, {"0", []any{int64(1)}}, {"0", []any{}, "x"}} {
		if next, keys, err := readScan(reply); err == nil {
			t.Errorf("%v: %s, %q", reply, next, keys)
		}
	}
}
