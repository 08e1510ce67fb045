package remotetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
)

func heal(_ testing.TB, _ Server, p *harness.Proxy) { p.Heal() }

// healAndReset also breaks the connections that have lost bytes.
func healAndReset(_ testing.TB, _ Server, p *harness.Proxy) {
	p.Heal()
	p.Reset()
}

// byProxy makes the start of a fault from a method of the proxy.
func byProxy(start func(*harness.Proxy)) func(testing.TB, Server, *harness.Proxy) {
	return func(_ testing.TB, _ Server, p *harness.Proxy) { start(p) }
}

// The faults of all kinds of servers.
var (
	paused = Fault{
		"paused",
		[]string{remote.CauseTimeout},
		func(_ testing.TB, s Server, _ *harness.Proxy) { s.Pause() }, func(_ testing.TB, s Server,
			_ *harness.Proxy,
		) {
			s.Resume()
		},
	}
	killed = Fault{
		"killed",
		[]string{remote.CauseConnectionBroke, remote.CauseConnectFailed},
		func(_ testing.TB, s Server, _ *harness.Proxy) { s.Kill() }, func(t testing.TB, s Server,
			_ *harness.Proxy,
		) {
			s.Restart(t)
		},
	}
	swallowed = Fault{"swallowed", []string{remote.CauseTimeout}, byProxy((*harness.Proxy).Blackhole), heal}
	halfOpen  = Fault{"half open", []string{remote.CauseTimeout}, byProxy((*harness.Proxy).DropReplies), heal}
	reset     = Fault{
		"reset",
		[]string{remote.CauseConnectFailed},
		byProxy(func(p *harness.Proxy) { p.Refuse(); p.Reset() }), heal,
	}
	halfClosed = Fault{
		"half closed",
		[]string{remote.CauseConnectFailed},
		byProxy(func(p *harness.Proxy) { p.Refuse(); p.HalfClose() }), healAndReset,
	}
	garbage = Fault{"garbage", []string{remote.CauseConnectionBroke}, byProxy((*harness.Proxy).Garbage), heal}
	held    = Fault{
		"held",
		[]string{remote.CauseConnectionBroke, remote.CauseTimeout},
		byProxy((*harness.Proxy).Hold), healAndReset,
	}
	slow = Fault{
		"slow",
		[]string{remote.CauseTimeout},
		byProxy(func(p *harness.Proxy) { p.Latency(2 * Timeout) }), healAndReset,
	}
)

// Whatever happens to a server or the way to it, every call is answered in time, connections are few, and the store is
// back within a second of its server.
func (d *Driver) testFaults(t *testing.T) {
	for _, fault := range append([]Fault{paused, killed, swallowed, halfOpen, reset, halfClosed, garbage, held, slow},
		d.Faults...) {
		t.Run(fault.Name, func(t *testing.T) {
			t.Parallel()
			server, proxy := d.plain(t)
			s := d.open(t, proxy.Addr, remote.Config{Timeout: Timeout})
			AwaitRecovery(t, s, "hot_")
			const perSecond = 500
			tr := Drive(t, s, perSecond, spread)
			fault.Start(t, server, proxy)
			tr.AwaitFailures(t, perSecond*6/10) // it lasts 0.6 s or longer
			fault.Repair(t, server, proxy)
			AwaitRecovery(t, s, "hot_")
			tr.Stop(t)
			stats := s.Stats()
			if stats.OpenConnections > int64(s.Config.Connections) {
				t.Errorf("%d connections are open", stats.OpenConnections)
			}
			if !slices.ContainsFunc(fault.Causes, func(cause string) bool { return stats.ErrorsByCause[cause] > 0 }) ||
				stats.ErrorsByCause["other"] > 0 {
				t.Errorf("errors have the causes %v, want some of %v", stats.ErrorsByCause, fault.Causes)
			}
		})
	}
}

