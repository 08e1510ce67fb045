package metrics

import (
	"slices"
	"testing"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// What proxies decide counts for each limit of a bucket, else for its unlimited rule, else for the domain. A reload
// keeps the counters.
func TestQuotaFigures(t *testing.T) {
	t.Parallel()
	const text = "domain: d\nquota_buckets: true\ndescriptors:\n- {key: a, rate_limit: {unit: minute, " +
		"requests_per_unit: 9}}\n" +
		"- {key: b, rate_limits: [{name: m, unit: minute, requests_per_unit: 9}, {name: h, unit: hour, requests_per_unit: " +
		"9}]}\n- {key: c, rate_limit: {unlimited: true}}\n"
	set := load(t, text)
	r := New(Config{NearRatio: 1})
	r.UseRules(set)
	all := set.Rules()
	composite, _ := set.Domain([]byte("d")).FindRule([]rules.Entry{{Key: []byte("b"), Value: []byte("1")}},
		new(rules.SearchScratch), nil)
	record := func(rule *rules.Rule, limits []*rules.Rule, admitted, denied uint64) {
		r.RecordQuota(&limiter.QuotaTarget{RuleSet: set, Rule: rule, Rules: limits}, []byte("d"), admitted, denied)
	}
	record(all[0], all[:1], 5, 2)
	record(composite, composite.ChargedLimits, 3, 1)
	record(all[3], nil, 4, 0)
	record(nil, nil, 7, 0)
	r.RecordQuota(&limiter.QuotaTarget{RuleSet: set}, []byte("unknown"), 7, 0)
	r.RecordQuota(&limiter.QuotaTarget{}, []byte("d"), 7, 0)
	set = load(t, text)
	r.UseRules(set)
	record(set.Rules()[0], set.Rules()[:1], 5, 0)
	want := []string{
		"d/ admitted=7", "d/a admitted=10", "d/a denied=2", "d/b admitted=3", "d/b denied=1", "d/b.h admitted=3",
		"d/b.h denied=1", "d/c admitted=4",
	}
	got := native(r, "ratelimit_quota_requests_total")
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	r.ForEachDecisions(func(_, name string, d Decisions) {
		if name == "d.a" && (d.Admitted != 10 || d.Denied != 2) {
			t.Errorf("%s: %+v", name, d)
		}
	})
}
