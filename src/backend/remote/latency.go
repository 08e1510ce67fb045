package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// SlowError is the error of a server that answers, but later than the timeout of a call.
type SlowError struct {
	Store      string // is "redis" or "memcached"
	Addr       string
	PingTime   time.Duration // the time of the fastest of a few pings
	Timeout    time.Duration
	measuredAt time.Time
}

func (e *SlowError) Error() string {
	return fmt.Sprintf("%s: %s answers in %s, the timeout of a call is %s", e.Store, e.Addr,
		InMilliseconds(e.PingTime), InMilliseconds(e.Timeout))
}

// InMilliseconds returns d in words, such as "61 ms", or "0.3 ms" below 1 ms.
func InMilliseconds(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%d ms", (d+time.Millisecond/2)/time.Millisecond)
}

// DefaultDialTimeout returns how long the opening of a connection may take by default. It is twice the time of five
// round trips (TCP, TLS, AUTH, SELECT, ROLE) that each take the timeout of a call, and at least 1 s.
func DefaultDialTimeout(timeout time.Duration) time.Duration { return max(10*timeout, time.Second) }

const (
	minMeasurePause      = time.Second      // the least time between two measurements of latency
	minSlowReportPause   = time.Minute      // the least time between two calls of Config.OnSlowServer
	slowServerReportTime = 10 * time.Second // how long Store.SlowServer returns a slow server after its measurement
)

// SlowServer returns the server that was measured in the last 10 s and answered later than the
// Timeout, or nil. Servers are measured when calls time out.
func (s *Store) SlowServer() *SlowError {
	if slow := s.slowServer.Load(); slow != nil && time.Since(slow.measuredAt) < slowServerReportTime {
		return slow
	}
	return nil
}

// measureStalledServers measures servers that did not answer within the Timeout, until ctx ends.
func (s *Store) measureStalledServers(ctx context.Context) {
	var reported time.Time
	for {
		select {
		case addr := <-s.Access.stalledAddrs:
			slow, _ := errors.AsType[*SlowError](s.measureLatency(ctx, addr))
			s.slowServer.Store(slow)
			if slow != nil && s.Config.OnSlowServer != nil &&
				(reported.IsZero() || time.Since(reported) >= minSlowReportPause) {
				s.Config.OnSlowServer(slow)
				reported = time.Now()
			}
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(minMeasurePause):
		case <-ctx.Done():
			return
		}
	}
}

// measureLatency pings the server at addr over a new connection. It returns a *SlowError if three answers take longer
// than the Timeout. A single answer may be late because this process or the server paused.
func (s *Store) measureLatency(ctx context.Context, addr string) error {
	a := s.Access.WithMinTimeout(s.Access.DialTimeout)
	a.Figures = new(Figures)
	l := NewLink(a, addr)
	defer l.Close()
	if err := l.connectIfNeeded(ctx); err != nil {
		return err
	}
	ping := func(c *Conn) error {
		// A server that stands still must not delay the end of Run.
		defer context.AfterFunc(ctx, func() { _ = c.connUnderTLS.Close() })()
		return l.Ping(c)
	}
	slow := &SlowError{Store: s.Access.Name, Addr: addr, PingTime: math.MaxInt64, Timeout: s.Config.Timeout}
	for range 3 {
		started := time.Now()
		if err := l.Do(ctx, ping); err != nil {
			return err
		}
		slow.measuredAt = time.Now()
		if slow.PingTime = min(slow.PingTime, slow.measuredAt.Sub(started)); slow.PingTime <= slow.Timeout {
			return nil
		}
	}
	return slow
}
