package operator

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// A rule in shadow mode looks like none that refuses.
func TestLimitTextOfShadowMode(t *testing.T) {
	t.Parallel()
	set := limitertest.Load(t, []filerules.File{{Name: "d.yaml", Data: []byte("domain: d\ndescriptors:\n" +
		"- {key: a, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n" +
		"- {key: b, rate_limit: {unit: day, requests_per_unit: 1}}\n")}})
	o := newObserver(metrics.New(metrics.Config{}))
	o.UseRules(set)
	got := o.Rates(RatesQuery{Limit: 10, Order: OrderTree})
	for i, want := range []string{"1 per day, shadow mode", "1 per day"} {
		name := metrics.RuleName{Domain: "d", Rule: got.Rules[i].Rule}
		if got.Rules[i].Limit != want || LimitText(set, name) != want {
			t.Errorf("%+v, and %s; want %s", got.Rules[i], LimitText(set, name), want)
		}
	}
}

// The list of rules has busy rules first, the busiest before the others, and then all others by name.
func TestRatesOfAllRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var files []filerules.File
		for _, domain := range []string{"b", "a", "empty"} {
			text := "domain: " + domain + "\n"
			if domain != "empty" {
				text += "descriptors: [{key: y, rate_limit: {unit: day, requests_per_unit: 1}}, {key: X, rate_limit: {unit: day, " +
					"requests_per_unit: 1}}]\n"
			}
			files = append(files, filerules.File{Name: domain + ".yaml", Data: []byte(text)})
		}
		set := limitertest.Load(t, files)
		registry := metrics.New(metrics.Config{})
		registry.UseRules(set)
		o := newObserver(registry)
		if got := o.Rates(RatesQuery{Limit: 10}); got.MatchingRules != 0 {
			t.Errorf("before the first load: got %+v", got)
		}
		o.UseRules(set)
		ctx := t.Context()
		go func() { _ = o.history.Run(ctx) }()
		synctest.Wait()
		for rule, n := range map[string]int{"b.y": 10, "b.X": 20} {
			r := set.Rule("b", rule)
			m := rules.Match{Descriptor: r.Descriptor, Limits: []*rules.Rule{r}}
			charges := []limiter.Charge{{Rule: r, Limit: r.Rate, Verdict: new(backend.Verdict)}}
			if rule == "b.y" { // A rule whose decisions fail is busy, too.
				charges[0].Verdict.Err = context.DeadlineExceeded
			}
			for range n {
				registry.Record(&limiter.Request{Domain: []byte("b"), Descriptors: make([]limiter.Descriptor, 1)}, &limiter.Answer{
					RuleSet: set, Domain: set.Domain([]byte("b")),
					Statuses: []limiter.Status{{Match: &m, Amount: 1, Charges: charges}},
				})
			}
		}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		for _, tt := range []struct {
			search, order string
			offset, limit int
			want          string
		}{
			{"", "", 0, 10, "4: b.X 2, b.y 0, a.X 0, a.y 0"},
			{"", "", 1, 2, "4: b.y 0, a.X 0"},
			{"", "", 3, 5, "4: a.y 0"},
			{"", "", 4, 5, "4: "},
			{"", "", 0, 1, "4: b.X 2"},
			{"x", "", 0, 5, "2: b.X 2, a.X 0"},
			{"A.", "", 0, 5, "2: a.X 0, a.y 0"},
			{"none", "", 0, 5, "0: "},
			{"", OrderTree, 0, 10, "4: a.X 0, a.y 0, b.X 2, b.y 0"},
			{"", OrderTree, 1, 2, "4: a.y 0, b.X 2"},
			{"y", OrderBusiest, 0, 2, "2: b.y 0, a.y 0"},
		} {
			r := o.Rates(RatesQuery{tt.search, tt.order, tt.offset, tt.limit})
			var list, domains []string
			for _, rule := range r.Rules {
				list = append(list, fmt.Sprintf("%s %.0f", rule.Rule, rule.Admitted))
			}
			if got := fmt.Sprintf("%d: %s", r.MatchingRules, strings.Join(list, ", ")); got != tt.want {
				t.Errorf("%q %q %d %d: got %s, want %s", tt.search, tt.order, tt.offset, tt.limit, got, tt.want)
			}
			for _, d := range r.Domains {
				domains = append(domains, fmt.Sprintf("%s %.0f", d.Domain, d.Admitted))
			}
			if got, want := strings.Join(domains, ", "), "b 2, a 0"; got != want {
				t.Errorf("got domains %s, want %s", got, want)
			}
		}
		if h, ok := o.history.Hour("a", "a.X"); !ok || len(h.Admitted) != 1 || h.Admitted[0] != 0 {
			t.Errorf("history of a rule without decisions: %+v, %t", h, ok)
		}
	})
}

