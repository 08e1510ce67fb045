package memcached

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
)

// While a server stands still every call ends at its deadline, or at the timeout,
// however much it asks for; and none of them is told that it asked for too much.
func TestInTimeWhileAServerStandsStill(t *testing.T) {
	still, well := memcachedtest.Start(t, memcachedtest.Options{}), memcachedtest.Start(t, memcachedtest.Options{})
	for _, tt := range []struct {
		name    string
		servers []string
	}{
		{"one server", []string{still.Addr}},
		{"one of two servers", []string{still.Addr, well.Addr}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Servers: tt.servers, Config: remote.Config{BreakerFailures: -1, Timeout: faultTimeout}} // a breaker would end calls early
			byTimeout := open(t, cfg)
			cfg.Timeout = time.Minute
			byDeadline := open(t, cfg)
			recovers(t, byTimeout)
			recovers(t, byDeadline)
			still.Pause()
			t.Run("timeout", func(t *testing.T) { standstill(t, byTimeout, t.Context) })
			t.Run("deadline", func(t *testing.T) {
				standstill(t, byDeadline, func() context.Context {
					ctx, cancel := context.WithTimeout(t.Context(), faultTimeout)
					t.Cleanup(cancel)
					return ctx
				})
			})
			still.Resume()
			recovers(t, byTimeout)
		})
	}
}

// standstill makes small and large calls, whose hits are on all servers, some of them
// while others wait already.
func standstill(t *testing.T, s *Store, caller func() context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	limit := &algorithm.Limit{Max: 1 << 20, Period: time.Hour, CountBlocked: true}
	pace := time.NewTicker(faultTimeout / 4)
	defer pace.Stop()
	for n := range 40 {
		hits := []int{200, 20}[n%2] // a busy machine, too, has time for those of the server that answers
		b := &backend.Batch{Now: epoch, Hits: make([]backend.Hit, hits), Verdicts: make([]backend.Verdict, hits)}
		for i := range b.Hits {
			b.Hits[i] = backend.Hit{Key: fmt.Appendf(nil, "k%d_%d_", n, i), Limit: limit, Amount: 1, GroupID: uint16(i)}
		}
		ctx := caller()
		all.Go(func() {
			begun := time.Now()
			if err := s.Take(ctx, b); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took > faultTimeout+patience {
				t.Errorf("call %d took %v", n, took)
			}
			if err := b.FirstErr(); err == nil || errors.Is(err, backend.ErrOverload) {
				t.Errorf("call %d: %v", n, err)
			}
		})
		if n%10 == 9 {
			<-pace.C
		}
	}
}

// A server that answers some commands and then stands still is an outage for those
// that wait for it, and the breaker is told.
func TestStandingStillIsNoOverload(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	proxy := harness.StartProxy(t, server.Addr)
	s := open(t, Config{Servers: []string{proxy.Addr}, MaxInFlight: 4, Config: remote.Config{Timeout: time.Second, BreakerFailures: 1, Connections: 1}})
	recovers(t, s)
	answered := s.Stats().Commands
	go func() {
		_ = harness.Retry(20*time.Second, func() error {
			if s.Stats().Commands < answered+20 {
				return errors.New("not enough answers")
			}
			return nil
		})
		proxy.Blackhole()
	}()
	limit := &algorithm.Limit{Max: 1 << 20, Period: time.Hour, CountBlocked: true}
	const hits = 100_000
	b := &backend.Batch{Now: epoch, Hits: make([]backend.Hit, hits), Verdicts: make([]backend.Verdict, hits)}
	for i := range b.Hits {
		b.Hits[i] = backend.Hit{Key: fmt.Appendf(nil, "k%d_", i), Limit: limit, Amount: 1}
	}
	if err := s.Take(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := b.FirstErr(); err == nil || errors.Is(err, backend.ErrOverload) {
		t.Errorf("got %v", err)
	}
	harness.Await(t, 20*time.Second, "an open breaker", func() error {
		if s.Stats().BreakerOpenings == 0 {
			return errors.New("it is closed")
		}
		return nil
	})
}
