package remotetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
)

// A caller's own deadline ends its call, and so does its leaving. What was not sent then is not counted.
func (d *Driver) testDeadlines(t *testing.T) {
	server, _ := d.plain(t)
	s := d.open(t, server.Addr, remote.Config{Timeout: time.Minute})
	awaitAnswers(t, s)
	before := send(t, s, hot(0)).Before
	server.Pause()
	left, leave := context.WithCancel(t.Context())
	leave()
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for cause, ctx := range map[string]context.Context{remote.CauseCallerLeft: left, remote.CauseTimeout: soon} {
		started := time.Now()
		if v := sendIn(t, ctx, s, hot(0)); d.CauseOf(v.Err) != cause || time.Since(started) > patience {
			t.Errorf("%v after %v, want the cause %s", v.Err, time.Since(started), cause)
		}
	}
	server.Resume()
	await(t, "an answer", func() error { return send(t, s, hot(0)).Err })
	// Of two calls that left, the one that was under way may have been counted.
	if v := send(t, s, hot(0)); v.Before > before+4 {
		t.Errorf("what was not sent was counted: %+v after %d", v, before)
	}
}

// patient has a deadline, and does not end then.
type patient struct {
	context.Context
	deadline time.Time
}

func (p patient) Deadline() (time.Time, bool) { return p.deadline, true }

// A call gives up by itself before its caller's time is over.
func (d *Driver) testMargin(t *testing.T) {
	server, _ := d.plain(t)
	s := d.open(t, server.Addr, remote.Config{Timeout: time.Hour})
	send(t, s, hot(0))
	server.Pause()
	v := sendIn(t, patient{t.Context(), time.Now().Add(100 * time.Millisecond)}, s, hot(0))
	if !errors.Is(v.Err, remote.ErrTimeout) {
		t.Errorf("got %v", v.Err)
	}
	server.Resume()
}

// More calls than may wait are refused at once. The calls of callers that left are bounded, too.
func (d *Driver) testTooManyCalls(t *testing.T) {
	server, _ := d.plain(t)
	const most, callers = 30, 100
	s := d.open(t, server.Addr, remote.Config{Timeout: time.Minute, MaxWaitingCalls: most, Connections: 1})
	awaitAnswers(t, s)
	server.Pause()
	left := errors.New("no more interest")
	ctx, leave := context.WithCancelCause(t.Context())
	defer leave(nil)
	errs := make(chan error, callers)
	for n := range callers {
		go func() { errs <- sendIn(t, ctx, s, spread(n)).Err }()
	}
	for n := range callers {
		if n == callers-most {
			leave(left)
		}
		want := remote.ErrTooManyCalls
		if n >= callers-most {
			want = left
		}
		if err := <-errs; !errors.Is(err, want) {
			t.Errorf("answer %d is %v, want %v", n, err, want)
		}
	}
	for n := range 5 * most {
		SendWithin(t, s, spread(n), time.Millisecond)
	}
	node, err := s.Table().NodeOfKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := node.UnreceivedCalls(); n > most {
		t.Errorf("%d calls wait in the queue", n)
	}
	server.Resume()
	awaitAnswers(t, s)
	if stats := s.Stats(); stats.WaitingCalls != 0 || stats.ErrorsByCause[remote.CauseTooManyCalls] == 0 {
		t.Errorf("%+v", stats)
	}
}

// As many calls as may wait do so.
func (d *Driver) testAllMayWait(t *testing.T) {
	const calls = 200
	server, _ := d.plain(t)
	s := d.open(t, server.Addr, remote.Config{Timeout: time.Minute, MaxWaitingCalls: calls})
	server.Pause()
	var left atomic.Int64
	var all sync.WaitGroup
	for n := range calls {
		h := spread(n)
		h.Limit = slidingCounter // two counters
		all.Go(func() {
			if v := send(t, s, h); v.Err != nil {
				t.Error(v.Err)
			}
			left.Add(1)
		})
	}
	await(t, "all calls wait", func() error {
		if n := s.Stats().WaitingCalls + left.Load(); n < calls {
			return fmt.Errorf("%d of %d", n, calls)
		}
		return nil
	})
	server.Resume()
	all.Wait()
}

// Calls with huge keys are refused before their keys take all memory, also those that wait for a server when their
// callers have left.
func (d *Driver) testTooManyBytes(t *testing.T) {
	server, _ := d.plain(t)
	s := d.open(t, server.Addr, remote.Config{Timeout: 10 * time.Second, Connections: 1})
	send(t, s, hot(0))
	server.Pause()
	huge := hit(strings.Repeat("x", 1<<20))
	refused := 0
	for n := 0; n < 1000 && refused < 10; n++ { // on a busy machine some leave before they take room
		if v := SendWithin(t, s, huge, 5*time.Millisecond); errors.Is(v.Err, remote.ErrTooManyCalls) {
			refused++
		}
	}
	if refused < 10 {
		t.Errorf("%d of 1000 calls were refused", refused)
	}
	server.Resume()
	await(t, "answers again", func() error { return send(t, s, huge).Err })
	await(t, "room", func() error {
		if n := s.Figures.Admission.HeldBytes(); n != 0 {
			return fmt.Errorf("%d bytes are taken", n)
		}
		return nil
	})
}

