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
	var busy atomic.Pointer[<-chan time.Time] // keeps this process from handing a reply out
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: faultTimeout, Connections: 1, OnBatch: func(int, time.Duration) {
		if c := busy.Load(); c != nil {
			<-*c
		}
	}}})
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
	m := watchMachine()
	defer m.end()
	v := send(t, s, hot(0))
	if took := m.now(); !errors.Is(v.Err, remote.ErrTimeout) || took > 4*faultTimeout {
		t.Errorf("got %+v after %v", v, took)
	}
	close(answered)
}
