// Package remotetest is the suite of the stores that are servers, beside backendtest: it shows what a store does when
// its server, or the way to it, has a fault, and when its callers are in a hurry. Redis and Memcached pass it with a
// Driver each.
package remotetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
)

// Driver is what Redis and Memcached do differently.
type Driver struct {
	// Start starts a server, which speaks TLS if certs is not nil. It shows the certificate pair, or certs.Server if
	// that is zero.
	Start func(t testing.TB, certs *harness.Certificates, pair harness.Pair) Server
	// AsksForCertificates says that a server with TLS refuses clients without a certificate.
	AsksForCertificates bool
	// Cluster starts servers that share the keys. It returns their addresses and one of them.
	Cluster func(t testing.TB) (addrs []string, one Server)
	// New returns a store that counts in the servers at addrs.
	New func(addrs []string, cfg remote.Config) (Store, error)
	// Key returns the key of a fixed window, by which the store chooses the server.
	Key func(h *backend.Hit) []byte
	// CauseOf returns the name under which an error is counted.
	CauseOf func(error) string
	// ErrorReplies are replies to a count that are errors.
	ErrorReplies []string
	// Answer starts a server that answers each command that counts with reply, and returns its address.
	Answer func(t testing.TB, reply string) (addr string)
	// Faults are faults that only this kind of server can have.
	Faults []Fault
}

// Fault is something that goes wrong until it is repaired.
type Fault struct {
	Name string
	// Causes are the causes of errors, of which some must be seen.
	Causes        []string
	Start, Repair func(testing.TB, Server, *harness.Proxy)
}

// Server is a real server.
type Server struct {
	Addr string
	Process
}

// Process controls the process of a server.
type Process interface {
	Pause()
	Resume()
	Kill()
	Stop()
	Restart(t testing.TB)
}

// Store is a store under test.
type Store struct {
	*remote.Store
	// Stats has the figures, with those that the protocol counts itself.
	Stats func() remote.Stats
}

