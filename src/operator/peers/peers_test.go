package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/testbed/harness"
)

// replica is a replica with fixed figures: each does some requests per second of one rule.
type replica struct {
	figures  *operator.Figures
	server   *httptest.Server
	pages    atomic.Pointer[http.Handler]
	requests atomic.Int64
}

// newReplica returns a replica that started at a time. Its denials have IDs from that time on.
func newReplica(t *testing.T, started int, perSecond float64) *replica {
	rates := operator.PerSecond{Admitted: perSecond}
	at := time.Unix(int64(started), 0)
	ring := []operator.Denial{
		{ID: uint64(started), At: at, Subject: fmt.Sprint("first of ", started)},
		{ID: uint64(started) + 1, At: at.Add(time.Hour), Subject: fmt.Sprint("second of ", started)},
	}
	r := &replica{figures: &operator.Figures{
		State: func() operator.State { return operator.State{StartedAt: at, Ready: true} },
		Rates: func(operator.RatesQuery) operator.Rates {
			return operator.Rates{
				Total: rates, Requests: operator.RequestsPerSecond{Admitted: perSecond},
				Rules: []operator.RuleRates{{Domain: "d", Rule: "d.a", PerSecond: rates}},
			}
		},
		Top: func(q operator.TopQuery) []operator.Subject {
			return []operator.Subject{{Domain: "d", Rule: "d.a", Subject: q.Kind + q.Window, Hits: uint64(perSecond)}}
		},
		History: func(domain, _ string) (operator.History, bool) {
			return operator.History{
				Start: time.Now().Add(-10 * time.Second), StepSeconds: 10, Admitted: []float64{perSecond},
			}, domain == "" || domain == fmt.Sprint(started)
		},
		Denials: func(after uint64, limit int) []operator.Denial {
			return ring[min(len(ring), max(0, int(after)-started+1)):]
		},
		NextDenial: func(uint64) <-chan struct{} { return nil },
		Quotas:     func(operator.QuotaQuery) operator.Quotas { return operator.Quotas{} },
		Candidate:  func(int) (operator.Candidate, bool) { return operator.Candidate{}, false },
	}}
	r.serve(nil)
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.requests.Add(1)
		(*r.pages.Load()).ServeHTTP(w, req)
	}))
	t.Cleanup(r.server.Close)
	return r
}

// serve has the port of r answer with sums, unless they are nil.
func (r *replica) serve(sums *operator.SumFigures) {
	pages := admin.DebugPages{Figures: r.figures, SumFigures: sums}.Handler()
	r.pages.Store(&pages)
}

func (r *replica) address() string { return r.server.Listener.Addr().String() }

// plain is how to reach ports without TLS.
var plain = debugport.Config{
	DefaultPort: "6070", Token: func() string { return "t0ken" },
	TLS: func(bool, string) (*tls.Config, error) { return nil, nil },
}

// start returns the sums that a replica makes of addresses, which answer even if the machine is busy.
func start(t *testing.T, own *replica, addresses ...string) *operator.SumFigures {
	t.Helper()
	return startWithin(t, harness.Deadline, own, addresses...)
}

