package redis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/remotetest"
)

// A caller whose time passes while the reply is being handed out gets it, up to as long
// again as the timeout.
func TestLateCaller(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	var busy atomic.Pointer[<-chan time.Time] // keeps this process from handing a reply out
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{
		Timeout: faultTimeout, Connections: 1,
		OnBatch: func(int, time.Duration) {
			if c := busy.Load(); c != nil {
				<-*c
			}
		},
	}})
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	before := send(t, s, hot(0)).Before
	late := time.After(faultTimeout * 3 / 2)
	busy.Store(&late)
	if v := send(t, s, hot(0)); v.Err != nil || v.Before != before+1 {
		t.Errorf("got %+v after %d", v, before)
	}
	answered := make(chan time.Time)
	tooLate := (<-chan time.Time)(answered)
	busy.Store(&tooLate)
	clock := remotetest.StartClock()
	defer clock.Stop()
	v := send(t, s, hot(0))
	if took := clock.Now(); !errors.Is(v.Err, remote.ErrTimeout) || took > 4*faultTimeout {
		t.Errorf("got %+v after %v", v, took)
	}
	close(answered)
}

// Calls with different deadlines in one batch do not shorten each other's.
func TestDeadlinesInOneBatch(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	proxy := harness.StartProxy(t, server.Addr)
	s := open(t, Config{Addr: proxy.Addr, Config: remote.Config{
		Timeout: 20 * time.Second, Connections: 1, PipelineWindow: 200 * time.Millisecond,
	}})
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	before, batches := send(t, s, hot(0)).Before, s.Stats().Batches
	proxy.Latency(500 * time.Millisecond)
	var calls sync.WaitGroup
	calls.Go(func() {
		if v := remotetest.SendWithin(t, s, hot(0), 300*time.Millisecond); !errors.Is(v.Err, remote.ErrTimeout) &&
			!errors.Is(v.Err, context.DeadlineExceeded) {
			t.Errorf("the call in haste: %+v", v)
		}
	})
	for _, left := range []time.Duration{10 * time.Second, 0} {
		calls.Go(func() {
			if v := remotetest.SendWithin(t, s, hot(0), left); v.Err != nil || v.Before <= before || v.Before > before+3 {
				t.Errorf("the call with %v: %+v", left, v)
			}
		})
	}
	calls.Wait()
	if n := s.Stats().Batches - batches; n != 1 {
		t.Errorf("%d batches", n)
	}
}
