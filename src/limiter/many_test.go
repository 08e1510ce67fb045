package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// addRequest adds a copy of req to m, as a front end that decodes it into the item.
func addRequest(m *limiter.Many, req *limiter.Request) *limiter.Item {
	item := m.Add()
	descriptors := append(item.Request.Descriptors, req.Descriptors...)
	item.Request = *req
	item.Request.Descriptors = descriptors
	return item
}

// The requests of each step of TestCheck get the same answers in one batch.
func TestCheckMany(t *testing.T) {
	t.Parallel()
	for _, tt := range checks {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l, m := start(t, tt.cfg), limiter.Many{Now: epoch}
			for i := 0; i < len(tt.ask); i += 2 {
				addRequest(&m, parse(tt.ask[i]))
			}
			l.CheckMany(t.Context(), &m)
			for i, item := range m.Items() {
				if got, want := brief(&item.Answer), tt.ask[2*i+1]; got != want || item.Err != nil {
					t.Errorf("request %d, %s:\n got %s, %v\nwant %s", i+1, tt.ask[2*i], got, item.Err, want)
				}
			}
		})
	}
}

// One call of the store gets all hits, in groups that never cover two requests.
func TestManyIsOneCall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  limiter.Config
		ask  []string
		want string // the number of each hit's group.
	}{
		{"a group for each hit", limiter.Config{}, []string{"ip=1 ip=2", "ip=1", "nobody=1", "ip=3"}, "0 1 2 3"},
		{
			"all or nothing",
			limiter.Config{ChargeAllOrNothing: true},
			[]string{"ip=1 ip=2", "ip=1 ip=2", "nobody=1", "ip=3"},
			"0 0 1 1 2",
		},
		{"an invalid request", limiter.Config{ChargeAllOrNothing: true}, []string{"ip=1", "", "ip=2"}, "0 1"},
		{"nothing to count", limiter.Config{}, []string{"nobody=1", "staff=1"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			spy := watch(t)
			tt.cfg.Backend = spy
			l, m := start(t, tt.cfg), new(limiter.Many)
			for _, ask := range tt.ask {
				addRequest(m, parse(ask))
			}
			l.CheckMany(t.Context(), m)
			var groups []string
			for _, hit := range slices.Concat(spy.batches...) {
				groups = append(groups, fmt.Sprint(hit.GroupID))
			}
			if got := strings.Join(groups, " "); got != tt.want || len(spy.batches) > 1 {
				t.Errorf("%d calls, groups %s, want %s", len(spy.batches), got, tt.want)
			}
		})
	}
}

// lossy is a store that does not answer for some keys.
type lossy struct {
	backend.Backend
	lost string // in the key
}

func (l lossy) Take(ctx context.Context, b *backend.Batch) error {
	err := l.Backend.Take(ctx, b)
	for i := range b.Hits {
		if strings.Contains(string(b.Hits[i].Key), l.lost) {
			b.Verdicts[i] = backend.Verdict{Err: errors.New("lost")}
		}
	}
	return err
}

// misused is a store that reports misuse.
type misused struct{}

var errMisuse = errors.New("misused")

func (misused) Take(context.Context, *backend.Batch) error { return errMisuse }

func TestManyErrors(t *testing.T) {
	t.Parallel()
	store := limitertest.Store(t, memory.Config{})
	errDecode := errors.New("no request")
	badLimit := parse("ip=1 ip=2")
	badLimit.Descriptors[1].HasLimit = true
	for _, tt := range []struct {
		name string
		l    *limiter.Limiter
		want []error // the errors of the six items below, in order.
	}{
		{"a store that fails for some keys", start(t, limiter.Config{Backend: lossy{store, "lost"}}), []error{
			nil, limiter.ErrStoreFailed, nil, limiter.ErrInvalidRequest, limiter.ErrInvalidRequest, errDecode,
		}},
		{"misuse", start(t, limiter.Config{Backend: misused{}}), []error{
			errMisuse, errMisuse, nil, limiter.ErrInvalidRequest, limiter.ErrInvalidRequest, errDecode,
		}},
		{"no rules", limiter.New(limiter.Config{Backend: store}), []error{
			limiter.ErrNoRules, limiter.ErrNoRules, limiter.ErrNoRules, limiter.ErrInvalidRequest, limiter.ErrNoRules, errDecode,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := new(limiter.Many)
			for range 2 { // the second time with the memory of the first
				for _, req := range []*limiter.Request{parse("ip=1"), parse("ip=lost"), parse("nobody=lost"), parse(""), badLimit} {
					addRequest(m, req)
				}
				addRequest(m, parse("ip=1")).Err = errDecode
				tt.l.CheckMany(t.Context(), m)
				for i, item := range m.Items() {
					if !errors.Is(item.Err, tt.want[i]) {
						t.Errorf("item %d: %v, want %v", i, item.Err, tt.want[i])
					}
				}
				m.Reset(10)
			}
		})
	}
}

