package memcached

import (
	"crypto/tls"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/backendtest"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
)

// open runs a store until the test ends.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	harness.RunInBackground(t, s.Run)
	if cfg.SRV == nil {
		harness.Await(t, 10*time.Second, "the servers are in use", func() error { return s.Table().Err })
	}
	return s
}

// three starts three servers.
func three(t testing.TB) (servers []*memcachedtest.Server, addrs []string) {
	t.Helper()
	for range 3 {
		s := memcachedtest.Start(t, memcachedtest.Options{})
		servers = append(servers, s)
		addrs = append(addrs, s.Addr)
	}
	return servers, addrs
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func window(limit uint64, period time.Duration) *algorithm.Limit {
	return &algorithm.Limit{Max: limit, Period: period, CountBlocked: true}
}

func sliding(limit uint64, period time.Duration) *algorithm.Limit {
	return &algorithm.Limit{Kind: algorithm.SlidingWindowCounter, Max: limit, Period: period, CountBlocked: true}
}

// send sends one hit at epoch.
func send(t testing.TB, s backend.Backend, h backend.Hit) backend.Verdict {
	t.Helper()
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Verdicts[0]
}

func hot(int) backend.Hit {
	return backend.Hit{Key: []byte("hot_"), Limit: window(1<<40, time.Hour), Amount: 1}
}

func spread(n int) backend.Hit {
	return backend.Hit{Key: fmt.Appendf(nil, "spread_%d_", n%10_000), Limit: window(1<<40, time.Hour), Amount: 1}
}

// all is what Memcached can count.
var all = backendtest.Suite{
	Kinds:            CountableKinds(),
	OnlyCountBlocked: true,
	NoGroups:         true,
	UpstreamCounts:   true,
	InexactBackwards: []algorithm.Kind{algorithm.SlidingWindowCounter},
}

func TestSuite(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	single := func(o memcachedtest.Options) func(*testing.T) ([]*memcachedtest.Server, []string) {
		return func(t *testing.T) ([]*memcachedtest.Server, []string) {
			s := memcachedtest.Start(t, o)
			return []*memcachedtest.Server{s}, []string{s.Addr}
		}
	}
	several := func(t *testing.T) ([]*memcachedtest.Server, []string) { return three(t) }
	for _, tt := range []struct {
		name    string
		servers func(*testing.T) ([]*memcachedtest.Server, []string)
		cfg     Config
	}{
		{"tcp", single(memcachedtest.Options{}), Config{}},
		{
			"unix socket", single(memcachedtest.Options{UnixSocket: true}),
			Config{MaxInFlight: 1, Config: remote.Config{Connections: 1}},
		},
		{
			"TLS", single(memcachedtest.Options{TLS: certs}),
			Config{Config: remote.Config{TLS: func() (*tls.Config, error) { return certs.ClientConfig(t), nil }}},
		},
		{"three servers", several, Config{Config: remote.Config{TagKeys: true, ExpirationJitter: 300 * time.Second}}},
		{"three servers by rendezvous", several, Config{
			Hash: Rendezvous, MaxInFlight: 3,
			Config: remote.Config{Connections: 3},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			servers, addrs := tt.servers(t)
			suite := all
			suite.Brief = tt.name != "tcp"
			cfg := tt.cfg
			cfg.Servers = addrs
			store := open(t, cfg)
			suite.Run(t, func(t *testing.T) backend.Backend {
				for _, s := range servers {
					s.Flush(t)
				}
				return store
			})
		})
	}
}