// Run tests the stores of d.
func (d *Driver) Run(t *testing.T) {
	t.Run("stopping", d.testStopping) // These two look for goroutines that are left, so they run alone.
	t.Run("probes stop", d.testProbesStop)
	for name, test := range map[string]func(*testing.T){
		"faults":                                d.testFaults,
		"breaker":                               d.testBreaker,
		"breaker stays closed":                  d.testBreakerStaysClosed,
		"idle connections":                      d.testIdleConnections,
		"replies that drip":                     d.testDrip,
		"standing still":                        d.testStandingStill,
		"standing still is no overload":         d.testNoOverload,
		"connecting":                            d.testConnecting,
		"connecting without calls":              d.testConnectingWithoutCalls,
		"callers that leave while connecting":   d.testLeavingWhileConnecting,
		"slow server":                           d.testSlowServer,
		"deadlines of callers":                  d.testDeadlines,
		"margin":                                d.testMargin,
		"too many calls":                        d.testTooManyCalls,
		"all calls may wait":                    d.testAllMayWait,
		"too many bytes":                        d.testTooManyBytes,
		"queue while no connection can be made": d.testQueueWhileConnecting,
		"certificates":                          d.testCertificates,
		"ping":                                  d.testPing,
		"texts":                                 d.testTexts,
		"exactly the limit":                     d.testExact,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

const (
	// Timeout is how long calls wait in tests of faults. A busy machine answers sooner.
	Timeout = 500 * time.Millisecond
	// slack is how much later an answer may be seen, and maxRecovery how soon a store has to answer again after a
	// fault. The time in which the machine did not let this process run does not count.
	slack       = 500 * time.Millisecond
	maxRecovery = time.Second
	// patience is how long a test waits for what must happen.
	patience = 20 * time.Second
)

// Epoch is the instant of all hits.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// hot is a hit on one key, spread one on a hundred keys in turns. Both limits are never reached.
func hot(int) backend.Hit { return hit("hot_") }

func spread(n int) backend.Hit { return hit(fmt.Sprintf("spread_%d_", n%100)) }

func hit(key string) backend.Hit { return backend.Hit{Key: []byte(key), Limit: window, Amount: 1} }

var (
	window         = &algorithm.Limit{Max: 1 << 40, Period: time.Hour, CountBlocked: true}
	slidingCounter = &algorithm.Limit{
		Kind: algorithm.SlidingWindowCounter, Max: 1 << 20, Period: time.Hour,
		CountBlocked: true,
	}
)

// open runs a store until the test ends.
func (d *Driver) open(t testing.TB, addr string, cfg remote.Config) Store {
	t.Helper()
	return d.openAll(t, []string{addr}, cfg)
}

func (d *Driver) openAll(t testing.TB, addrs []string, cfg remote.Config) Store {
	t.Helper()
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	s, err := d.New(addrs, cfg)
	if err != nil {
		t.Fatal(err)
	}
	harness.RunInBackground(t, s.Run)
	await(t, "the servers are known", func() error {
		if table := s.Table(); len(table.Nodes) == 0 {
			return errors.Join(errors.New("not yet"), table.Err)
		}
		return nil
	})
	return s
}

// plain starts a server without TLS, and a proxy before it.
func (d *Driver) plain(t testing.TB) (Server, *harness.Proxy) {
	t.Helper()
	server := d.Start(t, nil, harness.Pair{})
	return server, harness.StartProxy(t, server.Addr)
}

// secured calls test with a server, without and with TLS.
func (d *Driver) secured(t *testing.T, test func(t *testing.T, server Server, cfg remote.Config)) {
	t.Run("tcp", func(t *testing.T) {
		t.Parallel()
		test(t, d.Start(t, nil, harness.Pair{}), remote.Config{DialTimeout: patience})
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		certs := harness.NewCertificates(t)
		test(t, d.Start(t, certs, harness.Pair{}), remote.Config{DialTimeout: patience, TLS: ClientTLS(t, certs)})
	})
}

// ClientTLS returns a remote.Config.TLS for a server with the certificates.
func ClientTLS(t testing.TB, certs *harness.Certificates) func() (*tls.Config, error) {
	cfg := certs.ClientConfig(t)
	return func() (*tls.Config, error) { return cfg, nil }
}

// send sends one hit and returns its verdict.
func send(t testing.TB, s backend.Backend, h backend.Hit) backend.Verdict {
	t.Helper()
	return sendIn(t, t.Context(), s, h)
}

// SendWithin sends one hit of a caller that has so much time; 0: as much as it likes.
func SendWithin(t testing.TB, s backend.Backend, h backend.Hit, left time.Duration) backend.Verdict {
	t.Helper()
	if left == 0 {
		return send(t, s, h)
	}
	ctx, cancel := context.WithTimeout(t.Context(), left)
	defer cancel()
	return sendIn(t, ctx, s, h)
}

// t comes first in helpers of tests.
func sendIn(t testing.TB, ctx context.Context, s backend.Backend, h backend.Hit) backend.Verdict { //nolint:revive
	t.Helper()
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: Epoch}
	if err := s.Take(ctx, &b); err != nil {
		t.Error(err)
	}
	return b.Verdicts[0]
}

func await(t testing.TB, what string, condition func() error) {
	t.Helper()
	harness.Await(t, patience, what, condition)
}

// awaitAnswers waits until the servers of all keys answer.
func awaitAnswers(t testing.TB, s Store) {
	t.Helper()
	for n := range 20 {
		await(t, "answers", func() error { return send(t, s, spread(n)).Err })
	}
}

func awaitBreakers(t testing.TB, s Store, open int) {
	t.Helper()
	await(t, fmt.Sprintf("%d open breakers", open), func() error {
		if n := s.Stats().OpenBreakers; n != open {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

func awaitConnections(t testing.TB, s Store, open int64) {
	t.Helper()
	await(t, "connections", func() error {
		if n := s.Stats().OpenConnections; n != open {
			return fmt.Errorf("%d are open, want %d", n, open)
		}
		return nil
	})
}
