package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/quota"
)

// fakeFigures are the content of operator.Figures, which a test sets.
type fakeFigures struct {
	mu    sync.Mutex // guards the fields below.
	state operator.State
	rates operator.Rates
	hour  *operator.History // nil: a history of two values
	// by the kind of the query; a kind without an entry has a subject that shows the query
	top     map[string][]operator.Subject
	denials []operator.Denial
	// candidate is nil if there is no directory for candidate rules.
	candidate *operator.Candidate
	quotas    operator.Quotas
	added     chan struct{} // closed when a denial is added.
}

func newFakeFigures() *fakeFigures {
	return &fakeFigures{added: make(chan struct{})}
}

// set changes the content.
func (f *fakeFigures) set(change func(*operator.State, *operator.Rates)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.state, &f.rates)
}

func (f *fakeFigures) State() operator.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *fakeFigures) Rates(q operator.RatesQuery) operator.Rates {
	f.mu.Lock()
	r := f.rates
	f.mu.Unlock()
	r.Rules = slices.DeleteFunc(slices.Clone(r.Rules), func(r operator.RuleRates) bool {
		return !strings.Contains(strings.ToLower(r.Domain+" "+r.Rule), strings.ToLower(q.Search))
	})
	r.MatchingRules = len(r.Rules)
	if q.Order == operator.OrderTree {
		slices.SortStableFunc(r.Rules, func(a, b operator.RuleRates) int { return strings.Compare(a.Rule, b.Rule) })
	}
	r.Rules = r.Rules[min(q.Offset, len(r.Rules)):]
	r.Rules = r.Rules[:min(q.Limit, len(r.Rules))]
	return r
}

func (f *fakeFigures) History(domain, rule string) (operator.History, bool) {
	h := operator.History{Start: f.State().Now, StepSeconds: 10, Admitted: []float64{1, 2.5}}
	if f.hour != nil {
		h = *f.hour
	}
	return h, domain == "" || domain == "d" && (rule == "" || rule == "ip")
}

// Top returns one subject that shows the query.
func (f *fakeFigures) Top(q operator.TopQuery) []operator.Subject {
	if q.Domain == "none" {
		return nil
	}
	if list := f.top[q.Kind]; list != nil {
		return list
	}
	return []operator.Subject{{
		Domain: q.Domain, Rule: q.Rule, Subject: fmt.Sprintf("%s of a %s", q.Kind, q.Window),
		Hits: uint64(q.Limit), PerSecond: 0.5,
	}}
}

func (f *fakeFigures) Denials(after uint64, limit int) []operator.Denial {
	f.mu.Lock()
	defer f.mu.Unlock()
	newer := f.denials[min(after, uint64(len(f.denials))):]
	return slices.Clone(newer[max(0, len(newer)-limit):])
}

func (f *fakeFigures) Candidate(limit int) (c operator.Candidate, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.candidate == nil {
		return c, false
	}
	c = *f.candidate
	c.DifferingRules = c.DifferingRules[:min(limit, len(c.DifferingRules))]
	return c, true
}

func (f *fakeFigures) Quotas(q operator.QuotaQuery) operator.Quotas {
	f.mu.Lock()
	quotas := f.quotas
	f.mu.Unlock()
	quotas.Buckets = slices.DeleteFunc(slices.Clone(quotas.Buckets), func(b quota.BucketState) bool {
		return q.Domain != "" && b.Domain != q.Domain || q.Bucket != nil && b.Bucket != callertext.Descriptor(q.Bucket)
	})
	quotas.MatchingBuckets = len(quotas.Buckets)
	quotas.Buckets = quotas.Buckets[:min(q.Buckets, len(quotas.Buckets))]
	for i := range quotas.Buckets {
		b := &quotas.Buckets[i]
		b.Proxies = b.Proxies[:min(q.Proxies, len(b.Proxies))]
	}
	return quotas
}

func (f *fakeFigures) NextDenial(after uint64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if uint64(len(f.denials)) <= after {
		return f.added
	}
	ready := make(chan struct{})
	close(ready)
	return ready
}

// deny adds a denial and sets its ID.
func (f *fakeFigures) deny(d operator.Denial) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d.ID = uint64(len(f.denials)) + 1
	f.denials = append(f.denials, d)
	close(f.added)
	f.added = make(chan struct{})
}

