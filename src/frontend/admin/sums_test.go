package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/operator"
	"ratelimit/testbed/browser"
)

// fakeSum are sums that a test sets.
type fakeSum struct {
	mu  sync.Mutex // guards the fields below.
	sum *operator.Sum
	err error
}

func (f *fakeSum) set(sum *operator.Sum, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sum, f.err = sum, err
}

func (f *fakeSum) source() *operator.SumFigures {
	get := func() (*operator.Sum, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.sum, f.err
	}
	return &operator.SumFigures{
		Sum: func(context.Context) (*operator.Sum, error) { return get() },
		Top: func(_ context.Context, q operator.TopQuery) ([]operator.Subject, error) {
			_, err := get()
			return []operator.Subject{{Subject: "sum of a " + q.Window, Shares: []float64{1, 0}}}, err
		},
		History: func(_ context.Context, domain, _ string) (operator.History, bool, error) {
			_, err := get()
			return operator.History{StepSeconds: 10, Admitted: []float64{9}}, domain != "none", err
		},
	}
}

// exampleSum returns the sum of this replica, one that is dead, and another with an outage.
func exampleSum(other string) *operator.Sum {
	state := operator.State{StartedAt: time.Now(), Ready: true, Store: "redis"}
	state.Rules.Hash = "0123456789ab"
	outage := state
	outage.Outages = []operator.Outage{{Store: "Redis", SilentServers: 1, Servers: 1}}
	outage.OnStoreFailure, outage.Rules.Hash = []string{"error"}, "ffffffffffff"
	return &operator.Sum{
		Rates: operator.Rates{
			Total: operator.PerSecond{Admitted: 30, Failed: 10}, Requests: operator.RequestsPerSecond{Admitted: 30, Failed: 10},
			Domains: []operator.DomainRates{{Domain: "d", PerSecond: operator.PerSecond{Admitted: 30, Failed: 10}}},
			Rules: []operator.RuleRates{{
				Domain: "d", Rule: "d.ip", Limit: "1 per day", PerSecond: operator.PerSecond{Admitted: 30, Failed: 10},
				Shares: []float64{0.748, 0, 0.252},
			}},
			Unmatched: []operator.Unmatched{{Domain: "x", Why: "no rules have the domain", Descriptors: 7}},
		},
		Hot: []operator.Subject{{Domain: "d", Rule: "d.ip", Subject: "ip=1", Hits: 5, Shares: []float64{0.997, 0, 0.003}}},
		Replicas: []operator.Replica{
			{
				Address: "10.0.0.1:6070", IsThis: true, Share: 0.75, Requests: operator.RequestsPerSecond{Admitted: 30},
				State: &state,
			},
			{Address: "10.0.0.2:6070", Error: "10.0.0.2:6070: connection refused"},
			{Address: "twin:1", Error: "twin:1: this is the replica at 10.0.0.1:6070", SameAs: "10.0.0.1:6070"},
			{Address: other, Share: 0.25, Requests: operator.RequestsPerSecond{Failed: 10}, State: &outage},
		},
		Denials: []operator.Denial{
			{ID: 5, Subject: "old", Replica: other}, {ID: 6, Subject: "of another", Replica: other},
		},
		FirstDenial: 40,
	}
}

// The figures are sums if the query asks for those of all replicas; without peers they are those of this one.
func TestSumsOfAPI(t *testing.T) {
	t.Parallel()
	f, sum := newFakeFigures(), new(fakeSum)
	f.rates = operator.Rates{Total: operator.PerSecond{Admitted: 1}}
	with := DebugPages{Figures: f.source(), SumFigures: sum.source()}.Handler()
	alone := DebugPages{Figures: f.source()}.Handler()
	busy := errors.New("busy")
	for _, tt := range []struct {
		handler http.Handler
		path    string
		err     error
		status  int
		want    string // is in the body
	}{
		{with, "/api/rates?replicas=all", nil, 200, `"shares":[0.748,0,0.252]`},
		{with, "/api/rates?replicas=this", nil, 200, `"admitted":1,`},
		{with, "/api/rates", nil, 200, `"admitted":1,`},
		{alone, "/api/rates?replicas=all", nil, 200, `"admitted":1,`},
		{with, "/api/rates?replicas=two", nil, 400, `replicas="two" is not allowed; it is this or all`},
		{with, "/api/rates?replicas=all", busy, 503, "busy"},
		{with, "/api/top?replicas=all&window=hour", nil, 200, `"subject":"sum of a hour"`},
		{with, "/api/top?window=hour", nil, 200, `"subject":"hot of a hour"`},
		{with, "/api/top?replicas=all", busy, 503, "busy"},
		{with, "/api/history?replicas=all", nil, 200, `"admitted":[9],"denied":[]`},
		{with, "/api/history", nil, 200, `"admitted":[1,2.5]`},
		{with, "/api/history?replicas=all&domain=none", nil, 404, "there is no history"},
		{with, "/api/history?replicas=all", busy, 503, "busy"},
		{with, "/api/events?replicas=two", nil, 400, `replicas="two" is not allowed`},
		{with, "/api/events?domain=shop", nil, 400, `unknown parameter "domain"`},
		{with, "/api/state?replicas=all", nil, 400, "this page takes none"},
	} {
		sum.set(exampleSum("b"), tt.err)
		w := httptest.NewRecorder()
		tt.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, tt.path, nil))
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s: %d %s\nwant %d %s", tt.path, w.Code, w.Body, tt.status, tt.want)
		}
	}
}

