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

// Measure has ask put a question up to three times, and returns a SlowError if each
// answer takes longer than the timeout. Several, since a pause of this process or of the
// server is not the way to it.
func Measure(store, addr string, timeout time.Duration, ask func() error) error {
	least := time.Duration(0)
	for range 3 {
		begun := time.Now()
		if err := ask(); err != nil {
			return err
		}
		took := time.Since(begun)
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
// round trips (TCP, TLS, AUTH, SELECT, ROLE) of the longest that a call may take, twice;
// at least 1s.
func SetupTimeout(timeout time.Duration) time.Duration { return max(10*timeout, time.Second) }

// Latency finds out why calls time out: whether servers are too far away for the timeout.
// All methods are safe for concurrent use. It measures only while Run runs.
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

// NewLatency returns a Latency. Ask returns a *SlowError if the server at addr answers too
// late. Tell, unless nil, hears of a server that does: at once, and every minute while it
// is so.
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
		var addr string
		select {
		case addr = <-l.stalled:
		case <-ctx.Done():
			return
		}
		slow, isSlow := errors.AsType[*SlowError](l.ask(ctx, addr))
		switch now := time.Now(); {
		case isSlow:
			l.last.Store(&slowness{slow, now})
			if l.tell != nil && (told.IsZero() || now.Sub(told) >= tellEvery) {
				told = now
				l.tell(slow)
			}
		default:
			l.last.Store(nil)
		}
		select {
		case <-time.After(measureEvery):
		case <-ctx.Done():
			return
		}
	}
}