// After Reset a Many has neither requests nor large memory.
func TestManyReset(t *testing.T) {
	t.Parallel()
	l, m := start(t, limiter.Config{}), &limiter.Many{Now: epoch}
	addRequest(m, parse("ip=1"))
	addRequest(m, parse(strings.Repeat("ip=2 ", 100)))
	addRequest(m, parse(strings.Repeat("ip=2 ", 100))).Err = errors.New("no request")
	l.CheckMany(t.Context(), m)
	m.Reset(10)
	if len(m.Items()) != 0 || !m.Now.IsZero() {
		t.Errorf("%d items at %v are left", len(m.Items()), m.Now)
	}
	for i, small := range []bool{true, false, false} {
		item := m.Add()
		a, kept := &item.Answer, item.Request.Descriptors
		if len(kept)+len(a.Statuses)+len(a.Charges)+len(item.Request.Domain) > 0 || item.Err != nil || a.RuleSet != nil ||
			a.Domain != nil {
			t.Errorf("item %d: %+v", i, item)
		}
		if (cap(kept) > 0) != small || (cap(a.Charges) > 0) != small {
			t.Errorf("item %d has room for %d descriptors and %d charges", i, cap(kept), cap(a.Charges))
		}
		if small && kept[:1][0].Entries != nil {
			t.Error("a descriptor is still there")
		}
	}
}

// describe returns everything that an answer says.
func describe(a *limiter.Answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "over %t after %v, %v, shadowed %t, domain %p, rules %p, %d charges\n",
		a.Over, a.RetryAfter, a.Fallback, a.Shadowed, a.Domain, a.RuleSet, len(a.Charges))
	for i := range a.Statuses {
		st, binding := &a.Statuses[i], -1
		for j := range st.Charges {
			c := &st.Charges[j]
			if c == st.BindingCharge {
				binding = j
			}
			fmt.Fprintf(&b, "  charge of %p %+v %+v %q %d over %t canary %t %+v\n",
				c.Rule, c.Limit, *c.Algorithm, c.CounterKey, c.RequestedAmount, c.Over, c.IsCanary, c.Verdict)
		}
		fmt.Fprintf(&b, " over %t of %p quota %t %d %v binding %d retry %v reset %v failed %t %v\n",
			st.Over, st.Match, st.InQuotaMode, st.Amount, st.Op, binding, st.RetryAfter, st.ResetAfter, st.StoreFailed,
			st.Fallback)
	}
	return b.String()
}

// transcript is a Recorder that keeps everything.
type transcript struct{ decisions []string }

func (r *transcript) Record(req *limiter.Request, a *limiter.Answer) {
	r.decisions = append(r.decisions, fmt.Sprintf("%s %v %s", req.Domain, req.Now, describe(a)))
}

// manyRules has four domains: a tree of descriptors, charges of several limits, an ordered list, and other algorithms.
func manyRules(tb testing.TB) *rules.Set {
	tb.Helper()
	named := func(name, text string) filerules.File {
		return filerules.File{
			Name: name + ".yaml",
			Data: []byte(strings.Replace(text, "domain: d\n", "domain: "+name+"\n", 1)),
		}
	}
	const algorithms = `domain: d
descriptors:
  - {key: gcra, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: gcra, burst: 2}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_window}}
  - {key: estimate, rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_window_counter}}
`
	set := limitertest.Load(tb, []filerules.File{
		named("d", testRules), named("charges", chargeRules), named("list", orderedRules), named("algorithms", algorithms),
	})
	return set
}