// A leased rule has what this process holds of it, and the share of its decisions that needed no store.
func TestRatesOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := limitertest.Load(t, []filerules.File{{Name: "d.yaml", Data: []byte("domain: d\ncounting: leased\ndescriptors:\n" +
			"- {key: a, rate_limit: {unit: day, requests_per_unit: 1000}}\n" +
			"- {key: b, rate_limit: {unit: day, requests_per_unit: 1000, counting: exact}}\n" +
			"- {key: c, rate_limit: {unit: day, requests_per_unit: 1000}}\n")}})
		registry := metrics.New(metrics.Config{})
		registry.UseRules(set)
		a := set.Rule("d", "d.a")
		o := newObserver(registry)
		o.leases = func(owner uint32) Leases {
			if owner == a.Owner {
				return Leases{Counters: 3, Contended: 1, Held: 530}
			}
			return Leases{}
		}
		o.UseRules(set)
		ctx := t.Context()
		go func() { _ = o.history.Run(ctx) }()
		synctest.Wait()
		for i := range 20 {
			v := &backend.Verdict{LeaseMissed: i == 7}
			registry.Record(&limiter.Request{Domain: []byte("d"), Descriptors: make([]limiter.Descriptor, 1)}, &limiter.Answer{
				RuleSet: set, Domain: set.Domain([]byte("d")), Statuses: []limiter.Status{{
					Match: &rules.Match{Descriptor: a.Descriptor, Limits: []*rules.Rule{a}}, Amount: 1,
					Charges: []limiter.Charge{{Rule: a, Limit: a.Rate, Verdict: v}},
				}},
			})
		}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		got := o.Rates(RatesQuery{Limit: 10, Order: OrderTree}).Rules
		for i, want := range []string{
			"95.0 % by lease, 530 held, 1 of 3 counters contended", "", "0 held, 0 of 0 counters contended",
		} {
			if text := got[i].LeasesText(); text != want {
				t.Errorf("%s: got %q, want %q", got[i].Rule, text, want)
			}
		}
		if got[0].LeaseMisses == 0 || got[1].Leases != nil {
			t.Errorf("got %+v", got)
		}
	})
}

func TestCompareTree(t *testing.T) {
	t.Parallel()
	names := strings.Fields("a a.b a.b.c a.ip_1.2.3.4 a.ip_1.2.10.4 a.x_2 a.x_02 a.x_10 a.x_10.y a-b a1 aa b")
	for i, a := range names {
		for j, b := range names {
			if got, want := compareTree(a, b), cmp.Compare(i, j); got != want {
				t.Errorf("%s, %s: got %d, want %d", a, b, got, want)
			}
		}
	}
}

// The rules of a sum are listed as those of one replica are, with the rules that only others have.
func TestRatesAmong(t *testing.T) {
	t.Parallel()
	var files []filerules.File
	for _, domain := range []string{"b", "a"} {
		files = append(files, filerules.File{Name: domain + ".yaml", Data: []byte("domain: " + domain + "\n" +
			"descriptors: [{key: y, rate_limit: {unit: day, requests_per_unit: 1}}, " +
			"{key: x, rate_limit: {unit: day, requests_per_unit: 1}}]\n")})
	}
	set := limitertest.Load(t, files)
	o := newObserver(metrics.New(metrics.Config{}))
	rule := func(domain, name string, admitted float64) RuleRates {
		return RuleRates{
			Domain: domain, Rule: name, Limit: "of the sum", PerSecond: PerSecond{Admitted: admitted}, Shares: []float64{1, 0},
		}
	}
	sum := Rates{
		Total: PerSecond{Admitted: 9}, Domains: []DomainRates{{Domain: "b"}},
		Rules: []RuleRates{
			rule("b", "b.y", 2), rule("c", "c.new", 3), rule("a", "a.w", 0), rule("a", "a.x", 4), rule("b", "b.z", 1),
		},
	}
	const ofSum, own = "of the sum", "1 per day"
	check := func(search, order string, offset, limit int, want string) {
		t.Helper()
		r := o.RatesAmong(sum, RatesQuery{search, order, offset, limit})
		var list []string
		for _, rule := range r.Rules {
			text := fmt.Sprintf("%s %.0f", rule.Rule, rule.Admitted)
			if isOwn := rule.Limit == own && rule.Shares == nil; isOwn {
				text += " own"
			} else if rule.Limit != ofSum || len(rule.Shares) != 2 {
				t.Errorf("%+v", rule)
			}
			list = append(list, text)
		}
		if got := fmt.Sprintf("%d: %s", r.MatchingRules, strings.Join(list, ", ")); got != want || r.Total != sum.Total ||
			len(r.Domains) != 1 {
			t.Errorf("%q %q %d %d: got %s, want %s", search, order, offset, limit, got, want)
		}
	}
	check("", "", 0, 9, "5: a.x 4, c.new 3, b.y 2, b.z 1, a.w 0") // No rules are loaded here.
	o.UseRules(set)
	check("", "", 0, 9, "7: a.x 4, c.new 3, b.y 2, b.z 1, a.w 0, a.y 0 own, b.x 0 own")
	check("", "", 3, 2, "7: b.z 1, a.w 0")
	check("", "", 5, 9, "7: a.y 0 own, b.x 0 own")
	check("", OrderTree, 0, 9, "7: a.w 0, a.x 4, a.y 0 own, b.x 0 own, b.y 2, b.z 1, c.new 3")
	check("", OrderTree, 2, 2, "7: a.y 0 own, b.x 0 own")
	check("B.", "", 0, 9, "3: b.y 2, b.z 1, b.x 0 own")
	check("new", OrderTree, 0, 9, "1: c.new 3")
}