// source returns Figures with this content.
func (f *fakeFigures) source() *operator.Figures {
	return &operator.Figures{
		State: f.State, Rates: f.Rates, History: f.History, Top: f.Top, Denials: f.Denials, NextDenial: f.NextDenial,
		Quotas: f.Quotas, Candidate: f.Candidate,
		RatesAmong: func(sum operator.Rates, _ operator.RatesQuery) operator.Rates {
			sum.MatchingRules = len(sum.Rules)
			return sum
		},
	}
}

// pagesWith returns the handler of a debug port with these figures.
func pagesWith(f *operator.Figures) http.Handler {
	return DebugPages{
		SortedFigures: func(func(string, int64) bool) {},
		Components:    func() []operator.Component { return nil }, Figures: f,
	}.Handler()
}

func TestAPI(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	f := newFakeFigures()
	f.state = operator.State{
		Version: "1.2.3", Commit: "abc", Now: at, StartedAt: at.Add(-time.Hour), Ready: true,
		Store: "memory", Replicas: 2,
	}
	f.rates = operator.Rates{
		Total:    operator.PerSecond{Admitted: 10, Denied: 1, Near: 2, Shadow: 3, Fallback: 4, Failed: 5},
		Requests: operator.RequestsPerSecond{Admitted: 8, Denied: 1, Fallback: 2, Failed: 3},
		Domains:  []operator.DomainRates{{Domain: "d", PerSecond: operator.PerSecond{Admitted: 10}}},
		Rules: []operator.RuleRates{
			{
				Domain: "d", Rule: "ip", Limit: "10 per minute",
				PerSecond: operator.PerSecond{Denied: 1},
			},
			{Domain: "d", Rule: "user", Limit: "1 per day", PerSecond: operator.PerSecond{}},
		},
	}
	f.deny(operator.Denial{
		At: at, Protocol: "grpc", Domain: "d", Rule: "ip", Subject: "ip=1.2.3.4",
		Counter: "d_ip_1.2.3.4_0", RetryAfterSeconds: 1.5, Skipped: 7,
	})
	f.deny(operator.Denial{
		At: at, Protocol: "json", Domain: "d", Rule: "user", Subject: "user=<b>",
		RetryAfterSeconds: operator.NeverRetry,
	})
	const (
		state = `{"version":"1.2.3","commit":"abc","now":"2026-11-23T12:00:00Z","started_at":"2026-11-23T11:00:00Z","ready":true,"components":[],"store":"memory",` +
			`"rules":{"hash":"","domains":0,"rules":0,"files":0,"problems":[]},"replicas":2,"unmatched":[]}`
		totals  = `{"total":{"admitted":10,"denied":1,"near":2,"shadow":3,"fallback":4,"failed":5,"unmatched":0},"requests":{"admitted":8,"denied":1,"fallback":2,"failed":3},"domains":[{"domain":"d","admitted":10,"denied":0,"near":0,"shadow":0,"fallback":0,"failed":0,"unmatched":0}],`
		ip      = `{"domain":"d","rule":"ip","limit":"10 per minute","admitted":0,"denied":1,"near":0,"shadow":0,"fallback":0,"failed":0,"unmatched":0}`
		user    = `{"domain":"d","rule":"user","limit":"1 per day","admitted":0,"denied":0,"near":0,"shadow":0,"fallback":0,"failed":0,"unmatched":0}`
		history = `{"start":"2026-11-23T12:00:00Z","step_seconds":10,"admitted":[1,2.5],"denied":[],"near":[],"shadow":[],"fallback":[],"failed":[],"unmatched":[]}`
		first   = `{"id":1,"at":"2026-11-23T12:00:00Z","protocol":"grpc","domain":"d","rule":"ip","subject":"ip=1.2.3.4","counter":"d_ip_1.2.3.4_0","retry_after_seconds":1.5,"skipped":7}`
		second  = `{"id":2,"at":"2026-11-23T12:00:00Z","protocol":"json","domain":"d","rule":"user","subject":"user=\u003cb\u003e","counter":"","retry_after_seconds":-1,"skipped":0}`
	)
	for _, tt := range []struct {
		path string
		code int
		want string
	}{
		{"/api/state", 200, state},
		{"/api/state?x=1", 400, `unknown parameter "x"; this page takes none`},
		{"/api/rates", 200, totals + `"rules":[` + ip + `,` + user + `],"matching_rules":2,"unmatched":[]}`},
		{"/api/rates?search=USER", 200, totals + `"rules":[` + user + `],"matching_rules":1,"unmatched":[]}`},
		{"/api/rates?limit=1", 200, totals + `"rules":[` + ip + `],"matching_rules":2,"unmatched":[]}`},
		{"/api/rates?offset=1&limit=1000", 200, totals + `"rules":[` + user + `],"matching_rules":2,"unmatched":[]}`},
		{"/api/rates?offset=9", 200, totals + `"rules":[],"matching_rules":2,"unmatched":[]}`},
		{"/api/rates?order=tree&limit=1", 200, totals + `"rules":[` + ip + `],"matching_rules":2,"unmatched":[]}`},
		{"/api/rates?order=name", 400, `order="name" is not allowed; it is busiest or tree`},
		{"/api/rates?limit=0", 400, `limit="0" is not allowed; it is a whole number from 1 to 1000`},
		{"/api/rates?limit=1001", 400, `limit="1001" is not allowed; it is a whole number from 1 to 1000`},
		{"/api/rates?offset=-1", 400, `offset="-1" is not allowed; it is a whole number from 0 to 2147483647`},
		{"/api/rates?limit=1&limit=2", 400, `parameter limit is given 2 times; give it once`},
		{"/api/rates?serach=x", 400, `unknown parameter "serach"; this page takes search, order, offset, limit, replicas`},
		{"/api/rates?search=%zz", 400, `the query "search=%zz" is not valid: invalid URL escape "%zz"`},
		{"/api/history", 200, history},
		{"/api/history?domain=d", 200, history},
		{"/api/history?domain=d&rule=ip", 200, history},
		{"/api/history?domain=e", 404, `there is no history of domain "e", rule ""; /api/rates lists domains and rules`},
		{"/api/history?rule=ip", 400, `rule "ip" without its domain: add domain=`},
		{"/api/top", 200, `[{"domain":"","rule":"","subject":"hot of a minute","per_second":0.5,"hits":20}]`},
		{
			"/api/top?kind=denied&window=hour&domain=d&rule=ip&limit=3", 200,
			`[{"domain":"d","rule":"ip","subject":"denied of a hour","per_second":0.5,"hits":3}]`,
		},
		{"/api/top?domain=none", 200, `[]`},
		{"/api/top?kind=cold", 400, `kind="cold" is not allowed; it is hot or denied`},
		{"/api/top?window=week", 400, `window="week" is not allowed; it is minute, hour or day`},
		{"/api/top?rule=ip", 400, `rule "ip" without its domain: add domain=`},
		{"/api/denials", 200, `[` + first + `,` + second + `]`},
		{"/api/denials?limit=1", 200, `[` + second + `]`},
		{"/api/denials?after=1", 200, `[` + second + `]`},
		{"/api/denials?after=2", 200, `[]`},
		{"/api/denials?after=18446744073709551615", 200, `[]`},
		{"/api/denials?after=-1", 400, `after="-1" is not allowed; it is the id of a denial, or 0`},
		{"/api/", 404, "there is no such page; see / for the list"},
		{"/api/state/", 404, "there is no such page; see / for the list"},
	} {
		w := get(pagesWith(f.source()), tt.path)
		if got := strings.TrimSpace(w.Body.String()); w.Code != tt.code || got != tt.want {
			t.Errorf("%s: got %d\n%s\nwant %d\n%s", tt.path, w.Code, got, tt.code, tt.want)
		}
		if strings.HasPrefix(tt.path, "/api/rates") && w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: a cache may keep the answer: %v", tt.path, w.Header())
		}
	}
}

// A debug port without figures has no pages under /api, and a list without them.
func TestNoFigures(t *testing.T) {
	t.Parallel()
	h := pagesWith(nil)
	if w := get(h, "/api/state"); w.Code != 404 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if w := get(h, "/"); strings.Contains(w.Body.String(), "/api/") {
		t.Errorf("the list has pages that are not there:\n%s", w.Body)
	}
}
