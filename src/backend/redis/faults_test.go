package redis

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// faultTimeout is how long calls wait in the tests of faults, slack how much
// later an answer may be seen, and back how soon a store has to answer again;
// the time in which the machine did not let us run does not count.
const (
	faultTimeout = 500 * time.Millisecond
	slack        = 500 * time.Millisecond
	back         = time.Second
)

// machine is a clock that stands still while this process is not let run, as
// short sleeps show that end late.
type machine struct {
	begun time.Time
	stop  chan struct{}

	mu   sync.Mutex
	late time.Duration // in all
	woke time.Duration // the last time, after begun
}

const nap = 5 * time.Millisecond

func watchMachine() *machine {
	m := &machine{begun: time.Now(), stop: make(chan struct{})}
	go func() {
		for {
			select {
			case <-time.After(nap):
				m.mu.Lock()
				now := time.Since(m.begun)
				m.late += max(now-m.woke-nap, 0)
				m.woke = now
				m.mu.Unlock()
			case <-m.stop:
				return
			}
		}
	}()
	return m
}

func (m *machine) end() { close(m.stop) }

// now is how long m has run.
func (m *machine) now() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Since(m.begun)
	return now - m.late - max(now-m.woke-nap, 0)
}

// traffic is calls at a steady pace, each in a goroutine of its own, as those of
// a server are.
type traffic struct {
	timeout time.Duration // of a call
	stop    context.CancelFunc
	stopped chan struct{}
	ended   sync.Once
	machine *machine

	passed, over, failed atomic.Int64
	late                 atomic.Int64 // calls that took longer than they may
	longest              atomic.Int64 // call
	goroutines           atomic.Int64 // the most

	mu     sync.Mutex
	errors map[string]int
}

// drive makes so many calls a second.
func drive(t *testing.T, s *Store, perSecond int, hit func(n int) backend.Hit) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	tr := &traffic{
		timeout: s.Config.Timeout, stop: cancel, stopped: make(chan struct{}),
		machine: watchMachine(), errors: make(map[string]int),
	}
	go func() {
		defer close(tr.stopped)
		var calls sync.WaitGroup
		defer calls.Wait()
		begun, n := time.Now(), 0
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			due := int(time.Since(begun).Seconds() * float64(perSecond))
			for n = max(n, due-perSecond/10); n < due; n++ { // after a pause, not all at once
				h := hit(n)
				calls.Go(func() { tr.call(t, s, h) })
			}
			tr.goroutines.Store(max(tr.goroutines.Load(), int64(runtime.NumGoroutine())))
		}
	}()
	t.Cleanup(func() { tr.end(t) })
	return tr
}

func (tr *traffic) call(t *testing.T, s *Store, h backend.Hit) {
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	begun, begunHere := time.Now(), tr.machine.now()
	err := s.Take(context.Background(), &b)
	raise(&tr.longest, int64(time.Since(begun)))
	if tr.machine.now()-begunHere > tr.timeout+slack {
		tr.late.Add(1)
	}
	switch v := b.Verdicts[0]; {
	case err != nil:
		t.Error(err)
	case v.Err != nil:
		tr.failed.Add(1)
		tr.mu.Lock()
		tr.errors[v.Err.Error()]++
		tr.mu.Unlock()
	case v.Over:
		tr.over.Add(1)
	default:
		tr.passed.Add(1)
	}
}

// raise makes most n if it is less.
func raise(most *atomic.Int64, n int64) {
	for {
		m := most.Load()
		if n <= m || most.CompareAndSwap(m, n) {
			return
		}
	}
}

// end stops the calls and holds them to their time.
func (tr *traffic) end(t *testing.T) {
	t.Helper()
	tr.ended.Do(func() {
		tr.stop()
		<-tr.stopped
		tr.machine.end()
		// A thread may be kept from the CPU with what it was about to run while
		// others go on: that is one call, or a few.
		calls := tr.passed.Load() + tr.over.Load() + tr.failed.Load()
		late, longest := tr.late.Load(), time.Duration(tr.longest.Load())
		if late > calls/100 || longest > tr.timeout+10*time.Second {
			t.Errorf("%d of %d calls were late, the latest after %v", late, calls, longest)
		}
	})
}

// awaitFailures waits for so many more calls to fail.
func (tr *traffic) awaitFailures(t *testing.T, calls int64) {
	t.Helper()
	want := tr.failed.Load() + calls
	harness.Await(t, time.Minute, "failed calls", func() error {
		if n := tr.failed.Load(); n < want {
			return fmt.Errorf("%d of %d", n, want)
		}
		return nil
	})
}

