package redis

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
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
	"ratelimit/testbed/redistest"
)

// journal is what a store says of its breakers.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(addr string, open bool, why error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprint(addr, " ", open, " ", why))
}

func (j *journal) read() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines
}

func awaitBreakers(t *testing.T, s *Store, open int) {
	t.Helper()
	harness.Await(t, 20*time.Second, fmt.Sprintf("%d open breakers", open), func() error {
		if n := s.Stats().OpenBreakers; n != open {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

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

// A server that does not answer is found out, also by callers with less time than
// it has; then nothing is sent to it, nothing piles up, and it is found again
// without any call.
func TestBreaker(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, tt := range []struct {
		name   string
		caller time.Duration
		begin  func(*redistest.Server, *harness.Proxy)
		end    func(*redistest.Server, *harness.Proxy)
	}{
		{"paused", 0, func(s *redistest.Server, _ *harness.Proxy) { s.Pause() }, func(s *redistest.Server, _ *harness.Proxy) { s.Resume() }},
		{"swallowed", 0, func(_ *redistest.Server, p *harness.Proxy) { p.Blackhole() }, func(_ *redistest.Server, p *harness.Proxy) { p.Heal() }},
		{"swallowed, in haste", 20 * time.Millisecond, func(_ *redistest.Server, p *harness.Proxy) { p.Blackhole() }, func(_ *redistest.Server, p *harness.Proxy) { p.Heal() }},
		{"refused", 0, func(_ *redistest.Server, p *harness.Proxy) { p.Refuse(); p.Reset() }, func(_ *redistest.Server, p *harness.Proxy) { p.Heal() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{})
			proxy := harness.StartProxy(t, server.Addr)
			var log journal
			s := open(t, Config{Addr: proxy.Addr, Config: remote.Config{Timeout: 200 * time.Millisecond, OnBreaker: log.note}})
			harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
			tt.begin(server, proxy)
			harness.Await(t, 20*time.Second, "an open breaker", func() error {
				for n := range 20 {
					takeWithin(t, s, spread(n), tt.caller)
				}
				if s.Stats().OpenBreakers == 0 {
					return errors.New("it is closed")
				}
				return nil
			})
			// A batch that was under way may end still.
			harness.AwaitQuiet(t, 2*s.Config.Timeout, "no more batches", func() int64 { return int64(s.Stats().Batches) })
			before, goroutines := s.Stats(), runtime.NumGoroutine()
			const calls = 2000
			for n := range calls {
				v := send(t, s, spread(n))
				if _, refused := errors.AsType[*remote.OpenError](v.Err); !refused || !strings.Contains(v.Err.Error(), proxy.Addr) {
					t.Fatalf("call %d: %v", n, v.Err)
				}
			}
			after := s.Stats()
			if after.Batches != before.Batches || after.ErrorsByCause["breaker"]-before.ErrorsByCause["breaker"] != calls || after.WaitingCalls != 0 {
				t.Errorf("%+v after %+v", after, before)
			}
			if n := runtime.NumGoroutine(); n > goroutines+50 { // those of the proxy
				t.Errorf("%d goroutines after %d", n, goroutines)
			}
			tt.end(server, proxy)
			awaitBreakers(t, s, 0)
			harness.Await(t, 20*time.Second, "answers again", func() error { return send(t, s, hot(0)).Err })
			if got := log.read(); s.Stats().BreakerOpenings == 1 && (len(got) != 2 || !strings.HasPrefix(got[0], proxy.Addr+" true ") || got[1] != proxy.Addr+" false <nil>") {
				t.Errorf("told %q", got)
			}
			if n := int64(len(log.read())); n != 2*s.Stats().BreakerOpenings {
				t.Errorf("told %d times of %+v", n, s.Stats())
			}
		})
	}
}

// A store that was not called for a while and whose server came back meanwhile
// ends its probes with Run, as it does while the server is away.
func TestProbesEnd(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s, err := New(Config{Addr: "127.0.0.1:1", Config: remote.Config{Timeout: 50 * time.Millisecond, BreakerFailures: 1}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	harness.Await(t, 20*time.Second, "an open breaker", func() error {
		if send(t, s, hot(0)); s.Stats().OpenBreakers == 0 {
			return errors.New("it is closed")
		}
		return nil
	})
	dials := s.Stats().Dials
	harness.Await(t, 20*time.Second, "probes", func() error {
		if s.Stats().Dials < dials+3 {
			return errors.New("not enough")
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, before)
}

// What a server says is an answer, however little use it is; and without a
// breaker none opens.
func TestBreakerStaysClosed(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{"-LOADING wait\r\n", "-READONLY no\r\n", "-OOM full\r\n", "-NOAUTH who\r\n", "-ERR max number of clients reached\r\n"} {
		s := open(t, Config{Addr: parrot(t, func([]string) string { return reply }), Config: remote.Config{BreakerFailures: 1}})
		for range 200 {
			if v := send(t, s, hot(0)); v.Err == nil || causeOf(v.Err) == remote.CauseBreakerOpen {
				t.Fatalf("%q: %v", reply, v.Err)
			}
		}
		if st := s.Stats(); st.BreakerOpenings != 0 {
			t.Errorf("%q: %+v", reply, st)
		}
	}
	s := open(t, Config{Addr: "127.0.0.1:1", Config: remote.Config{BreakerFailures: -1}})
	for range 200 {
		if v := send(t, s, hot(0)); causeOf(v.Err) != remote.CauseConnectFailed {
			t.Fatal(v.Err)
		}
	}
}

// Of a cluster only the keys of a dead node are refused, and the one that takes
// its place is asked at once.
func TestBreakerOfOneNode(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	dead, next := harness.StartProxy(t, server.Addr), harness.StartProxy(t, server.Addr)
	var mu sync.Mutex
	addrs := []string{server.Addr, dead.Addr}
	seed := parrot(t, func([]string) string {
		mu.Lock()
		defer mu.Unlock()
		return slotsOf(t, addrs...)
	})
	var log journal
	s := open(t, Config{Cluster: []string{seed}, Config: remote.Config{Timeout: 200 * time.Millisecond, OnBreaker: log.note}})
	// CRCs of numbers alone differ in few bits.
	varied := func(n int) backend.Hit {
		h := hot(0)
		h.Key = fmt.Appendf(nil, "%x_", sha256.Sum256([]byte{byte(n)}))
		return h
	}
	isDead := func(n int) bool {
		h := varied(n)
		return redistest.KeySlot(string(h.Key)+"1767225600") >= clusterSlots/2
	}
	for n := range 100 {
		harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, varied(n)).Err })
	}
	dead.Blackhole()
	harness.Await(t, 20*time.Second, "an open breaker", func() error {
		for n := range 100 {
			if isDead(n) {
				takeWithin(t, s, varied(n), 50*time.Millisecond)
			}
		}
		if s.Stats().OpenBreakers != 1 {
			return fmt.Errorf("%+v", s.Stats())
		}
		return nil
	})
	for n := range 200 {
		h := varied(n)
		if v := send(t, s, h); (v.Err != nil) != isDead(n) || v.Err != nil && causeOf(v.Err) != remote.CauseBreakerOpen && causeOf(v.Err) != remote.CauseTimeout {
			t.Errorf("key %d, dead %t: %v", n, isDead(n), v.Err)
		}
	}
	mu.Lock()
	addrs[1] = next.Addr
	mu.Unlock()
	for n := range 100 {
		harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, varied(n)).Err })
	}
	if s.Stats().BreakerOpenings != 1 {
		t.Errorf("told %q", log.read())
	}
}

// A reply that drips, a byte at a time, holds a connection no longer than twice the
// timeout, though each byte comes well in time.
func TestDrip(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for pace := time.Tick(20 * time.Millisecond); err == nil; {
					<-pace
					_, err = conn.Write([]byte("1"))
				}
			}()
		}
	}()
	s := open(t, Config{Addr: l.Addr().String(), Config: remote.Config{Timeout: 500 * time.Millisecond, Connections: 1}})
	if v := send(t, s, hot(0)); !errors.Is(v.Err, remote.ErrTimeout) {
		t.Error(v.Err)
	}
	harness.Await(t, 20*time.Second, "the end of the batch", func() error {
		if s.Stats().FailedBatches == 0 {
			return errors.New("it is under way")
		}
		return nil
	})
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
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: time.Hour}})
	send(t, s, hot(0))
	server.Pause()
	b := backend.Batch{Hits: []backend.Hit{hot(0)}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	if err := s.Take(patient{t.Context(), time.Now().Add(100 * time.Millisecond)}, &b); err != nil || !errors.Is(b.Verdicts[0].Err, remote.ErrTimeout) {
		t.Errorf("got %v, %v", err, b.Verdicts[0].Err)
	}
	server.Resume()
}

