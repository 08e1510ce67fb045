package memcached

import (
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
)

// far opens a store whose server is that far away.
func far(t *testing.T, away, timeout time.Duration, secure bool) (*Store, *harness.Proxy) {
	var options memcachedtest.Options
	cfg := Config{Config: remote.Config{Timeout: timeout, DialTimeout: 20 * time.Second}}
	if secure {
		options.TLS = harness.NewCertificates(t)
		client := options.TLS.ClientConfig(t)
		cfg.TLS = func() (*tls.Config, error) { return client, nil }
	}
	proxy := harness.StartProxy(t, memcachedtest.Start(t, options).Addr)
	proxy.Latency(away)
	cfg.Servers = []string{proxy.Addr}
	return open(t, cfg), proxy
}

// Connections are made before the first call, and none is thrown away because a call had
// less time.
func TestConnectsBeforeCalls(t *testing.T) {
	t.Parallel()
	const away, timeout = 400 * time.Millisecond, 1500 * time.Millisecond // a new counter takes two round trips
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprint("TLS ", secure), func(t *testing.T) {
			t.Parallel()
			s, _ := far(t, away, timeout, secure)
			harness.Await(t, 20*time.Second, "connections without calls", func() error {
				if n := s.Stats().OpenConnections; n != 2 {
					return fmt.Errorf("%d are open", n)
				}
				return nil
			})
			for n := range 3 {
				if v := send(t, s, hot(0)); v.Err != nil {
					t.Errorf("call %d: %v", n, v.Err)
				}
			}
			if st := s.Stats(); st.Dials != 2 || st.BreakerOpenings != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// Hits whose caller left while the connection was being made are not sent.
func TestLeftWhileConnecting(t *testing.T) {
	t.Parallel()
	const timeout = 600 * time.Millisecond
	s, proxy := far(t, 2*timeout, timeout, true)
	if v := send(t, s, hot(0)); !errors.Is(v.Err, remote.ErrTimeout) {
		t.Fatalf("got %+v", v)
	}
	proxy.Latency(0)
	var first backend.Verdict
	late := uint64(0) // hits that may have been sent before their caller left
	harness.Await(t, 20*time.Second, "answers", func() error {
		if first = send(t, s, hot(0)); first.Err != nil {
			late++
		}
		return first.Err
	})
	if first.Before > late {
		t.Errorf("got %+v, and %d hits were under way since there was a connection", first, late)
	}
}

// A server that answers later than the timeout is told from one that does not answer, by
// Ping and when calls time out.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	const away = 800 * time.Millisecond
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprint("TLS ", secure), func(t *testing.T) {
			t.Parallel()
			s, proxy := far(t, away, 500*time.Millisecond, secure)
			slow, isSlow := errors.AsType[*remote.SlowError](s.Ping(t.Context()))
			if !isSlow || slow.PingTime < away || slow.PingTime > 10*away || slow.Addr != proxy.Addr {
				t.Errorf("got %+v", slow)
			}
			harness.Await(t, 20*time.Second, "an explanation", func() error {
				send(t, s, hot(0))
				if s.SlowServer() == nil {
					return errors.New("none yet")
				}
				return nil
			})
			proxy.Latency(0)
			harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
			if err := s.Ping(t.Context()); err != nil {
				t.Errorf("Ping: %v", err)
			}
		})
	}
}
