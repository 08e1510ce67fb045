package replicas

import (
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
	got := Rates([]operator.Rates{
		{
			Total: operator.PerSecond{Admitted: 8, Denied: 1, Failed: 3, Unmatched: 2}, MatchingRules: 9,
			Requests:  operator.RequestsPerSecond{Admitted: 4, Failed: 2},
			Unmatched: []operator.Unmatched{unmatched("d", "b", 2, 1, 5), unmatched("d", "c", 1, 1, 1)},
			Domains:   []operator.DomainRates{domain("d", 8), domain("e", 0)},
			Rules:     []operator.RuleRates{rule("d.a", "5 per second", 3, 0, &operator.Holds{Open: 1, Charged: 2})},
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
			},
		},
	})
	a := rule("d.a", "5 per second or 6 per second", 4, 0, &operator.Holds{Open: 3, Expired: 1, Charged: 2})
	a.Near, a.Shares = 2, []float64{0.75, 0, 0.25}
	b := rule("d.b", "1 per day", 0, 0, nil)
	b.Shares = []float64{0, 0, 0}
	want := operator.Rates{
		Total: operator.PerSecond{Admitted: 10, Denied: 5, Failed: 3, Unmatched: 5}, MatchingRules: 9,
		Requests: operator.RequestsPerSecond{Admitted: 5, Denied: 4, Fallback: 3, Failed: 2},
		Unmatched: []operator.Unmatched{
			unmatched("z", "", 7, 1, 1), unmatched("d", "b", 5, 0, 6), unmatched("d", "c", 1, 1, 1),
		},
		Domains: []operator.DomainRates{domain("d", 10), domain("e", 0)}, Rules: []operator.RuleRates{a, b},
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
