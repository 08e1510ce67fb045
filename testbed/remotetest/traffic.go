package remotetest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/testbed/harness"
)

// Clock is a clock that stands still while the machine does not let this process run: then short sleeps end late.
type Clock struct {
	started time.Time
	stop    chan struct{}

	mu   sync.Mutex
	late time.Duration // the sum of all delays
	woke time.Duration // the end of the last sleep, since started
}

const nap = 5 * time.Millisecond

// StartClock returns a Clock that runs until Stop.
func StartClock() *Clock {
	c := &Clock{started: time.Now(), stop: make(chan struct{})}
	go func() {
		for {
			select {
			case <-time.After(nap):
				c.mu.Lock()
				now := time.Since(c.started)
				c.late += max(now-c.woke-nap, 0)
				c.woke = now
				c.mu.Unlock()
			case <-c.stop:
				return
			}
		}
	}()
	return c
}

// Stop stops the clock.
func (c *Clock) Stop() { close(c.stop) }

// Now returns how long this process has run since StartClock.
func (c *Clock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.started)
	return now - c.late - max(now-c.woke-nap, 0)
}

// Traffic is calls at a steady pace, each in a goroutine of its own.
type Traffic struct {
	Passed, Over, Failed atomic.Int64 // calls, by their answers
	Longest              atomic.Int64 // ns that the longest call took
	Goroutines           atomic.Int64 // the largest number of goroutines of this process

	timeout time.Duration // of a call
	cancel  context.CancelFunc
	stopped chan struct{}
	stop    sync.Once
	clock   *Clock
	late    atomic.Int64 // calls that took longer than they may

	mu     sync.Mutex
	errors map[string]int // how often each error was seen
}

// Drive makes so many calls a second until Stop, or the end of the test.
func Drive(t *testing.T, s Store, perSecond int, hit func(n int) backend.Hit) *Traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	tr := &Traffic{
		timeout: s.Config.Timeout, cancel: cancel, stopped: make(chan struct{}),
		clock: StartClock(), errors: make(map[string]int),
	}
	go func() {
		defer close(tr.stopped)
		var calls sync.WaitGroup
		defer calls.Wait()
		started, n := time.Now(), 0
		for tick := time.NewTicker(nap); ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			due := int(time.Since(started).Seconds() * float64(perSecond))
			for n = max(n, due-perSecond/10); n < due; n++ { // after a pause, not all at once
				h := hit(n)
				calls.Go(func() { tr.call(t, s, h) })
			}
			raise(&tr.Goroutines, int64(runtime.NumGoroutine()))
		}
	}()
	t.Cleanup(func() { tr.Stop(t) })
	return tr
}

func (tr *Traffic) call(t *testing.T, s Store, h backend.Hit) {
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: Epoch}
	started, onClock := time.Now(), tr.clock.Now()
	err := s.Take(context.Background(), &b)
	raise(&tr.Longest, int64(time.Since(started)))
	if tr.clock.Now()-onClock > tr.timeout+slack {
		tr.late.Add(1)
	}
	switch v := b.Verdicts[0]; {
	case err != nil:
		t.Error(err)
	case v.Err != nil:
		tr.Failed.Add(1)
		tr.mu.Lock()
		tr.errors[v.Err.Error()]++
		tr.mu.Unlock()
	case v.Over:
		tr.Over.Add(1)
	default:
		tr.Passed.Add(1)
	}
}

// raise sets most to n if that is more.
func raise(most *atomic.Int64, n int64) {
	for {
		m := most.Load()
		if n <= m || most.CompareAndSwap(m, n) {
			return
		}
	}
}

// Errors returns how often each error was seen.
func (tr *Traffic) Errors() map[string]int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.errors
}

// Stop stops the calls, and fails the test if they took longer than they may.
func (tr *Traffic) Stop(t *testing.T) {
	t.Helper()
	tr.stop.Do(func() {
		tr.cancel()
		<-tr.stopped
		tr.clock.Stop()
		// A thread may be kept from the CPU with what it was about to run while others continue: that is one call, or a
		// few.
		calls := tr.Passed.Load() + tr.Over.Load() + tr.Failed.Load()
		late, longest := tr.late.Load(), time.Duration(tr.Longest.Load())
		if late > calls/100 || longest > tr.timeout+10*time.Second {
			t.Errorf("%d of %d calls were late, the latest after %v", late, calls, longest)
		}
	})
}

// AwaitFailures waits until so many more calls have failed.
func (tr *Traffic) AwaitFailures(t *testing.T, calls int64) {
	t.Helper()
	want := tr.Failed.Load() + calls
	harness.Await(t, time.Minute, "failed calls", func() error {
		if n := tr.Failed.Load(); n < want {
			return fmt.Errorf("%d of %d", n, want)
		}
		return nil
	})
}

// AwaitRecovery waits until the store answers hits on keys, and fails the test if that takes longer than maxRecovery.
func AwaitRecovery(t *testing.T, s Store, keys ...string) {
	t.Helper()
	clock := StartClock()
	defer clock.Stop()
	for _, k := range keys {
		await(t, "answers again", func() error { return send(t, s, hit(k)).Err })
	}
	if took := clock.Now(); took > maxRecovery+slack {
		t.Errorf("the store answered after %v, want at most %v", took, maxRecovery)
	}
}
