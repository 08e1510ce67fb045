package memcached

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
)

// faultTimeout is how long calls wait in the tests of faults, and patience how
// much longer they may take on a machine that has other things to do.
const (
	faultTimeout = 500 * time.Millisecond
	patience     = 10 * time.Second
)

// volley makes calls, all at once, and returns how many had which cause of an
// error; "" is an answer. Each has to return in its time.
func volley(t *testing.T, s *Store, calls int, hit func(n int) backend.Hit) map[string]int {
	t.Helper()
	var mu sync.Mutex
	causes := make(map[string]int)
	var wg sync.WaitGroup
	for n := range calls {
		wg.Go(func() {
			begun := time.Now()
			err := send(t, s, hit(n)).Err
			if took := time.Since(begun); took > s.cfg.Timeout+patience {
				t.Errorf("a call took %v", took)
			}
			cause := ""
			if err != nil {
				cause = causeOf(err)
			}
			mu.Lock()
			defer mu.Unlock()
			causes[cause]++
		})
	}
	wg.Wait()
	return causes
}

// recovers waits until every server answers, for the keys of all of them.
func recovers(t *testing.T, s *Store) {
	t.Helper()
	for n := range 20 {
		harness.Await(t, 20*time.Second, "answers again", func() error { return send(t, s, spread(n)).Err })
	}
}

// Whatever happens to the way to a server, calls return in time with an error or
// an answer, connections and goroutines are few, and it is found again.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name string
		harm func(*harness.Proxy, *memcachedtest.Server)
		fix  func(*testing.T, *harness.Proxy, *memcachedtest.Server)
		// some of these must be among the causes
		causes []string
	}{
		{
			"paused", func(_ *harness.Proxy, m *memcachedtest.Server) { m.Pause() },
			func(_ *testing.T, _ *harness.Proxy, m *memcachedtest.Server) { m.Resume() },
			[]string{"connection", "timeout"},
		},
		{
			"killed", func(_ *harness.Proxy, m *memcachedtest.Server) { m.Kill() },
			func(t *testing.T, _ *harness.Proxy, m *memcachedtest.Server) { m.Restart(t) },
			[]string{"connection", "connect"},
		},
		{"half-open", func(p *harness.Proxy, _ *memcachedtest.Server) { p.Blackhole() }, healed, []string{"connection", "timeout"}},
		{"replies are lost", func(p *harness.Proxy, _ *memcachedtest.Server) { p.DropReplies() }, healed, []string{"connection", "timeout"}},
		{"garbage", func(p *harness.Proxy, _ *memcachedtest.Server) { p.Garbage() }, healed, []string{"connection"}},
		{"held", func(p *harness.Proxy, _ *memcachedtest.Server) { p.Hold() }, healed, []string{"connection", "timeout"}},
		{"slow", func(p *harness.Proxy, _ *memcachedtest.Server) { p.Latency(2 * faultTimeout) }, healed, []string{"connection", "timeout"}},
		{"refused", func(p *harness.Proxy, _ *memcachedtest.Server) { p.Refuse(); p.Reset() }, healed, []string{"connection", "connect"}},
		{"half-closed", func(p *harness.Proxy, _ *memcachedtest.Server) { p.Refuse(); p.HalfClose() }, healed, []string{"connect"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := memcachedtest.Start(t, memcachedtest.Options{})
			proxy := harness.StartProxy(t, server.Addr)
			s := open(t, Config{Servers: []string{proxy.Addr}, Config: remote.Config{Timeout: faultTimeout}})
			recovers(t, s)
			before := runtime.NumGoroutine()
			tt.harm(proxy, server)
			seen := make(map[string]int)
			for range 3 {
				for cause, n := range volley(t, s, 500, spread) {
					seen[cause] += n
				}
			}
			found := 0
			for _, cause := range tt.causes {
				found += seen[cause]
			}
			if found == 0 {
				t.Errorf("the causes are %v, want of %v", seen, tt.causes)
			}
			if seen["other"] > 0 {
				t.Errorf("causes that nobody knows: %v", seen)
			}
			t.Logf("%v, %+v", seen, s.Stats())
			if n := s.Stats().OpenConnections; n > int64(s.Config.Connections) {
				t.Errorf("%d connections", n)
			}
			harness.Await(t, 20*time.Second, "goroutines end", func() error {
				if n := runtime.NumGoroutine(); n > before+100 { // those of the proxy
					return fmt.Errorf("%d after %d", n, before)
				}
				return nil
			})
			tt.fix(t, proxy, server)
			recovers(t, s)
			harness.Await(t, 20*time.Second, "everybody is answered", func() error {
				if got := volley(t, s, 500, spread); got[""] < 500 {
					return fmt.Errorf("%v", got)
				}
				return nil
			})
		})
	}
}

