package memcached

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/remotetest"
)

// faultTimeout is how long calls wait in the tests of faults.
const faultTimeout = remotetest.Timeout

// recovers waits until every server answers, for the keys of all of them.
func recovers(t *testing.T, s *Store) {
	t.Helper()
	for n := range 20 {
		harness.Await(t, 20*time.Second, "answers again", func() error { return send(t, s, spread(n)).Err })
	}
}

// While one of three servers is away its keys fail, at once after a while, and
// the others' go on.
func TestOneOfThree(t *testing.T) {
	t.Parallel()
	servers, addrs := three(t)
	s := open(t, Config{Servers: addrs, Config: remote.Config{Timeout: 2 * time.Second}})
	recovers(t, s)
	servers[1].Kill()
	dials := s.Stats().Dials
	for range 3 {
		for n := range 300 {
			h := spread(n)
			key := appendKey(nil, &h, epoch.UnixNano(), false, 0)
			away := addrOfKey(&s.Table().Layout, key) == addrs[1]
			if v := send(t, s, h); (v.Err != nil) != away {
				t.Fatalf("key %d, server away %t: %+v", n, away, v)
			}
		}
	}
	if n := s.Stats().Dials - dials; n > 100 {
		t.Errorf("a server that is away was dialled %d times", n)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("two of three are no store: %v", err)
	}
	servers[1].Restart(t)
	recovers(t, s)
}

// A request with charges on a server that is away and on one that is not gets
// both verdicts.
func TestPartOfARequest(t *testing.T) {
	t.Parallel()
	servers, addrs := three(t)
	s := open(t, Config{Servers: addrs, Config: remote.Config{Timeout: 2 * time.Second}})
	servers[2].Stop()
	b := backend.Batch{Now: epoch}
	for n := range 50 {
		h := spread(n)
		h.Limit = sliding(1<<40, time.Hour)
		b.Hits = append(b.Hits, h)
	}
	b.Verdicts = make([]backend.Verdict, len(b.Hits))
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i, v := range b.Verdicts {
		away := false
		for ago := range int64(2) {
			key := appendKey(nil, &b.Hits[i], epoch.UnixNano(), false, ago)
			away = away || addrOfKey(&s.Table().Layout, key) == addrs[2]
		}
		if (v.Err != nil) != away {
			t.Errorf("hit %d, away %t: %+v", i, away, v)
		}
		if v.Err != nil {
			failed++
		}
	}
	if got := s.Stats().ErrorsByCause["connect"] + s.Stats().ErrorsByCause["connection"]; failed == 0 ||
		failed == 50 || got != int64(failed) {
		t.Errorf("%d failed, %d were counted", failed, got)
	}
}

// A server that is full refuses new counters; those there are go on, and no
// connection is lost over it.
func TestFull(t *testing.T) {
	server := memcachedtest.Start(t, memcachedtest.Options{Args: []string{"-m", "1", "-I", "512k", "-M"}})
	s := open(t, Config{Servers: []string{server.Addr}})
	send(t, s, hot(0))
	refused := 0
	for n := 0; refused < 100 && n < 200_000; n++ {
		h := backend.Hit{
			Key: fmt.Appendf(nil, "%s_%d_", strings.Repeat("x", 200), n), Limit: window(10, time.Hour),
			Amount: 1,
		}
		if v := send(t, s, h); v.Err != nil {
			if causeOf(v.Err) != causeMemory {
				t.Fatal(v.Err)
			}
			refused++
		}
	}
	if refused < 100 {
		t.Fatalf("a megabyte took all counters: %+v", server.Stats(t))
	}
	if v := send(t, s, hot(0)); v.Before != 1 || v.Err != nil {
		t.Errorf("got %+v", v)
	}
	if st := s.Stats(); st.Dials > 2 || st.ErrorsByCause["memory"] != int64(refused) ||
		s.Counts.Adds.Failed.Load() != int64(refused) {
		t.Errorf("%d refusals: %+v", refused, st)
	}
}

// Where it may evict, it does, and what it evicted begins anew: counters are lost,
// and no caller is told. The server's own statistics say so.
func TestEvicted(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{Args: []string{"-m", "1", "-I", "512k"}})
	s := open(t, Config{Servers: []string{server.Addr}})
	first := backend.Hit{Key: []byte(strings.Repeat("x", 200) + "_first_"), Limit: window(10, time.Hour), Amount: 5}
	send(t, s, first)
	for n := 0; server.Stats(t)["evictions"] == "0" && n < 200; n++ {
		for m := range 500 {
			h := backend.Hit{
				Key:   fmt.Appendf(nil, "%s_%d_%d_", strings.Repeat("x", 200), n, m),
				Limit: window(10, time.Hour), Amount: 1,
			}
			if v := send(t, s, h); v.Err != nil {
				t.Fatal(v.Err)
			}
		}
	}
	if server.Stats(t)["evictions"] == "0" {
		t.Error("nothing was evicted")
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{"127.0.0.1:1", server.Addr}})
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	server.Stop()
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), server.Addr) ||
		!strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Ping of servers that are not there: %v", err)
	}
}

func TestConfigs(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{Servers: []string{"a:1"}, SRV: srv(0)},
		{Servers: []string{"a:1"}, Hash: hashMethods},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is good", cfg)
		}
	}
}