// The events of all replicas have each denial once, and end if there is no sum.
func TestEventsOfSums(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, sum := newFakeFigures(), new(fakeSum)
		f.deny(operator.Denial{Subject: "own"})
		sum.set(exampleSum("b"), nil)
		w := newStreamRecorder()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			DebugPages{Figures: f.source(), SumFigures: sum.source()}.Handler().ServeHTTP(w,
				httptest.NewRequest(http.MethodGet, "/api/events?replicas=all", nil).WithContext(t.Context()))
		}()
		next := func() (u Update, denials []string) {
			for text := range strings.SplitSeq(strings.TrimSuffix(<-w.writes, "\n\n"), "\n\n") {
				name, data, _ := strings.Cut(strings.TrimPrefix(text, "event: "), "\ndata: ")
				var d operator.Denial
				into := map[string]any{"update": &u, "denial": &d}[name]
				if err := json.Unmarshal([]byte(data), into); err != nil {
					t.Fatalf("%q: %v", text, err)
				}
				if name == "denial" {
					denials = append(denials, d.Subject+" "+d.Replica)
				}
			}
			return u, denials
		}
		u, denials := next()
		if !u.HasPeers || len(u.Replicas) != 4 || u.Rates.Total.Admitted != 30 || u.State.Unmatched[0].Descriptors != 7 ||
			len(u.Rates.Unmatched) != 0 || u.Top.Hot[0].Hits != 5 ||
			!slices.Equal(denials, []string{"own ", "old b", "of another b"}) {
			t.Errorf("%+v, %q", u, denials)
		}
		later := exampleSum("b")
		later.Denials, later.FirstDenial = append(later.Denials[1:], operator.Denial{Subject: "new", Replica: "c"}), 41
		sum.set(later, nil)
		if _, denials := next(); !slices.Equal(denials, []string{"new c"}) {
			t.Errorf("later: %q", denials)
		}
		sum.set(nil, errors.New("busy"))
		<-ended
	})
}

// The page names what is wrong with which replica, whatever their addresses are, and can show one replica alone.
func testPageOfReplicas(t *testing.T, chromium *browser.Browser) {
	sum := new(fakeSum)
	const other = `<img src=x onerror=alert(1)>`
	sum.set(exampleSum(other), nil)
	port := newOperatorPortWith(t, "", sum.source())
	p := chromium.Open(t, port.url(), 1280)
	p.Await(fmt.Sprintf(rowsOf, "replicas") + " === 4")
	p.Await("document.getElementById('ready').textContent === '" + other + ": redis does not answer'")
	for id, want := range map[string]string{
		"replicas-sum": "All figures are the sums of 2 of 3 replicas, without the one that does not answer.",
		"problems": "10.0.0.2:6070 is not in the sums: connection refused " + other + ": Redis has not answered since this " +
			"process started; 100 % of requests get an error (on_store_failure: error) The replicas have different rules, as " +
			"they do during a change. The table of replicas shows which.",
		"replicas-table": "What each replica does. Shares in rules and subjects are in this order, in per cent. Replica Requests/s " +
			"Denied/s Failed/s Share % Rules State 1. 10.0.0.1:6070 this replica 30 0 0 75 01234567 ready " +
			"2. 10.0.0.2:6070 – – – – – not in the sums: connection refused " +
			"3. twin:1 – – – – – not in the sums: this is the replica at 10.0.0.1:6070 4. " + other + " 10 0 10 25 ffffffff " +
			"ready; Redis does not answer",
		"state-title": "State of this replica",
	} {
		if got := p.Text("document.getElementById('" + id + "').innerText.replaceAll(/\\s+/g, ' ').trim()"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", id, got, want)
		}
	}
	p.Await("[...document.querySelectorAll('#rules-table td.shares')].some((e) => e.textContent === '75/0/25')")
	p.Await("document.querySelector('#hot-table .below')?.textContent === 'd: ip, shares 100/0/<1 %'")
	p.Await("document.querySelector('#denials-table .below')?.textContent.includes(', by " + other + ", ')")
	checkContrast(t, p)
	p.PreferDark(true)
	checkContrast(t, p)
	if got := p.Text("document.querySelectorAll('main img').length"); got != "0" {
		t.Errorf("%s elements come from an address", got)
	}
	many := exampleSum(other)
	many.Rates.Rules[0].Shares = []float64{0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.4}
	sum.set(many, nil)
	p.Await("[...document.querySelectorAll('#rules-table td.shares')].some((e) => e.textContent === '#7 has 40')")
	p.Do("document.querySelector('input[name=replicas]:checked').focus()")
	p.Press(arrowRight)
	p.Await("document.getElementById('replicas-sum').textContent === 'The figures are those of this replica alone.'")
	p.Await("document.querySelector('#series .value').textContent === '1,235/s'")
	p.Await("!document.querySelector('#rules-table').classList.contains('sums')")
	p.Do("location.reload()")
	p.Await("document.getElementById('connection')?.textContent === 'Live' && " +
		"document.querySelector('input[name=replicas][value=this]').checked")
	if problems := p.Problems("net::ERR_"); problems != nil {
		t.Errorf("%q", problems)
	}
}

// arrowRight is the key that chooses the next of several radio buttons.
const arrowRight = "\u0303"
