package remotetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
)

// Notices are what a store says of its breakers.
type Notices struct {
	mu    sync.Mutex
	lines []string
}

// Note is a remote.Config.OnBreaker.
func (n *Notices) Note(addr string, open bool, reason error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprint(addr, " ", open, " ", reason))
}

// Lines returns the notices: address, whether the breaker is open, and the reason.
func (n *Notices) Lines() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lines
}

// A server that does not answer is found out, also by callers with less time than the timeout. Then nothing is sent to
// it, nothing piles up, and it is found again without any call.
func (d *Driver) testBreaker(t *testing.T) {
	for _, tt := range []struct {
		Fault
		caller time.Duration // how much time callers have; 0: as much as they like
	}{
		{paused, 0},
		{swallowed, 0},
		{swallowed, 20 * time.Millisecond},
		{reset, 0},
	} {
		t.Run(fmt.Sprint(tt.Name, tt.caller), func(t *testing.T) {
			t.Parallel()
			server, proxy := d.plain(t)
			var told Notices
			s := d.open(t, proxy.Addr, remote.Config{Timeout: Timeout, OnBreaker: told.Note})
			awaitAnswers(t, s)
			tt.Start(t, server, proxy)
			await(t, "an open breaker", func() error {
				for n := range 20 {
					SendWithin(t, s, spread(n), tt.caller)
				}
				if s.Stats().OpenBreakers == 0 {
					return errors.New("it is closed")
				}
				return nil
			})
			// A batch that was under way may still end.
			harness.AwaitQuiet(t, 2*Timeout, "no more commands",
				func() int64 { return s.Stats().Commands + s.Stats().Batches })
			before := s.Stats()
			const calls = 2000
			for n := range calls {
				v := send(t, s, spread(n))
				if _, refused := errors.AsType[*remote.OpenError](v.Err); !refused ||
					!strings.Contains(v.Err.Error(), proxy.Addr) {
					t.Fatalf("call %d: %v", n, v.Err)
				}
			}
			after := s.Stats()
			refused := after.ErrorsByCause[remote.CauseBreakerOpen] - before.ErrorsByCause[remote.CauseBreakerOpen]
			if after.Commands != before.Commands || after.Batches != before.Batches || refused != calls ||
				after.WaitingCalls != 0 {
				t.Errorf("%+v after %+v", after, before)
			}
			tt.Repair(t, server, proxy)
			awaitBreakers(t, s, 0)
			awaitAnswers(t, s)
			lines, openings := told.Lines(), s.Stats().BreakerOpenings
			if int64(len(lines)) != 2*openings || !strings.HasPrefix(lines[0], proxy.Addr+" true ") ||
				lines[1] != proxy.Addr+" false <nil>" {
				t.Errorf("told %q of %d openings", lines, openings)
			}
		})
	}
}

// Every reply of a server is an answer, and a store without a breaker opens none.
func (d *Driver) testBreakerStaysClosed(t *testing.T) {
	for _, reply := range d.ErrorReplies {
		s := d.open(t, d.Answer(t, reply), remote.Config{BreakerFailures: 1})
		for n := range 200 {
			if v := send(t, s, spread(n)); v.Err == nil || d.CauseOf(v.Err) == remote.CauseBreakerOpen {
				t.Fatalf("%q: %v", reply, v.Err)
			}
		}
		if stats := s.Stats(); stats.BreakerOpenings != 0 {
			t.Errorf("%q: %+v", reply, stats)
		}
	}
	s := d.open(t, "127.0.0.1:1", remote.Config{BreakerFailures: -1})
	for n := range 200 {
		if v := send(t, s, spread(n)); d.CauseOf(v.Err) != remote.CauseConnectFailed {
			t.Fatal(v.Err)
		}
	}
}

// A store that stops while its server is away sends no more probes.
func (d *Driver) testProbesStop(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s, err := d.New([]string{"127.0.0.1:1"}, remote.Config{Timeout: 50 * time.Millisecond, BreakerFailures: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	await(t, "an open breaker", func() error {
		if send(t, s, hot(0)); s.Stats().OpenBreakers == 0 {
			return errors.New("it is closed")
		}
		return nil
	})
	dials := s.Stats().Dials
	await(t, "probes", func() error {
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

// A reply that drips, a byte at a time, holds a connection no longer than twice the timeout, though each byte comes in
// time.
func (d *Driver) testDrip(t *testing.T) {
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
	s := d.open(t, l.Addr().String(), remote.Config{Timeout: Timeout, Connections: 1})
	for range 3 {
		if v := send(t, s, hot(0)); v.Err == nil {
			t.Errorf("got %+v", v)
		}
	}
	await(t, "the end of the batch", func() error {
		if s.Stats().FailedBatches == 0 {
			return errors.New("it is under way")
		}
		return nil
	})
}
