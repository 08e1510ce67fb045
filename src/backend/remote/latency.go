package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// SlowError is a server that answers, but later than a call may take.
type SlowError struct {
	Store   string // redis or memcached
	Addr    string
	Took    time.Duration // the shortest of a few questions and answers
	Timeout time.Duration // of a call
	found   time.Time
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

// SetupTimeout returns how long the making of a connection may take by default: five
// round trips (TCP, TLS, AUTH, SELECT, ROLE) of the timeout of a call, twice; at least
// 1s.
func SetupTimeout(timeout time.Duration) time.Duration { return max(10*timeout, time.Second) }

const (
	measureEvery = time.Second      // at most
	tellEvery    = time.Minute      // at most
	slowFor      = 10 * time.Second // that a finding holds without another
)

// Slow returns the server that was found in the last 10 s to answer later than the
// Timeout; nil: none. It is looked for when calls time out.
func (s *Store) Slow() *SlowError {
	if slow := s.slow.Load(); slow != nil && time.Since(slow.found) < slowFor {
		return slow
	}
	return nil
}

// watchLatency measures servers that did not answer in the time of a call, one at a
// time, until ctx ends.
func (s *Store) watchLatency(ctx context.Context) {
	var told time.Time
	for {
		select {
		case addr := <-s.Access.stalled:
			slow, _ := errors.AsType[*SlowError](s.measure(ctx, addr))
			s.slow.Store(slow)
			if slow != nil && s.Config.OnSlow != nil && (told.IsZero() || time.Since(told) >= tellEvery) {
				s.Config.OnSlow(slow)
				told = time.Now()
			}
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

// measure asks the server at addr up to three times whether it is there, and returns a
// *SlowError if each answer takes longer than the Timeout. One may be late because this
// process or the server paused.
func (s *Store) measure(ctx context.Context, addr string) error {
	a := s.Access
	a.Timeout, a.stalled, a.Figures = max(a.Timeout, a.DialTimeout), nil, new(Figures) // not for calls
	l := NewLink(&a, addr)
	defer l.Close()
	if err := l.ready(ctx); err != nil {
		return err
	}
	slow := &SlowError{Store: s.Access.Name, Addr: addr, Took: math.MaxInt64, Timeout: s.Config.Timeout}
	for range 3 {
		started := time.Now()
		if err := l.Do(ctx, ping{}); err != nil {
			return err
		}
		slow.found = time.Now()
		if slow.Took = min(slow.Took, slow.found.Sub(started)); slow.Took <= slow.Timeout {
			return nil
		}
	}
	return slow
}
