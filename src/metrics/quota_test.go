package metrics

import (
	"slices"
	"testing"

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
	find := func(key string) *rules.Match {
		entries := []rules.Entry{{Key: []byte(key), Value: []byte("1")}}
		m := set.Domain([]byte("d")).FindRule(entries, new(rules.SearchScratch))
		return m
	}
	record := func(limits []*rules.Rule, admitted, denied uint64) {
		r.RecordQuota(set, []byte("d"), limits, admitted, denied)
	}
	record(all[:1], 5, 2)
	record(find("b").Limits, 3, 1)
	record(find("c").Limits, 4, 0)
	record(nil, 7, 0)
	r.RecordQuota(set, []byte("unknown"), nil, 7, 0)
	r.RecordQuota(nil, []byte("d"), nil, 7, 0)
	set = load(t, text)
	r.UseRules(set)
	record(set.Rules()[:1], 5, 0)
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