// Calls with huge keys are refused before their keys take all memory, also those
// that stand in a queue when their callers have left.
func TestBytesAreBounded(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: 10 * time.Second, Connections: 1}})
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

// A call allocates nothing, nor does its caller's deadline.
func TestTakeAllocates(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Connections: 1}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := backend.Batch{Hits: []backend.Hit{hot(0)}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	n := testing.AllocsPerRun(500, func() {
		if err := errors.Join(s.Take(ctx, &b), b.Verdicts[0].Err); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%v allocations, those of radix included", n)
	if n > mostAllocs {
		t.Errorf("%v allocations a call, want %d at most", n, mostAllocs)
	}
}

// mostAllocs is what a batch of one call costs in radix, which is 1, and what the race
// detector has the pool of calls forget now and then.
const mostAllocs = 4

// A server that answers PING and holds all writes back, as one does that hands over
// to a replica, is found out once: what it says to probes does not close the breaker
// while calls wait in vain. If the machine stands still for longer than the pause between two probes, no call waits; then the
// breaker closes, and the test tries again.
func TestBreakerBelievesCalls(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	var told []string
	for range 6 {
		if told = believesCalls(t, server); len(told) == 1 {
			return
		}
	}
	t.Errorf("told %q", told)
}

// believesCalls holds the writes of server back until three calls that tried have failed. It returns what the store says of its breaker.
func believesCalls(t *testing.T, server *redistest.Server) (told []string) {
	t.Helper()
	var log journal
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: 800 * time.Millisecond, BreakerFailures: 2, OnBreaker: log.note}})
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	server.Do(t, "CLIENT", "PAUSE", "600000", "WRITE")
	stop := make(chan struct{})
	var calls sync.WaitGroup
	for range 4 { // so that there always is one to try
		calls.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					takeWithin(t, s, spread(n), 400*time.Millisecond) // Less than the timeout, and enough to be sent by a busy machine.
				}
			}
		})
	}
	awaitBreakers(t, s, 1)
	before := s.Stats().FailedBatches
	harness.Await(t, 30*time.Second, "calls that try", func() error {
		if n := s.Stats().FailedBatches - before; n < 3 {
			return fmt.Errorf("%d have failed", n)
		}
		return nil
	})
	close(stop)
	calls.Wait()
	told = log.read()
	server.Do(t, "CLIENT", "UNPAUSE")
	harness.Await(t, 20*time.Second, "answers again", func() error { return send(t, s, hot(0)).Err })
	return told
}