// While no connection can be made, callers leave and their calls stay; still the queue has an end.
func (d *Driver) testQueueWhileConnecting(t *testing.T) {
	certs := harness.NewCertificates(t)
	proxy := harness.StartProxy(t, d.Start(t, certs, harness.Pair{}).Addr)
	proxy.Blackhole() // the handshake gets no answer, so each attempt to connect takes the whole timeout
	s := d.open(t, proxy.Addr, remote.Config{
		TLS: ClientTLS(t, certs), Timeout: 3 * time.Second, Connections: 1,
		MaxWaitingCalls: 10,
	})
	refused := 0
	for range 50 {
		if v := SendWithin(t, s, hot(0), 10*time.Millisecond); errors.Is(v.Err, remote.ErrTooManyCalls) {
			refused++
		}
	}
	if refused < 30 {
		t.Errorf("%d of 50 calls were refused", refused)
	}
}

// A server with a certificate that is not good, or not good any more, gets no calls.
func (d *Driver) testCertificates(t *testing.T) {
	certs := harness.NewCertificates(t)
	good := ClientTLS(t, certs)
	for _, tt := range []struct {
		name   string
		server harness.Pair
		client func() (*tls.Config, error)
		works  bool
	}{
		{"good", certs.Server, good, true},
		{"expired", certs.ExpiredServer, good, false},
		{"of another authority", certs.OtherServer, good, false},
		{"for another host", certs.WrongHost, good, false},
		{"none shown by the client", certs.Server, func() (*tls.Config, error) {
			cfg := certs.ClientConfig(t)
			cfg.Certificates = nil
			return cfg, nil
		}, !d.AsksForCertificates},
		{"unreadable", certs.Server, func() (*tls.Config, error) { return nil, errors.New("no such file") }, false},
		{"not used", certs.Server, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := d.Start(t, certs, tt.server)
			s := d.open(t, server.Addr, remote.Config{TLS: tt.client, Timeout: time.Second})
			var v backend.Verdict
			if tt.works {
				await(t, "answers", func() error { return send(t, s, hot(0)).Err })
			} else if v = send(t, s, hot(0)); v.Err == nil {
				t.Errorf("got %+v", v)
			}
			if err := s.Ping(t.Context()); (err == nil) != tt.works {
				t.Errorf("Ping: %v", err)
			}
		})
	}
}

// Ping fails if no server answers, and names all.
func (d *Driver) testPing(t *testing.T) {
	server, _ := d.plain(t)
	s := d.open(t, server.Addr, remote.Config{})
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	server.Stop()
	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), server.Addr) {
		t.Errorf("Ping of a server that is away: %v", err)
	}
}

// A text is read as it was stored, whatever it and its key have in them.
func (d *Driver) testTexts(t *testing.T) {
	server, _ := d.plain(t)
	s := d.open(t, server.Addr, remote.Config{})
	for _, key := range []string{"k", "k ey", "with blanks\r\nand lines", strings.Repeat("long", 100)} {
		if got, err := s.Text(t.Context(), key); got != nil || err != nil {
			t.Errorf("a text that is not there: %q, %v", got, err)
		}
		for _, text := range []string{"", "one", "two\r\nEND\r\n\x00", strings.Repeat("x", 100_000)} {
			if err := s.SetText(t.Context(), key, []byte(text), time.Minute); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Text(t.Context(), key); got == nil || string(got) != text || err != nil {
				t.Errorf("%.20q: %.20q, %v", text, got, err)
			}
		}
	}
}

// Of many callers of two stores exactly the limit passes, on one server and on several. Callers of one key share
// commands.
func (d *Driver) testExact(t *testing.T) {
	server, _ := d.plain(t)
	cluster, _ := d.Cluster(t)
	const calls = 4000
	for _, addrs := range [][]string{{server.Addr}, cluster} {
		for _, keys := range []int{1, 50} {
			for _, kind := range []algorithm.Kind{algorithm.FixedWindow, algorithm.SlidingWindowCounter} {
				limit := &algorithm.Limit{
					Kind: kind, Max: uint64(calls / 2 / keys), Period: time.Hour, CountBlocked: true,
				}
				cfg := remote.Config{Timeout: time.Minute}
				stores := []Store{d.openAll(t, addrs, cfg), d.openAll(t, addrs, cfg)}
				var passed atomic.Int64
				var all sync.WaitGroup
				for c := range 64 {
					all.Go(func() {
						for i := c; i < calls; i += 64 {
							key := fmt.Appendf(nil, "exact%d_%d_", i%keys, keys)
							v := send(t, stores[c%2], backend.Hit{Key: key, Limit: limit, Amount: 1})
							if v.Err != nil {
								t.Error(v.Err)
							} else if !v.Over {
								passed.Add(1)
							}
						}
					})
				}
				all.Wait()
				if n := passed.Load(); n != calls/2 {
					t.Errorf("%d servers, %d keys, %v: %d passed, want %d", len(addrs), keys, kind, n, calls/2)
				}
				if n := stores[0].Stats().Commands; keys == 1 && kind == algorithm.FixedWindow && n > calls/2/4 {
					t.Errorf("%d servers: %d commands for %d calls on one key", len(addrs), n, calls/2)
				}
			}
		}
	}
}
