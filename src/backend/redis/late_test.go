package redis

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/backend/remote"
	"ratelimit/src/testbed/harness"
	"ratelimit/src/testbed/redistest"
)

// A caller whose time passes while the reply is being handed out gets it, up to as long
// again as the timeout.
func TestLateCaller(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	var busy atomic.Int64 // how long this process takes to hand a reply out
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: faultTimeout, Connections: 1, OnBatch: func(int, time.Duration) {
		time.Sleep(time.Duration(busy.Load()))
	}}})
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	before := send(t, s, hot(0)).Before
	busy.Store(int64(faultTimeout * 3 / 2))
	if v := send(t, s, hot(0)); v.Err != nil || v.Before != before+1 {
		t.Errorf("got %+v after %d", v, before)
	}
	busy.Store(int64(10 * faultTimeout))
	begun := time.Now()
	v := send(t, s, hot(0))
	if took := time.Since(begun); !errors.Is(v.Err, remote.ErrTimeout) || took > 4*faultTimeout {
		t.Errorf("got %+v after %v", v, took)
	}
	busy.Store(0)
}