// startWithin is start with a timeout.
func startWithin(t *testing.T, timeout time.Duration, own *replica, addresses ...string) *operator.SumFigures {
	t.Helper()
	p, err := New(Config{Addresses: addresses, Port: plain, Own: own.figures, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	return p.Figures()
}

// serve starts a server that is no replica, and returns its address.
func serve(t *testing.T, handler http.HandlerFunc) string {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// table returns the replicas of a sum: "address requests error". names stand for addresses.
func table(s *operator.Sum, names map[string]string) (rows []string) {
	for _, r := range s.Replicas {
		row := fmt.Sprintf("%s %.0f %s", r.Address, r.Total.Total(), r.Error)
		for address, name := range names {
			row = strings.ReplaceAll(row, address, name)
		}
		rows = append(rows, strings.TrimSpace(row))
	}
	return rows
}

// A sum has this replica once, wherever it stands in the list, and says which replicas it lacks.
func TestSum(t *testing.T) {
	t.Parallel()
	a, b := newReplica(t, 100, 3), newReplica(t, 200, 1)
	names := map[string]string{a.address(): "A", b.address(): "B"}
	gone := httptest.NewServer(nil)
	gone.Close()
	dead := gone.Listener.Addr().String()
	names[dead] = "DEAD"
	const refused = "DEAD 0 DEAD: connection refused: start the service, or name its debug port (DEBUG_PORT)"
	for _, tt := range []struct {
		addresses []string
		want      []string
	}{
		{[]string{b.address()}, []string{"this replica 3", "B 1"}},
		{[]string{b.address(), a.address()}, []string{"A 3", "B 1"}},
		{[]string{a.address(), b.address(), a.address(), dead}, []string{"A 3", "B 1", refused}},
		{
			[]string{"localhost:" + strings.Split(b.address(), ":")[1], b.address()},
			[]string{"this replica 3", "localhost:PORT 1", "B 0 B: this is the replica at localhost:PORT"},
		},
		{
			[]string{"dns:///none.invalid:1", b.address()},
			[]string{"this replica 3", "B 1", "dns:///none.invalid:1 0 address dns:///none.invalid:1: lookup none.invalid"},
		},
	} {
		names["localhost:"+strings.Split(b.address(), ":")[1]] = "localhost:PORT"
		sums := start(t, a, tt.addresses...)
		s, err := sums.Sum(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := table(s, names)
		if last := len(got) - 1; strings.HasPrefix(got[last], "dns:") {
			got[last] = got[last][:min(len(got[last]), len(tt.want[last]))]
		}
		if !slices.Equal(got, tt.want) || s.Rates.Total.Admitted != 4 {
			t.Errorf("%q: got %q\nwant %q, %+v", tt.addresses, got, tt.want, s.Rates.Total)
		}
		top, err := sums.Top(t.Context(), operator.TopQuery{Kind: operator.TopHot, Window: operator.WindowHour, Limit: 5})
		if err != nil || len(top) != 1 || top[0].Subject != "hothour" || top[0].Hits != 4 ||
			len(top[0].Shares) != len(s.Replicas) || !slices.Equal(top[0].Shares, s.Rates.Rules[0].Shares) {
			t.Errorf("%q: subjects %+v, %v; shares of the rule %v", tt.addresses, top, err, s.Rates.Rules[0].Shares)
		}
		for domain, want := range map[string][]float64{"": {4}, "100": {3}, "200": {1}, "none": nil} {
			h, ok, err := sums.History(t.Context(), domain, "")
			if err != nil || ok != (want != nil) || !slices.Equal(h.Admitted, want) {
				t.Errorf("%q: history of %q: %+v, %t, %v", tt.addresses, domain, h, ok, err)
			}
		}
	}
}

// Denials of other replicas have numbers that continue in later sums, and are listed once, in the order of time.
func TestDenials(t *testing.T) {
	t.Parallel()
	a, b, c := newReplica(t, 100, 1), newReplica(t, 200, 1), newReplica(t, 300, 1)
	sums := start(t, a, c.address(), b.address(), a.address())
	first, err := sums.Sum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range first.Denials {
		got = append(got, map[string]string{b.address(): "B", c.address(): "C"}[d.Replica]+": "+d.Subject)
	}
	want := []string{"B: first of 200", "C: first of 300", "B: second of 200", "C: second of 300"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	harness.Await(t, harness.Deadline, "another sum", func() error {
		next, err := sums.Sum(t.Context())
		if err == nil && next == first {
			err = errors.New("it is the same one")
		}
		if err == nil && (next.FirstDenial != first.FirstDenial || len(next.Denials) != len(first.Denials)) {
			err = harness.Permanent{Err: fmt.Errorf("%d denials from %d", len(next.Denials), next.FirstDenial)}
		}
		return err
	})
}

// Many viewers cost the peers one question a second, and replicas that know each other ask no further.
func TestViewersShare(t *testing.T) {
	t.Parallel()
	a, b := newReplica(t, 100, 1), newReplica(t, 200, 1)
	sums := start(t, a, a.address(), b.address())
	a.serve(sums)
	b.serve(start(t, b, a.address(), b.address()))
	var viewers sync.WaitGroup
	for range 50 {
		viewers.Go(func() {
			if s, err := sums.Sum(t.Context()); err != nil || s.Rates.Total.Admitted != 2 {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
	viewers.Wait()
	const pathsOfASum = 5
	if a, b := a.requests.Load(), b.requests.Load(); a%pathsOfASum != 0 || a != b || a > 10*pathsOfASum {
		t.Errorf("50 viewers: %d requests to the replica itself, %d to the other", a, b)
	}
}

// What hostile or broken servers answer is bounded, named, and in no sum.
func TestHostilePeers(t *testing.T) {
	t.Parallel()
	own := newReplica(t, 100, 3)
	json := func(rates string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/api/state":
				_, _ = io.WriteString(w, `{"started_at":"2020-01-01T00:00:00Z"}`)
			case "/api/rates":
				_, _ = io.WriteString(w, rates)
			default:
				_, _ = io.WriteString(w, "[]")
			}
		}
	}
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write([]byte(`{"version":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa`)); err != nil {
					return
				}
			}
		}, "/api/state: the answer is too large"},
		"many objects": {json(`{"rules":[` + strings.Repeat("{},", maxObjects) + `{}]}`), "/api/rates: the answer is too large"},
		"too much":     {json(`{"total":{"admitted":1e308}}`), ": 1e+308 is no rate"},
		"negative":     {json(`{"rules":[{"domain":"d","rule":"r","denied":-1}]}`), ": -1 is no rate"},
		"other types":  {json(`{"total":7}`), " does not answer with the JSON of a rate limit service"},
		"HTML": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<script>\x1b[2J", http.StatusForbidden)
		}, `/api/state: status 403: "<script>\x1b[2J"`},
		"hangs": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, ": no answer within 1s"},
		"drips": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Millisecond) // a slow server
			}
		}, "the answer broke off: context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			address := serve(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				tt.handler(w, r)
			})
			sums := startWithin(t, 0, own, address)
			begin := time.Now()
			s, err := sums.Sum(t.Context())
			if err != nil || len(s.Replicas) != 2 || !strings.Contains(s.Replicas[1].Error, tt.want) ||
				!strings.HasPrefix(s.Replicas[1].Error, address) || s.Rates.Total.Admitted != 3 {
				t.Fatalf("%v, %+v", err, s)
			}
			n := asked.Load()
			if _, _, err := sums.History(t.Context(), "", ""); err != nil || asked.Load() != n {
				t.Errorf("the replica that did not answer was asked again at once: %v", err)
			}
			if took := time.Since(begin); took > 4*defaultTimeout {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// The token goes to the addresses of the list, and neither where a redirect leads nor to a proxy.
func TestToken(t *testing.T) {
	t.Parallel()
	own := newReplica(t, 100, 3)
	var elsewhere atomic.Int64
	other := serve(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	sent := make(chan string, 10)
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		sent <- r.Header.Get("Authorization")
		http.Redirect(w, r, "http://"+other+r.URL.Path, http.StatusTemporaryRedirect)
	})
	s, err := start(t, own, address).Sum(t.Context())
	if err != nil || !strings.Contains(s.Replicas[1].Error, "status 307") || strings.Contains(fmt.Sprint(s), "t0ken") {
		t.Errorf("%v, %+v", err, s)
	}
	if got := <-sent; got != "Bearer t0ken" || elsewhere.Load() != 0 {
		t.Errorf("sent %q, %d requests elsewhere", got, elsewhere.Load())
	}
	p, err := New(Config{Addresses: []string{"rl.example"}, Port: plain, Own: own.figures})
	if err != nil || !p.cfg.Port.IgnoreProxy {
		t.Errorf("a proxy may see the token: %v", err)
	}
}

