package replicas

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"ratelimit/src/operator"
)

func TestRates(t *testing.T) {
	t.Parallel()
	rule := func(name, limit string, admitted, denied float64, holds *operator.Holds) operator.RuleRates {
		return operator.RuleRates{
			Domain: "d", Rule: name, Limit: limit, Holds: holds,
			PerSecond: operator.PerSecond{Admitted: admitted, Denied: denied, Near: 1},
		}
	}
	domain := func(name string, admitted float64) operator.DomainRates {
		return operator.DomainRates{Domain: name, PerSecond: operator.PerSecond{Admitted: admitted}}
	}
	unmatched := func(domain, keys string, n uint64, first, last int64) operator.Unmatched {
		return operator.Unmatched{
			Domain: domain, Keys: keys, IsUnknownDomain: keys == "", Descriptors: n,
			FirstAt: time.Unix(first, 0), LastAt: time.Unix(last, 0),
		}
	}
	leased := func(misses float64, counters int) operator.RuleRates {
		r := rule("d.c", "9 per day", 2*misses, 0, nil)
		r.LeaseMisses, r.Leases = misses, &operator.Leases{Counters: counters, Contended: 1, Held: 5}
		return r
	}
	got := Rates([]operator.Rates{
		{
			Total: operator.PerSecond{Admitted: 8, Denied: 1, Failed: 3, Unmatched: 2}, MatchingRules: 9,
			Requests:  operator.RequestsPerSecond{Admitted: 4, Failed: 2},
			Unmatched: []operator.Unmatched{unmatched("d", "b", 2, 1, 5), unmatched("d", "c", 1, 1, 1)},
			Domains:   []operator.DomainRates{domain("d", 8), domain("e", 0)},
			Rules: []operator.RuleRates{
				rule("d.a", "5 per second", 3, 0, &operator.Holds{Open: 1, Charged: 2}), leased(1, 2),
			},
		},
		{}, // It did not answer.
		{
			Total: operator.PerSecond{Admitted: 2, Denied: 4, Unmatched: 3}, MatchingRules: 2,
			Requests:  operator.RequestsPerSecond{Admitted: 1, Denied: 4, Fallback: 3},
			Unmatched: []operator.Unmatched{unmatched("z", "", 7, 1, 1), unmatched("d", "b", 3, 0, 6)},
			Domains:   []operator.DomainRates{domain("d", 2)},
			Rules: []operator.RuleRates{
				rule("d.b", "1 per day", 0, 0, nil),
				rule("d.a", "6 per second", 1, 0, &operator.Holds{Open: 2, Expired: 1}),
				leased(3, 4),
			},
		},
	})
	a := rule("d.a", "5 per second or 6 per second", 4, 0, &operator.Holds{Open: 3, Expired: 1, Charged: 2})
	a.Near, a.Shares = 2, []float64{0.75, 0, 0.25}
	b := rule("d.b", "1 per day", 0, 0, nil)
	b.Shares = []float64{0, 0, 0}
	c := leased(4, 6)
	c.Near, c.Shares, c.Leases.Contended, c.Leases.Held = 2, []float64{0.25, 0, 0.75}, 2, 10
	want := operator.Rates{
		Total: operator.PerSecond{Admitted: 10, Denied: 5, Failed: 3, Unmatched: 5}, MatchingRules: 9,
		Requests: operator.RequestsPerSecond{Admitted: 5, Denied: 4, Fallback: 3, Failed: 2},
		Unmatched: []operator.Unmatched{
			unmatched("z", "", 7, 1, 1), unmatched("d", "b", 5, 0, 6), unmatched("d", "c", 1, 1, 1),
		},
		Domains: []operator.DomainRates{domain("d", 10), domain("e", 0)}, Rules: []operator.RuleRates{a, c, b},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

func TestSubjects(t *testing.T) {
	t.Parallel()
	subject := func(name string, hits uint64) operator.Subject {
		return operator.Subject{Domain: "d", Rule: "d.user", Subject: name, Hits: hits, PerSecond: float64(hits) / 60}
	}
	got := Subjects([][]operator.Subject{
		{subject("user=a", 60), subject("user=b", 50)}, {subject("user=b", 40), subject("user=c", 30)}, nil,
	}, 2)
	var text []string
	for _, s := range got {
		text = append(text, s.Subject)
	}
	if !slices.Equal(text, []string{"user=b", "user=a"}) || got[0].Hits != 90 || got[0].PerSecond != 1.5 ||
		!slices.Equal(got[0].Shares, []float64{5.0 / 9, 4.0 / 9, 0}) || !slices.Equal(got[1].Shares, []float64{1, 0, 0}) {
		t.Errorf("%+v", got)
	}
}

// A sum names the replicas that are not in it. A process that two addresses reach counts once.
func TestSum(t *testing.T) {
	t.Parallel()
	part := func(address string, started int64, admitted float64) Part {
		return Part{
			Address: address, State: operator.State{StartedAt: time.Unix(started, 0)},
			Rates: operator.Rates{Total: operator.PerSecond{Admitted: admitted}, Rules: []operator.RuleRates{
				{Domain: "d", Rule: "d.a", PerSecond: operator.PerSecond{Admitted: admitted}},
			}},
			Hot: []operator.Subject{{Domain: "d", Rule: "d.a", Subject: "a=1", Hits: uint64(admitted)}},
		}
	}
	dead := Part{Address: "dead", Err: errors.New("dead: refused")}
	this := part("this", 1, 30)
	this.IsThis = true
	s := Sum([]Part{this, dead, part("twin", 1, 30), part("other", 2, 10)}, 5)
	var got []string
	for _, r := range s.Replicas {
		got = append(got, fmt.Sprintf("%s %t %q %v %t%s", r.Address, r.IsThis, r.Error, r.Share, r.State != nil, r.SameAs))
	}
	if want := []string{
		`this true "" 0.75 true`, `dead false "dead: refused" 0 false`,
		`twin false "twin: this is the replica at this" 0 falsethis`, `other false "" 0.25 true`,
	}; !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	shares := []float64{0.75, 0, 0, 0.25}
	if s.Rates.Total.Admitted != 40 || !slices.Equal(s.Rates.Rules[0].Shares, shares) || s.Hot[0].Hits != 40 ||
		!slices.Equal(s.Hot[0].Shares, shares) || len(s.Denied) != 0 || s.Quotas != nil {
		t.Errorf("%+v", s)
	}
}

// Histories whose steps begin at different times are added step by step, up to the end of the first that ends.
func TestHistory(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	history := func(start time.Duration, admitted ...float64) operator.History {
		return operator.History{Start: at.Add(start), StepSeconds: 10, Admitted: admitted, Failed: admitted}
	}
	for _, tt := range []struct {
		list  []operator.History
		start time.Duration
		want  []float64
	}{
		{[]operator.History{history(0, 1, 2, 3)}, 0, []float64{1, 2, 3}},
		{[]operator.History{history(0, 1, 2, 3), history(14*time.Second, 10, 20)}, 0, []float64{1, 12, 23}},
		{
			[]operator.History{history(0, 1, 2, 3), history(-26*time.Second, 10, 20, 30, 40)},
			-26 * time.Second,
			[]float64{10, 20, 30, 41},
		},
		{[]operator.History{history(0), history(0, 1)}, 0, []float64{}},
		{[]operator.History{history(0, 1), history(-time.Hour, 5)}, -time.Hour, []float64{5}},
	} {
		got := History(tt.list)
		if !slices.Equal(got.Admitted, tt.want) || !slices.Equal(got.Failed, tt.want) || len(got.Denied) != len(tt.want) ||
			!got.Start.Equal(at.Add(tt.start)) || got.StepSeconds != 10 {
			t.Errorf("%v: got %+v", tt, got)
		}
	}
	if got := History(nil); got.Admitted != nil {
		t.Errorf("%+v", got)
	}
}

// A bucket has the proxies of all replicas. Other proxies are those of replicas that are not in the sum.
func TestQuotas(t *testing.T) {
	t.Parallel()
	bucket := func(name string, demand float64, proxies int, others uint64, short float64) operator.QuotaBucket {
		return operator.QuotaBucket{
			Domain: "d", Bucket: name, Rule: "d.a", DemandPerSecond: demand, Units: 10, Action: "units",
			ProxyCount: proxies, OtherProxyCount: others, ShortSeconds: short,
			Proxies: []operator.QuotaProxy{{Peer: name, DemandPerSecond: demand}},
		}
	}
	quotas := func(list ...operator.QuotaBucket) *operator.Quotas {
		return &operator.Quotas{
			Total: operator.QuotaTotals{Proxies: 1, Buckets: int64(len(list)), Unfairness: 0.5}, Buckets: list,
			MatchingBuckets: len(list),
		}
	}
	got := Quotas([]*operator.Quotas{
		nil, quotas(bucket("a", 5, 2, 4, 0), bucket("b", 6, 1, 0, 0)), quotas(bucket("a", 4, 1, 5, 3)),
	})
	var text []string
	for _, b := range got.Buckets {
		text = append(text, fmt.Sprintf("%s %.0f/s %d units %d+%d proxies %d listed short %.0f %s", b.Bucket, b.DemandPerSecond, b.Units,
			b.ProxyCount, b.OtherProxyCount, len(b.Proxies), b.ShortSeconds, b.Action))
	}
	if want := []string{
		"a 9/s 20 units 3+3 proxies 2 listed short 3 units", "b 6/s 10 units 1+0 proxies 1 listed short 0 units",
	}; !slices.Equal(text, want) || got.MatchingBuckets != 2 ||
		got.Total != (operator.QuotaTotals{Proxies: 2, Buckets: 3, Unfairness: 0.5}) {
		t.Errorf("got %q, %+v", text, got)
	}
	if got := Quotas([]*operator.Quotas{nil}); got != nil {
		t.Errorf("%+v", got)
	}
}
