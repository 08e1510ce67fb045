package remotetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
)

// Making a connection may take longer than a call. Connections are made before the first call,
// none is closed because a call had less time, and the breaker stays closed.
func (d *Driver) testConnecting(t *testing.T) {
	// the first call of Memcached takes two round trips
	const away, timeout = 800 * time.Millisecond, 3 * time.Second
	for _, connections := range []int{2, 10} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			d.secured(t, func(t *testing.T, server Server, cfg remote.Config) {
				proxy := harness.StartProxy(t, server.Addr)
				proxy.Latency(away)
				cfg.Timeout, cfg.Connections = timeout, connections
				s := d.open(t, proxy.Addr, cfg)
				send(t, s, hot(0)) // while connections are being made
				awaitConnections(t, s, int64(connections))
				await(t, "answers", func() error { return send(t, s, hot(0)).Err }) // a login may still be under way
				for n := range 3 {
					if v := send(t, s, hot(0)); v.Err != nil {
						t.Errorf("call %d: %v", n, v.Err)
					}
				}
				if stats := s.Stats(); stats.Dials != int64(connections) || stats.BreakerOpenings != 0 {
					t.Errorf("%+v", stats)
				}
			})
		})
	}
}

// Connections are made without a call also when the server starts after the store.
func (d *Driver) testConnectingWithoutCalls(t *testing.T) {
	_, proxy := d.plain(t)
	proxy.Refuse()
	s := d.open(t, proxy.Addr, remote.Config{BreakerFailures: -1})
	await(t, "an attempt", func() error {
		if s.Stats().Dials == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	proxy.Heal()
	awaitConnections(t, s, 2)
}

// Hits whose caller left while the connection was being made are not sent.
func (d *Driver) testLeavingWhileConnecting(t *testing.T) {
	const timeout = 600 * time.Millisecond
	certs := harness.NewCertificates(t)
	proxy := harness.StartProxy(t, d.Start(t, certs, harness.Pair{}).Addr)
	proxy.Latency(2 * timeout)
	s := d.open(t, proxy.Addr, remote.Config{
		TLS: ClientTLS(t, certs), Connections: 1, Timeout: timeout,
		DialTimeout: patience,
	})
	if v := send(t, s, hot(0)); !errors.Is(v.Err, remote.ErrTimeout) {
		t.Fatalf("got %+v", v)
	}
	proxy.Latency(0)
	var first backend.Verdict
	late := uint64(0) // hits that may have been sent before their caller left
	await(t, "answers", func() error {
		if first = send(t, s, hot(0)); first.Err != nil {
			late++
		}
		return first.Err
	})
	if first.Before > late {
		t.Errorf("got %+v, and %d hits were under way since there was a connection", first, late)
	}
}

// A server that answers later than the timeout is told from one that does not answer: by Ping, and when calls time out.
func (d *Driver) testSlowServer(t *testing.T) {
	const away = 800 * time.Millisecond
	d.secured(t, func(t *testing.T, server Server, cfg remote.Config) {
		proxy := harness.StartProxy(t, server.Addr)
		told := make(chan *remote.SlowError, 10)
		cfg.Timeout, cfg.BreakerFailures, cfg.OnSlowServer = Timeout, -1, func(e *remote.SlowError) { told <- e }
		s := d.open(t, proxy.Addr, cfg)
		awaitAnswers(t, s)
		// On a busy machine it may be slow for a moment.
		await(t, "answers in time", func() error { return errors.Join(s.Ping(t.Context()), slowServer(s)) })
		proxy.Latency(away)
		slow, isSlow := errors.AsType[*remote.SlowError](s.Ping(t.Context()))
		if !isSlow || slow.PingTime < away || slow.PingTime > 10*away || slow.Timeout != Timeout ||
			slow.Addr != proxy.Addr {
			t.Errorf("Ping of a slow server: %+v", slow)
		}
		await(t, "an explanation", func() error {
			send(t, s, hot(0))
			if s.SlowServer() == nil {
				return errors.New("none yet")
			}
			return nil
		})
		if e := <-told; e.PingTime <= Timeout || e.Addr != proxy.Addr {
			t.Errorf("told %+v", e)
		}
		proxy.Heal()
		await(t, "the end of it", func() error {
			send(t, s, hot(0))
			return slowServer(s)
		})
	})
}

// slowServer returns the SlowServer of s as an error, or nil.
func slowServer(s Store) error {
	if e := s.SlowServer(); e != nil {
		return e
	}
	return nil
}