func TestAddressesAreChecked(t *testing.T) {
	t.Parallel()
	own := newReplica(t, 100, 3)
	for addresses, want := range map[string]string{
		"http://me:secret@a:1":    "address of a:1: leave out the password",
		"a:1,a b":                 "address a b: write host:port",
		"dns:///a/b":              "address a/b: write only the host and the port",
		strings.Repeat("a,", 101): "102 addresses: name at most 100",
	} {
		_, err := New(Config{Addresses: strings.Split(addresses, ","), Port: plain, Own: own.figures})
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", addresses, err, want)
		}
	}
}

// A question waits a bounded time for those before it.
func TestPatience(t *testing.T) {
	t.Parallel()
	p, err := New(Config{Addresses: []string{"127.0.0.1:1"}, Port: plain, Own: newReplica(t, 1, 1).figures})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Figures().Sum(ctx); !errors.Is(err, context.Canceled) { // Run does not run.
		t.Errorf("%v", err)
	}
}

// A replica that did not answer is in the sums again when it does.
func TestPeerReturns(t *testing.T) {
	t.Parallel()
	a, b := newReplica(t, 100, 3), newReplica(t, 200, 1)
	pages := *b.pages.Load()
	gone := http.Handler(http.NotFoundHandler())
	b.pages.Store(&gone)
	sums := start(t, a, b.address())
	if s, err := sums.Sum(t.Context()); err != nil || !strings.Contains(s.Replicas[1].Error, "has no /api/state") {
		t.Fatalf("%+v, %v", s, err)
	}
	b.pages.Store(&pages)
	harness.Until(t, "the replica is in the sums", func() bool {
		s, err := sums.Sum(t.Context())
		return err == nil && s.Replicas[1].Error == "" && s.Rates.Total.Admitted == 4
	})
}

// A sum asks each peer for its own busiest rules, its first subjects and its new denials.
func TestWhatPeersAreAsked(t *testing.T) {
	t.Parallel()
	own, b := newReplica(t, 100, 3), newReplica(t, 200, 1)
	var mu sync.Mutex
	var asked []string
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.URL.RequestURI())
		mu.Unlock()
		(*b.pages.Load()).ServeHTTP(w, r)
	})
	sums := start(t, own, address)
	if s, err := sums.Sum(t.Context()); err != nil || len(s.Denials) != 2 {
		t.Fatalf("%+v, %v", s, err)
	}
	want := []string{
		"GET /api/state", "GET /api/rates?limit=1000", "GET /api/top?kind=hot&limit=100&window=minute",
		"GET /api/top?kind=denied&limit=100&window=minute", "GET /api/denials?after=0&limit=100",
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(asked, want) {
		t.Errorf("got %q\nwant %q", asked, want)
	}
}