// recovers holds the store to its time for being back, from now on.
func recovers(t *testing.T, s *Store, keys ...string) {
	t.Helper()
	m := watchMachine()
	defer m.end()
	for _, k := range keys {
		h := backend.Hit{Key: []byte(k), Limit: window(1<<40, time.Hour), Amount: 1}
		harness.Await(t, 20*time.Second, "answers again", func() error { return send(t, s, h).Err })
	}
	if took := m.now(); took > back+slack {
		t.Errorf("back after %v", took)
	}
}

func hot(int) backend.Hit {
	return backend.Hit{Key: []byte("hot_"), Limit: window(1<<40, time.Hour), Amount: 1}
}

// spread hits a hundred keys in turns.
func spread(n int) backend.Hit {
	return backend.Hit{Key: fmt.Appendf(nil, "k%d_", n%100), Limit: window(1<<40, time.Hour), Amount: 1}
}

// Whatever happens to Redis or the way to it, every call is answered in time,
// and the store is back within a second of Redis.
func TestFaults(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	type (
		server = *redistest.Server
		proxy  = *harness.Proxy
	)
	for _, tt := range []struct {
		name  string
		cause string // that some of the errors have
		begin func(server, proxy)
		end   func(server, proxy)
	}{
		{"paused", "timeout", func(s server, _ proxy) { s.Pause() }, func(s server, _ proxy) { s.Resume() }},
		{"killed", "connection", func(s server, _ proxy) { s.Kill() }, func(s server, _ proxy) { s.Restart(t) }},
		{"swallowed", "timeout", func(_ server, p proxy) { p.Blackhole() }, func(_ server, p proxy) { p.Heal() }},
		{"half open", "timeout", func(_ server, p proxy) { p.DropReplies() }, func(_ server, p proxy) { p.Heal() }},
		{"reset", "connect", func(_ server, p proxy) { p.Refuse(); p.Reset() }, func(_ server, p proxy) { p.Heal() }},
		{"garbage", "connection", func(_ server, p proxy) { p.Garbage() }, func(_ server, p proxy) { p.Heal() }},
		{"full", "memory", func(s server, _ proxy) {
			s.Do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1")
		}, func(s server, _ proxy) { s.Do(t, "CONFIG", "SET", "maxmemory", "0") }},
		{"read only", "read_only", func(s server, _ proxy) { s.Do(t, "REPLICAOF", "127.0.0.1", "1") }, func(s server, _ proxy) { s.Do(t, "REPLICAOF", "NO", "ONE") }},
		{"not allowed", "auth", func(s server, _ proxy) { s.Do(t, "ACL", "SETUSER", "default", "nocommands") }, func(s server, _ proxy) { s.Do(t, "ACL", "SETUSER", "default", "allcommands") }},
		{"revoked", "auth", func(s server, _ proxy) {
			s.Do(t, "ACL", "SETUSER", "default", "resetpass", ">other")
			s.Do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		}, func(s server, _ proxy) { s.Do(t, "ACL", "SETUSER", "default", "nopass") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{})
			proxy := harness.StartProxy(t, server.Addr)
			s := open(t, Config{Addr: proxy.Addr, Config: remote.Config{Timeout: faultTimeout}})
			recovers(t, s, "hot_")
			const perSecond = 500
			tr := drive(t, s, perSecond, spread)
			tt.begin(server, proxy)
			tr.awaitFailures(t, perSecond*6/10) // it lasts 0.6 s or longer
			tt.end(server, proxy)
			recovers(t, s, "hot_")
			tr.end(t)
			st := s.Stats()
			if st.OpenConnections > 2 {
				t.Errorf("%d connections are open", st.OpenConnections)
			}
			if st.ErrorsByCause[tt.cause] == 0 {
				t.Errorf("no error is counted as %s: %v", tt.cause, st.ErrorsByCause)
			}
		})
	}
}

func TestLoading(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: faultTimeout}})
	recovers(t, s, "hot_")
	tr := drive(t, s, 500, hot)
	done := server.Loading(t)
	tr.awaitFailures(t, 1)
	done()
	recovers(t, s, "hot_")
	tr.end(t)
}