// A store answers its callers until it stops, and leaves nothing behind, also while its server stands still.
func (d *Driver) testStopping(t *testing.T) {
	server, _ := d.plain(t)
	before := goleak.IgnoreCurrent()
	for _, paused := range []bool{false, true} {
		s, err := d.New([]string{server.Addr}, remote.Config{Timeout: Timeout, DialTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		awaitAnswers(t, s)
		if paused {
			server.Pause()
		}
		var calls atomic.Int64
		var all sync.WaitGroup
		for n := range 200 {
			all.Go(func() {
				for range 20 {
					send(t, s, spread(n))
					if calls.Add(1) == 300 {
						cancel()
					}
				}
			})
		}
		all.Wait()
		stopped := time.Now()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(stopped); took > patience {
			t.Errorf("Run ended %v after the last call", took)
		}
		if v := send(t, s, hot(0)); v.Err == nil {
			t.Error("an answer after Run")
		}
		if stats := s.Stats(); stats.OpenConnections != 0 || stats.WaitingCalls != 0 {
			t.Errorf("left: %+v", stats)
		}
		server.Resume()
	}
	goleak.VerifyNone(t, before)
}

// A server closes connections that are idle, and all before it restarts. The next call does not notice.
func (d *Driver) testIdleConnections(t *testing.T) {
	d.secured(t, func(t *testing.T, server Server, cfg remote.Config) {
		proxy := harness.StartProxy(t, server.Addr)
		cfg.Connections = 1
		s := d.open(t, proxy.Addr, cfg)
		const calls = 20
		for n := range calls {
			if v := send(t, s, hot(n)); v.Err != nil {
				t.Errorf("call %d: %v", n, v.Err)
			}
			if n%2 == 0 {
				proxy.Reset()
				await(t, "the connection has ended", func() error {
					if n := proxy.Open(); n > 0 {
						return fmt.Errorf("%d are open", n)
					}
					return nil
				})
			}
		}
		// One at the start, and one for each that was closed.
		if stats := s.Stats(); stats.Dials != 1+calls/2 {
			t.Errorf("%d connections were made, want %d", stats.Dials, 1+calls/2)
		}
	})
}

// While a server stands still every call ends at its deadline, or at the timeout, however much it asks for; and no hit
// on that server is told that it asked for too much. On a busy machine, hits on other servers may be.
func (d *Driver) testStandingStill(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start func(testing.TB) ([]string, Server)
	}{
		{"single", func(t testing.TB) ([]string, Server) {
			server := d.Start(t, nil, harness.Pair{})
			return []string{server.Addr}, server
		}},
		{"cluster", d.Cluster},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addrs, server := tt.start(t)
			cfg := remote.Config{Timeout: Timeout, BreakerFailures: -1} // a breaker would end calls early
			byTimeout := d.openAll(t, addrs, cfg)
			cfg.Timeout = time.Minute
			byDeadline := d.openAll(t, addrs, cfg)
			awaitAnswers(t, byTimeout)
			awaitAnswers(t, byDeadline)
			server.Pause()
			t.Run("timeout", func(t *testing.T) { d.callInVain(t, byTimeout, server.Addr, t.Context) })
			t.Run("deadline", func(t *testing.T) {
				d.callInVain(t, byDeadline, server.Addr, func() context.Context {
					ctx, cancel := context.WithTimeout(t.Context(), Timeout)
					t.Cleanup(cancel)
					return ctx
				})
			})
			server.Resume()
			awaitAnswers(t, byTimeout)
		})
	}
}

// large returns a request of n hits, each with a counter of its own.
func large(n int, limit *algorithm.Limit, prefix string) *backend.Batch {
	b := &backend.Batch{Now: Epoch, Hits: make([]backend.Hit, n), Verdicts: make([]backend.Verdict, n)}
	for i := range b.Hits {
		b.Hits[i] = backend.Hit{Key: fmt.Appendf(nil, "%s%d_", prefix, i), Limit: limit, Amount: 1, GroupID: uint16(i)}
	}
	return b
}

// lateness is how much later than at its deadline a large call may end on a machine that has other things to do.
const lateness = 2 * time.Second

// callInVain makes small and large calls, whose hits are on all servers, some of them while others wait already.
func (d *Driver) callInVain(t *testing.T, s Store, paused string, caller func() context.Context) {
	clock := StartClock()
	defer clock.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	pace := time.NewTicker(Timeout / 4)
	defer pace.Stop()
	for n := range 40 {
		var b *backend.Batch
		switch n % 4 {
		case 0:
			b = large(1000, slidingCounter, fmt.Sprint("sliding", n, "_"))
		case 1:
			b = large(2000, window, fmt.Sprint("fixed", n, "_"))
		default:
			b = large(200, window, "few_")
		}
		ctx := caller()
		all.Go(func() {
			started := clock.Now()
			if err := s.Take(ctx, b); err != nil {
				t.Error(err)
			}
			if took := clock.Now() - started; took > Timeout+lateness {
				t.Errorf("call %d took %v", n, took)
			}
			if b.FirstErr() == nil {
				t.Errorf("call %d has all answers", n)
			}
			for i := range b.Hits {
				owner, err := s.Table().NodeOfKey(d.Key(&b.Hits[i]))
				if b.Hits[i].Limit != window || err != nil || owner.Addr != paused {
					continue
				}
				if err := b.Verdicts[i].Err; err == nil || errors.Is(err, backend.ErrOverload) {
					t.Errorf("call %d, hit %d: %v", n, i, err)
					return
				}
			}
		})
		if n%10 == 9 {
			<-pace.C
		}
	}
}

// A server that answers some commands and then stands still is an outage for those that wait for it, however much they
// asked for, and the breaker is told.
func (d *Driver) testNoOverload(t *testing.T) {
	_, proxy := d.plain(t)
	s := d.open(t, proxy.Addr, remote.Config{Timeout: 2 * Timeout, BreakerFailures: 1, Connections: 1})
	awaitAnswers(t, s)
	answered := s.Stats().Commands
	go func() {
		_ = harness.Retry(patience, func() error {
			if s.Stats().Commands < answered+20 {
				return errors.New("not enough answers")
			}
			return nil
		})
		proxy.Blackhole()
	}()
	b := large(100_000, window, "k")
	if err := s.Take(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := b.FirstErr(); err == nil || errors.Is(err, backend.ErrOverload) {
		t.Errorf("got %v", err)
	}
	await(t, "an open breaker", func() error {
		if send(t, s, hot(0)); s.Stats().BreakerOpenings == 0 {
			return errors.New("it is closed")
		}
		return nil
	})
}
