package remote

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// SlowError is a server that answers, but later than a call may take.
type SlowError struct {
	Store   string // redis or memcached
	Addr    string
	Took    time.Duration // the shortest of a few questions and answers
	Timeout time.Duration // of a call
}

func (e *SlowError) Error() string {
	return fmt.Sprintf("%s: %s answers in %s, the timeout of a call is %s", e.Store, e.Addr, InMilliseconds(e.Took), InMilliseconds(e.Timeout))
}

// InMilliseconds returns d in words, such as "61 ms", or "0.3 ms" below 1 ms.
func InMilliseconds(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%d ms", (d+time.Millisecond/2)/time.Millisecond)
}

// Measure calls ask up to three times, and returns a SlowError if each answer takes
// longer than the timeout. One may be late because this process or the server paused.
func Measure(store, addr string, timeout time.Duration, ask func() error) error {
	least := time.Duration(0)
	for range 3 {
		started := time.Now()
		if err := ask(); err != nil {
			return err
		}
		took := time.Since(started)
		if took <= timeout {
			return nil
		}
		if least == 0 || took < least {
			least = took
		}
	}
	return &SlowError{store, addr, least, timeout}
}

// SetupTimeout returns how long the making of a connection may take by default: five
// round trips (TCP, TLS, AUTH, SELECT, ROLE) of the timeout of a call, twice; at least
// 1s.
func SetupTimeout(timeout time.Duration) time.Duration { return max(10*timeout, time.Second) }

// Latency finds out whether calls time out because servers are too far away for the
// timeout. All methods are safe for concurrent use. It measures only while Run runs.
type Latency struct {
	ask     func(ctx context.Context, addr string) error
	tell    func(*SlowError)
	stalled chan string
	last    atomic.Pointer[slowness]
}

// slowness is what was found at a time.
type slowness struct {
	err *SlowError
	at  time.Time
}

const (
	measureEvery = time.Second      // at most
	tellEvery    = time.Minute      // at most
	slowFor      = 10 * time.Second // that a finding holds without another
)

// NewLatency returns a Latency. Ask returns a *SlowError if the server at addr answers
// too late. Tell, unless nil, hears of it: at once, and every minute while it is so.
func NewLatency(ask func(context.Context, string) error, tell func(*SlowError)) *Latency {
	return &Latency{ask: ask, tell: tell, stalled: make(chan string, 1)}
}

// Stalled says that the server at addr did not answer in the time of a call. It does
// not block.
func (l *Latency) Stalled(addr string) {
	select {
	case l.stalled <- addr:
	default: // one is measured already
	}
}

// Slow returns what was found in the last 10 s; nil: no server that answers too late.
func (l *Latency) Slow() *SlowError {
	if last := l.last.Load(); last != nil && time.Since(last.at) < slowFor {
		return last.err
	}
	return nil
}

// Run measures until ctx ends.
func (l *Latency) Run(ctx context.Context) {
	var told time.Time
	for {
		select {
		case addr := <-l.stalled:
			told = l.measure(ctx, addr, told)
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(measureEvery):
		case <-ctx.Done():
			return
		}
	}
}

// measure measures one server, and returns when tell was called last.
func (l *Latency) measure(ctx context.Context, addr string, told time.Time) time.Time {
	slow, isSlow := errors.AsType[*SlowError](l.ask(ctx, addr))
	if !isSlow {
		l.last.Store(nil)
		return told
	}
	now := time.Now()
	l.last.Store(&slowness{slow, now})
	if l.tell != nil && (told.IsZero() || now.Sub(told) >= tellEvery) {
		l.tell(slow)
		return now
	}
	return told
}
