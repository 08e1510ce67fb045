package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// Making a connection takes several round trips, and may take longer than a call:
// connections are made before the first call, none of them is thrown away because a call
// had less time, and the breaker stays closed.
func TestConnectingTakesLongerThanACall(t *testing.T) {
	const away, timeout = 700 * time.Millisecond, 1300 * time.Millisecond
	certs := harness.NewCertificates(t)
	for _, tt := range []struct {
		name    string
		options redistest.Options
		config  Config
	}{
		{"tcp", redistest.Options{}, Config{}},
		{"password and database", redistest.Options{Password: "secret"}, Config{DB: "3", Credentials: func() (string, string, error) { return "", "secret", nil }}},
		{"TLS", redistest.Options{TLS: certs}, Config{Config: remote.Config{TLS: clientTLS(t, certs)}}},
		{"TLS, password and database", redistest.Options{TLS: certs, Password: "secret"}, Config{
			DB:          "3",
			Credentials: func() (string, string, error) { return "", "secret", nil },
			Config: remote.Config{
				TLS: clientTLS(t, certs),
			},
		}},
		{"ten connections", redistest.Options{TLS: certs}, Config{Config: remote.Config{TLS: clientTLS(t, certs), Connections: 10}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, tt.options)
			proxy := harness.StartProxy(t, server.Addr)
			proxy.Latency(away)
			tt.config.Addr, tt.config.Timeout, tt.config.DialTimeout = proxy.Addr, timeout, 20*time.Second
			s := open(t, tt.config)
			early := send(t, s, hot(0)) // while connections are being made
			wanted := max(tt.config.Connections, 2)
			harness.Await(t, 20*time.Second, "connections without calls", func() error {
				if n := s.Stats().OpenConnections; n != int64(wanted) {
					return fmt.Errorf("%d are open", n)
				}
				return nil
			})
			// AUTH and SELECT may be under way still.
			harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
			for n := range 3 {
				if v := send(t, s, spread(n)); v.Err != nil {
					t.Errorf("call %d, after %v: %v", n, early.Err, v.Err)
				}
			}
			if st := s.Stats(); st.Dials != int64(wanted) || st.BreakerOpenings != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A connection is made for each writer also when the server comes after the store.
func TestConnectsWithoutCalls(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	proxy := harness.StartProxy(t, server.Addr)
	proxy.Refuse()
	s := open(t, Config{Addr: proxy.Addr, Config: remote.Config{BreakerFailures: -1}})
	harness.Await(t, 20*time.Second, "an attempt", func() error {
		if s.Stats().Dials == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	proxy.Heal()
	harness.Await(t, 20*time.Second, "connections", func() error {
		if n := s.Stats().OpenConnections; n != 2 {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
}

// Hits whose caller left while the connection was being made are not sent.
func TestLeftWhileConnecting(t *testing.T) {
	const timeout = 600 * time.Millisecond
	certs := harness.NewCertificates(t)
	server := redistest.Start(t, redistest.Options{TLS: certs})
	proxy := harness.StartProxy(t, server.Addr)
	proxy.Latency(2 * timeout)
	s := open(t, Config{Addr: proxy.Addr, Config: remote.Config{TLS: clientTLS(t, certs), Connections: 1, Timeout: timeout, DialTimeout: 20 * time.Second}})
	if v := send(t, s, hot(0)); !errors.Is(v.Err, remote.ErrTimeout) {
		t.Fatalf("got %+v", v)
	}
	proxy.Latency(0)
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	if v := send(t, s, hot(0)); v.Err != nil || v.Before != 1 {
		t.Errorf("got %+v, and only one hit was answered", v)
	}
}

// A server that answers later than the timeout is told from one that does not answer.
func TestPingMeasures(t *testing.T) {
	const away = 600 * time.Millisecond
	certs := harness.NewCertificates(t)
	for _, tt := range []struct {
		name    string
		options redistest.Options
		config  Config
		slow    bool
	}{
		{"too far", redistest.Options{}, Config{Config: remote.Config{Timeout: away / 2}}, true},
		{"too far, TLS", redistest.Options{TLS: certs}, Config{Config: remote.Config{Timeout: away / 2, TLS: clientTLS(t, certs)}}, true},
		{"far", redistest.Options{}, Config{Config: remote.Config{Timeout: 2 * away}}, false},
		{"far, TLS", redistest.Options{TLS: certs}, Config{Config: remote.Config{Timeout: 2 * away, TLS: clientTLS(t, certs)}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, tt.options)
			proxy := harness.StartProxy(t, server.Addr)
			proxy.Latency(away)
			tt.config.Addr, tt.config.DialTimeout = proxy.Addr, 20*time.Second
			s := open(t, tt.config)
			err := s.Ping(t.Context())
			slow, isSlow := errors.AsType[*remote.SlowError](err)
			if isSlow != tt.slow || !tt.slow && err != nil {
				t.Fatalf("got %v", err)
			}
			if tt.slow && (slow.PingTime < away || slow.PingTime > 10*away || slow.Timeout != away/2 || !strings.Contains(err.Error(), proxy.Addr)) {
				t.Errorf("got %+v: %v", slow, err)
			}
		})
	}
}

// When calls time out, the store finds out whether the server is too far away for its
// timeout, or does not answer at all.
func TestTimeoutsAreExplained(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	proxy := harness.StartProxy(t, server.Addr)
	told := make(chan *remote.SlowError, 10)
	s := open(t, Config{
		Addr: proxy.Addr,
		Config: remote.Config{
			Timeout:         500 * time.Millisecond,
			DialTimeout:     20 * time.Second,
			BreakerFailures: -1,
			OnSlowServer:    func(e *remote.SlowError) { told <- e },
		},
	})
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	if s.SlowServer() != nil {
		t.Errorf("at first: %v", s.SlowServer())
	}
	proxy.Latency(800 * time.Millisecond)
	harness.Await(t, 30*time.Second, "an explanation", func() error {
		send(t, s, hot(0))
		if s.SlowServer() == nil {
			return errors.New("none yet")
		}
		return nil
	})
	if e := <-told; e.PingTime < 800*time.Millisecond || e.Addr != proxy.Addr {
		t.Errorf("got %+v", e)
	}
	proxy.Heal()
	harness.Await(t, 30*time.Second, "the end of it", func() error {
		send(t, s, hot(0))
		if e := s.SlowServer(); e != nil {
			return e
		}
		return nil
	})
}