// Redis ends connections that are idle, and all before it restarts. A call that
// comes next does not notice.
func TestIdleConnectionsEnd(t *testing.T) {
	certs := harness.NewCertificates(t)
	for _, tt := range []struct {
		name    string
		options redistest.Options
		config  Config
	}{
		{"tcp", redistest.Options{}, Config{}},
		{"TLS", redistest.Options{TLS: certs}, Config{Config: remote.Config{TLS: clientTLS(t, certs)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := redistest.Start(t, tt.options)
			tt.config.Addr, tt.config.Connections = server.Addr, 1
			s := open(t, tt.config)
			const calls = 20
			for i := range calls {
				if v := send(t, s, hot(i)); v.Err != nil {
					t.Errorf("call %d: %v", i, v.Err)
				}
				if i%2 == 0 {
					// It answers when the kernel has told this process that the connection ended.
					server.Do(t, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
				}
			}
			// One at the start, and one for each that was ended.
			if st := s.Stats(); st.OpenConnections != 1 || st.Dials != 1+calls/2 {
				t.Errorf("%d connections are open of %d", st.OpenConnections, st.Dials)
			}
		})
	}
}

// Redis stands still for over four seconds under 2,000 calls a second: no call waits
// longer than it may, nothing piles up, and no call passes that should not.
func TestStandstill(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: faultTimeout}})
	const limit, perSecond = 3000, 2000
	tr := drive(t, s, perSecond, func(int) backend.Hit {
		return backend.Hit{Key: []byte("k_"), Limit: window(limit, time.Hour), Amount: 1}
	})
	harness.Await(t, 20*time.Second, "traffic", func() error {
		if tr.passed.Load() < limit/3 {
			return errors.New("not enough")
		}
		return nil
	})
	heap := heapBytes()
	server.Pause()
	tr.awaitFailures(t, 4*perSecond) // it lasts 4.5 s or longer
	grown := heapBytes() - heap
	server.Resume()
	recovers(t, s, "other_")
	harness.Await(t, 20*time.Second, "the limit", func() error {
		if tr.over.Load() == 0 {
			return errors.New("not reached")
		}
		return nil
	})
	tr.end(t)
	// As many calls are under way as come in while one may wait, and a few more.
	if most := int64(perSecond*max(faultTimeout, time.Duration(tr.longest.Load()))/time.Second) + 200; tr.goroutines.Load() > most {
		t.Errorf("%d goroutines, want no more than %d", tr.goroutines.Load(), most)
	}
	if grown > 16<<20 {
		t.Errorf("%d bytes more", grown)
	}
	if tr.failed.Load() == 0 || tr.passed.Load() > limit {
		t.Errorf("%d failed, %d passed of %d", tr.failed.Load(), tr.passed.Load(), limit)
	}
}

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A failover that the sentinels decide on, with the old primary gone, standing
// still, or there as a replica.
func TestSentinelFailover(t *testing.T) {
	set := redistest.StartSentinel(t, redistest.SentinelOptions{})
	s := open(t, Config{Sentinel: &Sentinel{Primary: set.PrimaryName, Addrs: set.SentinelAddrs[:1]}, Config: remote.Config{Timeout: faultTimeout}})
	recovers(t, s, "hot_")
	for _, tt := range []struct {
		name  string
		begin func(*redistest.Server)
		end   func(*redistest.Server)
	}{
		{"killed", (*redistest.Server).Kill, func(old *redistest.Server) { old.Restart(t) }},
		{"paused", (*redistest.Server).Pause, (*redistest.Server).Resume},
		{"asked to", func(*redistest.Server) { set.Failover(t) }, func(*redistest.Server) {}},
		{"while the sentinel that was named is gone", func(*redistest.Server) {
			set.Sentinels[0].Stop()
			set.Failover(t)
		}, func(*redistest.Server) { set.Sentinels[0].Restart(t) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := set.Primary(t)
			tr := drive(t, s, 500, spread)
			tt.begin(old)
			primary := old
			harness.Await(t, 20*time.Second, "another primary", func() error {
				if primary = set.Primary(t); primary == old {
					return errors.New("it is still the same")
				}
				return nil
			})
			recovers(t, s, "hot_")
			passed := tr.passed.Load()
			harness.Await(t, 20*time.Second, "calls that pass", func() error {
				if tr.passed.Load() < passed+200 {
					return errors.New("not enough")
				}
				return nil
			})
			tr.end(t)
			if got := fmt.Sprint(primary.Do(t, "GET", "hot_1767225600")); got == "" || got == "<nil>" {
				t.Error("the new primary has no counts")
			}
			tt.end(old)
			harness.Await(t, 20*time.Second, "the old primary as a replica", func() error {
				info, err := old.Try("INFO", "replication") // it closes connections when it becomes one
				if err != nil || strings.Contains(fmt.Sprint(info), "role:slave") {
					return err
				}
				return errors.New("it is none")
			})
			set.AwaitFailover(t, old)
			recovers(t, s, "hot_")
		})
	}
	if n := s.Stats().OpenConnections; n > 3 { // two to the primary and one to a sentinel
		t.Errorf("%d connections are open", n)
	}
}

