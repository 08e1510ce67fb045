package memcached

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
)

// takeWithin makes a call whose caller has so much time; 0: as much as it likes.
func takeWithin(t *testing.T, s *Store, h backend.Hit, left time.Duration) backend.Verdict {
	t.Helper()
	ctx, cancel := t.Context(), context.CancelFunc(func() {})
	if left > 0 {
		ctx, cancel = context.WithTimeout(ctx, left)
	}
	defer cancel()
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	if err := s.Take(ctx, &b); err != nil {
		t.Fatal(err)
	}
	return b.Verdicts[0]
}

func awaitBreakers(t *testing.T, s *Store, open int, meanwhile func()) {
	t.Helper()
	harness.Await(t, 20*time.Second, fmt.Sprintf("%d open breakers", open), func() error {
		meanwhile()
		if st := s.Stats(); st.OpenBreakers != open {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// A server that does not answer is found out, also by callers with less time than
// it has; then nothing is sent to it, nothing piles up, and it is found again
// without any call.
func TestBreaker(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, tt := range []struct {
		name   string
		caller time.Duration
		begin  func(*memcachedtest.Server, *harness.Proxy)
		end    func(*memcachedtest.Server, *harness.Proxy)
	}{
		{"paused", 0, func(s *memcachedtest.Server, _ *harness.Proxy) { s.Pause() }, func(s *memcachedtest.Server, _ *harness.Proxy) { s.Resume() }},
		{"swallowed", 0, func(_ *memcachedtest.Server, p *harness.Proxy) { p.Blackhole() }, func(_ *memcachedtest.Server, p *harness.Proxy) { p.Heal() }},
		{"swallowed, in haste", 20 * time.Millisecond, func(_ *memcachedtest.Server, p *harness.Proxy) { p.Blackhole() }, func(_ *memcachedtest.Server, p *harness.Proxy) { p.Heal() }},
		{"refused", 0, func(_ *memcachedtest.Server, p *harness.Proxy) { p.Refuse(); p.Reset() }, func(_ *memcachedtest.Server, p *harness.Proxy) { p.Heal() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := memcachedtest.Start(t, memcachedtest.Options{})
			proxy := harness.StartProxy(t, server.Addr)
			var mu sync.Mutex
			var told []string
			s := open(t, Config{Servers: []string{proxy.Addr}, Config: remote.Config{Timeout: faultTimeout, OnBreaker: func(addr string, open bool, why error) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprint(addr, " ", open, " ", why))
			}}})
			recovers(t, s)
			tt.begin(server, proxy)
			awaitBreakers(t, s, 1, func() {
				for n := range 20 {
					takeWithin(t, s, spread(n), tt.caller)
				}
			})
			harness.AwaitQuiet(t, 2*faultTimeout, "no more commands", func() int64 { return int64(s.Stats().Commands) })
			before, goroutines := s.Stats(), runtime.NumGoroutine()
			const calls = 2000
			for n := range calls {
				v := send(t, s, spread(n))
				if _, refused := errors.AsType[*remote.OpenError](v.Err); !refused || !strings.Contains(v.Err.Error(), proxy.Addr) {
					t.Fatalf("call %d: %v", n, v.Err)
				}
			}
			after := s.Stats()
			if after.Commands != before.Commands || after.ErrorsByCause["breaker"]-before.ErrorsByCause["breaker"] != calls || after.WaitingCalls != 0 {
				t.Errorf("%+v after %+v", after, before)
			}
			if n := runtime.NumGoroutine(); n > goroutines+50 { // those of the proxy
				t.Errorf("%d goroutines after %d", n, goroutines)
			}
			tt.end(server, proxy)
			awaitBreakers(t, s, 0, func() {})
			recovers(t, s)
			mu.Lock()
			defer mu.Unlock()
			if n := int64(len(told)); n != 2*s.Stats().BreakerOpenings || !strings.HasPrefix(told[0], proxy.Addr+" true ") || told[1] != proxy.Addr+" false <nil>" {
				t.Errorf("told %q of %+v", told, s.Stats())
			}
		})
	}
}

// What a server says is an answer, however little use it is; and without a
// breaker none opens.
func TestBreakerStaysClosed(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{"SERVER_ERROR out of memory\r\n", "CLIENT_ERROR no\r\n", "ERROR Too many open connections\r\n"} {
		addr := liar(t, func(_ string, to net.Conn) { _, _ = to.Write([]byte(reply)) })
		s := open(t, Config{Servers: []string{addr}, Config: remote.Config{BreakerFailures: 1}})
		for n := range 200 {
			if v := send(t, s, spread(n)); v.Err == nil || causeOf(v.Err) == remote.CauseBreakerOpen {
				t.Fatalf("%q: %v", reply, v.Err)
			}
		}
		if st := s.Stats(); st.BreakerOpenings != 0 {
			t.Errorf("%q: %+v", reply, st)
		}
	}
	s := open(t, Config{Servers: []string{"127.0.0.1:1"}, Config: remote.Config{BreakerFailures: -1}})
	for n := range 200 {
		if v := send(t, s, spread(n)); causeOf(v.Err) != remote.CauseConnectFailed {
			t.Fatal(v.Err)
		}
	}
}

// Of three servers only the keys of the one that does not answer are refused.
func TestBreakerOfOneServer(t *testing.T) {
	t.Parallel()
	servers, addrs := three(t)
	s := open(t, Config{Servers: addrs, Config: remote.Config{Timeout: faultTimeout}})
	recovers(t, s)
	servers[1].Pause()
	isDead := func(n int) bool {
		h := spread(n)
		return addrOfKey(&s.Table().Layout, appendKey(nil, &h, epoch.UnixNano(), false, 0)) == addrs[1]
	}
	awaitBreakers(t, s, 1, func() {
		for n := range 20 {
			if isDead(n) {
				takeWithin(t, s, spread(n), 50*time.Millisecond)
			}
		}
	})
	for n := range 300 {
		if v := send(t, s, spread(n)); (v.Err != nil) != isDead(n) {
			t.Errorf("key %d, dead %t: %v", n, isDead(n), v.Err)
		}
	}
	servers[1].Resume()
	awaitBreakers(t, s, 0, func() {})
}

// Replies that drip, each well in time after the one before, hold no call longer than
// twice the timeout: when a batch is due does not move with its replies.
func TestSlowReplies(t *testing.T) {
	t.Parallel()
	pace := time.Tick(50 * time.Millisecond)
	addr := liar(t, func(_ string, to net.Conn) {
		<-pace
		_, _ = io.WriteString(to, "1\r\n")
	})
	s := open(t, Config{Servers: []string{addr}, MaxInFlight: 200, Config: remote.Config{Timeout: 200 * time.Millisecond, Connections: 1}})
	b := backend.Batch{Hits: make([]backend.Hit, 200), Verdicts: make([]backend.Verdict, 200), Now: epoch}
	for i := range b.Hits {
		b.Hits[i] = spread(i)
	}
	started := time.Now()
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	harness.Await(t, 20*time.Second, "the batch is given up", func() error {
		if got := s.Stats(); got.Batches == 0 || got.OpenConnections != 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	if took := time.Since(started); took > 9*time.Second { // the last reply would come after ten
		t.Errorf("it took %v", took)
	}
}

// patient has a deadline, and does not end then.
type patient struct {
	context.Context
	until time.Time
}

func (p patient) Deadline() (time.Time, bool) { return p.until, true }

// A call gives up by itself before its caller's time is over.
func TestMargin(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}, Config: remote.Config{Timeout: time.Minute}})
	send(t, s, hot(0))
	server.Pause()
	b := backend.Batch{Hits: []backend.Hit{hot(0)}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	if err := s.Take(patient{t.Context(), time.Now().Add(100 * time.Millisecond)}, &b); err != nil || !errors.Is(b.Verdicts[0].Err, remote.ErrTimeout) {
		t.Errorf("got %v, %v", err, b.Verdicts[0].Err)
	}
	server.Resume()
}

// Calls with huge keys are refused before their keys take all memory, also those
// that wait for a server when their callers have left.
func TestBytesAreBounded(t *testing.T) {
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}, Config: remote.Config{Timeout: 10 * time.Second, Connections: 1}})
	send(t, s, hot(0))
	server.Pause()
	huge := backend.Hit{Key: []byte(strings.Repeat("x", 1<<20)), Limit: window(10, time.Hour), Amount: 1}
	busy := 0
	for n := 0; n < 1000 && busy < 10; n++ { // on a busy machine some leave before they take room
		if v := takeWithin(t, s, huge, 5*time.Millisecond); errors.Is(v.Err, remote.ErrTooManyCalls) {
			busy++
		}
	}
	if busy < 10 {
		t.Errorf("%d of 1000 found it busy", busy)
	}
	server.Resume()
	harness.Await(t, 20*time.Second, "answers again", func() error { return send(t, s, huge).Err })
	harness.Await(t, 20*time.Second, "room", func() error {
		if n := s.Figures.Admission.HeldBytes(); n != 0 {
			return fmt.Errorf("%d bytes are taken", n)
		}
		return nil
	})
}