// questions has descriptors for each domain of manyRules, in the form of parse.
var questions = map[string][]string{
	"d": {
		"ip=1", "ip=2", "ip=lost", "ip=10.0.0.7", "path=/pay", "path=/pay,user=x", "staff=a", "trial=a", "gold=a", "silver=a",
		"file=/f/1", "file=/f/2", "premium=x", "nobody=x", "ip=1:0", "ip=2:2", "ip=1-", "ip=2:2-", "silver=a-", "gold=a:0",
	},
	"charges": {
		"login=a", "login=a:2", "login=lost", "all=a", "all=a:2", "all=a-", "all=b:0", "trial=a", "user=a",
		"user=a,action=trade",
		"user=a,action=look", "user=a,action=free", "premium=x", "user=a-",
	},
	"list": {
		"m=GET,ip=1", "ip=1,x=y,m=GET", "m=GET,ip=2", "staff=1", "both=1", "both=lost", "both=1-", "trial=1",
		"banned=yes", "premium=x", "five=1",
	},
	"algorithms": {
		"gcra=a", "gcra=a:2", "gcra=a-", "log=a", "log=a:2", "log=a:0", "log=a-", "estimate=a", "estimate=a:2",
		"estimate=lost",
	},
	"unknown": {"ip=1", "x=y"},
	"":        {"ip=1"},
}

// randomRequest returns a request that is invalid now and then.
func randomRequest(r *rand.Rand) *limiter.Request {
	domains := []string{"d", "d", "d", "charges", "charges", "list", "list", "algorithms", "algorithms", "unknown", ""}
	domain := domains[r.IntN(len(domains))]
	var ask []string
	for range r.IntN(6) {
		ask = append(ask, questions[domain][r.IntN(len(questions[domain]))])
	}
	req := parse(strings.Join(ask, " "))
	req.Domain, req.DefaultAmount = []byte(domain), uint64(r.IntN(3))
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		d.HasLimit = r.IntN(10) == 0
		d.Limit = rules.Rate{Requests: uint64(r.IntN(4)), Unit: rules.UnitMinute, UnitMultiplier: uint32(min(r.IntN(6), 1))}
	}
	return req
}

// Random batches get the answers and errors of CheckMany that Check gives one request after the other.
func TestManyEqualsCheck(t *testing.T) {
	t.Parallel()
	set := manyRules(t)
	for i, cfg := range []limiter.Config{
		{},
		{ChargeAllOrNothing: true},
		{QuotaMode: true},
		{ShadowMode: true},
		{EscapeKeys: true, MaxDescriptors: 4},
		{ChargeAllOrNothing: true, QuotaMode: true, KeyPrefix: "p"},
	} {
		for _, lost := range []string{"no key", "lost"} {
			t.Run(fmt.Sprintf("%d, lost: %s", i, lost), func(t *testing.T) {
				t.Parallel()
				r, now, cfg := rand.New(rand.NewPCG(20, uint64(i))), epoch, cfg
				var limiters [2]*limiter.Limiter
				var records [2]transcript
				for k := range limiters {
					store := limitertest.Store(t, memory.Config{})
					cfg.Backend, cfg.Recorders = lossy{store, lost}, []limiter.Recorder{&records[k]}
					limiters[k] = limiter.New(cfg)
					limiters[k].UseRules(set)
				}
				m := new(limiter.Many)
				for range 50 {
					compareBatch(t, r, limiters, m, now)
					m.Reset(r.IntN(20))
					now = now.Add(time.Duration(r.IntN(20_000)) * time.Millisecond)
				}
				if !slices.Equal(records[0].decisions, records[1].decisions) || len(records[0].decisions) == 0 {
					t.Errorf("%d and %d decisions were recorded, or they differ", len(records[0].decisions), len(records[1].decisions))
				}
			})
		}
	}
}

// compareBatch decides random requests with CheckMany of limiters[0] and Check of limiters[1].
func compareBatch(t *testing.T, r *rand.Rand, limiters [2]*limiter.Limiter, m *limiter.Many, now time.Time) {
	t.Helper()
	m.Now = now
	for range r.IntN(40) {
		addRequest(m, randomRequest(r))
	}
	limiters[0].CheckMany(t.Context(), m)
	for i, item := range m.Items() {
		req, a := item.Request, limiter.Answer{}
		err := limiters[1].Check(t.Context(), &req, &a)
		if fmt.Sprint(err) != fmt.Sprint(item.Err) {
			t.Fatalf("request %d, %s: error %v, want %v", i, req.Domain, item.Err, err)
		}
		if errors.Is(err, limiter.ErrInvalidRequest) {
			continue
		}
		if got, want := describe(&item.Answer), describe(&a); got != want {
			t.Fatalf("request %d, %s:\n got %s\nwant %s", i, req.Domain, got, want)
		}
	}
}