func healed(_ *testing.T, p *harness.Proxy, _ *memcachedtest.Server) {
	p.Heal()
	p.Reset() // what lost bytes stays broken
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
	if got := s.Stats().ErrorsByCause["connect"] + s.Stats().ErrorsByCause["connection"]; failed == 0 || failed == 50 || got != int64(failed) {
		t.Errorf("%d failed, %d were counted", failed, got)
	}
}

// A caller's own deadline ends its call, also while another waits for the same
// counter.
func TestCallersDeadline(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}, Config: remote.Config{Timeout: time.Minute}})
	send(t, s, hot(0))
	server.Pause()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	soon, cancelSoon := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancelSoon()
	for cause, ctx := range map[string]context.Context{"left": ended, "timeout": soon} {
		b := backend.Batch{Hits: []backend.Hit{hot(0)}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
		begun := time.Now()
		if err := s.Take(ctx, &b); err != nil {
			t.Error(err)
		}
		if got := causeOf(b.Verdicts[0].Err); got != cause || time.Since(begun) > patience {
			t.Errorf("%v after %v, want %s", b.Verdicts[0].Err, time.Since(begun), cause)
		}
	}
	server.Resume()
	harness.Await(t, 20*time.Second, "an answer", func() error { return send(t, s, hot(0)).Err })
	// Of two calls that left, the one that was under way may have been counted.
	if v := send(t, s, hot(0)); v.Before > 4 {
		t.Errorf("what was not sent was counted: %+v", v)
	}
}

// More calls than may wait are refused at once, and the calls of callers that
// left are bounded, too.
func TestBusy(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}, Config: remote.Config{Timeout: 300 * time.Millisecond, MaxWaitingCalls: 50, Connections: 1}})
	send(t, s, hot(0))
	server.Pause()
	if got := volley(t, s, 500, spread); got["busy"] == 0 || got[""] > 0 {
		t.Errorf("got %v", got)
	}
	for range 5 {
		volley(t, s, 100, spread)
	}
	node, err := s.Table().NodeOfKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := node.UnreceivedCalls(); n > 50 {
		t.Errorf("%d calls wait in the queue", n)
	}
	server.Resume()
	recovers(t, s)
	if got := s.Stats(); got.WaitingCalls != 0 || got.ErrorsByCause["busy"] == 0 {
		t.Errorf("got %+v", got)
	}
}

// As many calls as may wait do so, also if they are all for one server and about
// two counters each.
func TestAllMayWait(t *testing.T) {
	t.Parallel()
	const calls = 200
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}, MaxInFlight: 1, Config: remote.Config{Timeout: time.Minute, MaxWaitingCalls: calls}})
	server.Pause()
	var left atomic.Int64
	var all sync.WaitGroup
	for n := range calls {
		h := spread(n)
		h.Limit = sliding(calls, time.Hour)
		all.Go(func() {
			if v := send(t, s, h); v.Err != nil {
				t.Error(v.Err)
			}
			left.Add(1)
		})
	}
	harness.Await(t, 20*time.Second, "all calls wait", func() error {
		if n := s.Stats().WaitingCalls + left.Load(); n < calls {
			return fmt.Errorf("%d of %d", n, calls)
		}
		return nil
	})
	server.Resume()
	all.Wait()
}

// A server that is full refuses new counters; those there are go on, and no
// connection is lost over it.
func TestFull(t *testing.T) {
	server := memcachedtest.Start(t, memcachedtest.Options{Args: []string{"-m", "1", "-I", "512k", "-M"}})
	s := open(t, Config{Servers: []string{server.Addr}})
	send(t, s, hot(0))
	refused := 0
	for n := 0; refused < 100 && n < 200_000; n++ {
		h := backend.Hit{Key: fmt.Appendf(nil, "%s_%d_", strings.Repeat("x", 200), n), Limit: window(10, time.Hour), Amount: 1}
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
	if st := s.Stats(); st.Dials > 2 || st.ErrorsByCause["memory"] != int64(refused) || s.Counts.Adds.Failed.Load() != int64(refused) {
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
			h := backend.Hit{Key: fmt.Appendf(nil, "%s_%d_%d_", strings.Repeat("x", 200), n, m), Limit: window(10, time.Hour), Amount: 1}
			if v := send(t, s, h); v.Err != nil {
				t.Fatal(v.Err)
			}
		}
	}
	if server.Stats(t)["evictions"] == "0" {
		t.Error("nothing was evicted")
	}
}

