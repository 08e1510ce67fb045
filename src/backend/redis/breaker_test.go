package redis

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/remotetest"
)

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
	var log remotetest.Notices
	s := open(t, Config{Cluster: []string{seed}, Config: remote.Config{
		Timeout:   200 * time.Millisecond,
		OnBreaker: log.Note,
	}})
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
				remotetest.SendWithin(t, s, varied(n), 50*time.Millisecond)
			}
		}
		if s.Stats().OpenBreakers != 1 {
			return fmt.Errorf("%+v", s.Stats())
		}
		return nil
	})
	for n := range 200 {
		h := varied(n)
		if v := send(t, s, h); (v.Err != nil) != isDead(n) || v.Err != nil &&
			causeOf(v.Err) != remote.CauseBreakerOpen && causeOf(v.Err) != remote.CauseTimeout {
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
		t.Errorf("told %q", log.Lines())
	}
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

// A server that answers PING and holds all writes back, as one does that hands over to a replica, is found out once:
// what it says to probes does not close the breaker while calls wait in vain. If the machine stands still for longer
// than the pause between two probes, no call waits; then the breaker closes, and the test tries again.
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

// believesCalls holds the writes of server back until three calls that tried have failed. It returns what the store
// says of its breaker.
func believesCalls(t *testing.T, server *redistest.Server) (told []string) {
	t.Helper()
	var log remotetest.Notices
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{
		Timeout: 800 * time.Millisecond, BreakerFailures: 2,
		OnBreaker: log.Note,
	}})
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
					// Less than the timeout, and enough to be sent by a busy machine.
					remotetest.SendWithin(t, s, spread(n), 400*time.Millisecond)
				}
			}
		})
	}
	harness.Await(t, 20*time.Second, "an open breaker", func() error {
		if n := s.Stats().OpenBreakers; n != 1 {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
	before := s.Stats().FailedBatches
	harness.Await(t, 30*time.Second, "calls that try", func() error {
		if n := s.Stats().FailedBatches - before; n < 3 {
			return fmt.Errorf("%d have failed", n)
		}
		return nil
	})
	close(stop)
	calls.Wait()
	told = log.Lines()
	server.Do(t, "CLIENT", "UNPAUSE")
	harness.Await(t, 20*time.Second, "answers again", func() error { return send(t, s, hot(0)).Err })
	return told
}