// Slots move while their keys are hit: the old owner says ASK, then MOVED, and
// no caller notices. Each hit is counted once.
func TestSlotsMove(t *testing.T) {
	c := redistest.StartCluster(t, redistest.ClusterOptions{})
	s := open(t, Config{Cluster: c.Addrs[:1], Config: remote.Config{Timeout: 5 * time.Second}})
	// Keys of one slot, some of them hit together.
	key := func(n int) []byte { return fmt.Appendf(nil, "{slot}k%d_", n%20) }
	var sent atomic.Int64
	tr := drive(t, s, 1000, func(n int) backend.Hit {
		sent.Add(1)
		return backend.Hit{Key: key(n), Limit: window(1<<40, time.Hour), Amount: 1}
	})
	// Groups cannot be answered while their keys are in two places.
	over, ended := make(chan struct{}), make(chan struct{})
	var groups atomic.Int64
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
			}
			b := backend.Batch{Now: epoch, Verdicts: make([]backend.Verdict, 3)}
			for i := range 3 {
				b.Hits = append(b.Hits, backend.Hit{Key: key(i), Limit: window(1<<40, time.Hour), Amount: 1, Atomic: true})
			}
			sent.Add(3)
			if err := errors.Join(s.Take(context.Background(), &b), b.Verdicts[0].Err, b.Verdicts[1].Err, b.Verdicts[2].Err); err != nil {
				t.Errorf("a group: %v", err)
			}
			groups.Add(1)
		}
	}()
	slot := redistest.KeySlot("{slot}")
	for range 3 {
		from := c.NodeForSlot(t, slot)
		to := c.Primaries(t)[0]
		if to == from {
			to = c.Primaries(t)[1]
		}
		m := c.StartMigration(t, slot, to)
		for m.Move(t, 4) > 0 {
			calls := tr.passed.Load()
			harness.Await(t, 20*time.Second, "calls in between", func() error {
				if tr.passed.Load() < calls+50 {
					return errors.New("not enough")
				}
				return nil
			})
		}
		m.Finish(t)
	}
	close(over)
	<-ended
	if groups.Load() == 0 {
		t.Error("no group was answered")
	}
	tr.end(t)
	if n := tr.failed.Load(); n > 0 {
		t.Errorf("%d calls failed: %v", n, tr.errors)
	}
	var counted int64
	owner := c.NodeForSlot(t, slot)
	for n := range 20 {
		v, _ := strconv.ParseInt(fmt.Sprintf("%s", owner.Do(t, "GET", string(key(n))+"1767225600")), 10, 64)
		counted += v
	}
	if counted != sent.Load() {
		t.Errorf("%d hits are counted, %d were sent", counted, sent.Load())
	}
}

// A replica takes over, as an operator wants it or because its primary died.
func TestReplicaIsPromoted(t *testing.T) {
	c := redistest.StartCluster(t, redistest.ClusterOptions{})
	s := open(t, Config{Cluster: c.Addrs, Config: remote.Config{Timeout: faultTimeout}})
	recovers(t, s, "hot_")
	for _, tt := range []struct {
		name  string
		begin func(*redistest.Server)
		end   func(*redistest.Server)
	}{
		{"handed over", func(*redistest.Server) {}, func(*redistest.Server) {}},
		{"killed", (*redistest.Server).Kill, func(old *redistest.Server) { old.Restart(t) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := c.NodeForKey(t, "hot_1767225600")
			tr := drive(t, s, 500, spread)
			tt.begin(old)
			c.FailoverReplica(t, old)
			recovers(t, s, "hot_")
			tr.end(t)
			if tr.passed.Load() == 0 {
				t.Error("no call passed")
			}
			tt.end(old)
			c.AwaitStable(t)
			recovers(t, s, "hot_")
			for text := range tr.errors {
				if strings.Contains(text, "MOVED") {
					t.Errorf("somebody was told %q", text)
				}
			}
		})
	}
}