// A connection that the server closed while it was idle costs no call an error.
func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	proxy := harness.StartProxy(t, server.Addr)
	s := open(t, Config{Servers: []string{proxy.Addr}, Config: remote.Config{Connections: 1}})
	for round := range 5 {
		if v := send(t, s, hot(0)); v.Err != nil {
			t.Fatalf("round %d: %v", round, v.Err)
		}
		proxy.Reset()
		harness.Await(t, 20*time.Second, "the connection has ended", func() error {
			if n := proxy.Open(); n > 0 {
				return fmt.Errorf("%d open", n)
			}
			return nil
		})
		harness.Await(t, 20*time.Second, "we know", func() error {
			if n := s.Stats().OpenConnections; n > 0 {
				return fmt.Errorf("%d open", n)
			}
			return nil
		})
	}
}

// Certificates that are not good, or not good any more, are errors.
func TestTLS(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	for _, tt := range []struct {
		name   string
		server harness.Pair
		client func() (*tls.Config, error)
		good   bool
	}{
		{"good", certs.Server, func() (*tls.Config, error) { return certs.ClientConfig(t), nil }, true},
		{"expired", certs.ExpiredServer, func() (*tls.Config, error) { return certs.ClientConfig(t), nil }, false},
		{"by others", certs.OtherServer, func() (*tls.Config, error) { return certs.ClientConfig(t), nil }, false},
		{"for another host", certs.WrongHost, func() (*tls.Config, error) { return certs.ClientConfig(t), nil }, false},
		{"none shown", certs.Server, func() (*tls.Config, error) {
			cfg := certs.ClientConfig(t)
			cfg.Certificates = nil
			return cfg, nil
		}, false},
		{"cannot be read", certs.Server, func() (*tls.Config, error) { return nil, errors.New("no such file") }, false},
		{"not used", certs.Server, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := memcachedtest.Start(t, memcachedtest.Options{TLS: certs, Certificate: tt.server})
			s := open(t, Config{Servers: []string{server.Addr}, Config: remote.Config{TLS: tt.client, Timeout: time.Second}})
			v := send(t, s, hot(0))
			if (v.Err == nil) != tt.good || !tt.good && causeOf(v.Err) != remote.CauseConnectFailed && causeOf(v.Err) != remote.CauseConnectionBroke && causeOf(v.Err) != remote.CauseTimeout {
				t.Errorf("got %v", v.Err)
			}
			if err := s.Ping(t.Context()); (err == nil) != tt.good {
				t.Errorf("Ping: %v", err)
			}
		})
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
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), server.Addr) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Ping of servers that are not there: %v", err)
	}
}

// Nothing is left of a store that was in trouble, and its callers get answers to
// the end.
func TestEnd(t *testing.T) {
	server := memcachedtest.Start(t, memcachedtest.Options{})
	before := goleak.IgnoreCurrent()
	for _, paused := range []bool{false, true} {
		s, err := New(Config{Servers: []string{server.Addr}, Config: remote.Config{Timeout: faultTimeout}})
		if err != nil {
			t.Fatal(err)
		}
		if v := send(t, s, hot(0)); v.Err == nil {
			t.Error("an answer before Run")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		recovers(t, s)
		if paused {
			server.Pause()
		}
		var calls atomic.Int64
		var wg sync.WaitGroup
		for n := range 200 {
			wg.Go(func() {
				for range 20 {
					send(t, s, spread(n))
					if calls.Add(1) == 300 {
						cancel()
					}
				}
			})
		}
		wg.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if v := send(t, s, hot(0)); v.Err == nil {
			t.Error("an answer after Run")
		}
		if st := s.Stats(); st.OpenConnections != 0 || st.WaitingCalls != 0 {
			t.Errorf("left: %+v", st)
		}
		server.Resume()
	}
	goleak.VerifyNone(t, before)
}

func TestConfigs(t *testing.T) {
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
