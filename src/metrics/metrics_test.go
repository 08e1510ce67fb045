package metrics

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"weak"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

var load = limitertest.Rules

const testRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: host
    value: 10.0.0.7:80|x
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: trial
    rate_limit: {unit: minute, requests_per_unit: 10}
    shadow_mode: true
  - key: staff
    rate_limit: {unlimited: true}
  - key: both
    on_reject: none
    rate_limits: [{unit: minute, requests_per_unit: 10}]
  - key: bucket
    rate_limit: {algorithm: gcra, unit: minute, requests_per_unit: 5, burst: 20}
`

// moved returns the counters that are not 0, as "name=value", without prefix.
func moved(r *Registry) []string {
	var list []string
	for _, s := range r.Stats() {
		if s.Value != 0 && !strings.HasPrefix(s.Name, "ratelimit.stats.") {
			list = append(list, fmt.Sprintf("%s=%d", strings.TrimPrefix(s.Name, "ratelimit.service."), s.Value))
		}
	}
	return list
}

// value is one figure; -1 when it is not there.
func value(r *Registry, name string) int64 {
	for _, s := range r.Stats() {
		if s.Name == name {
			return s.Value
		}
	}
	return -1
}

// native returns the labels and values of one native metric, sorted, as "a/b c=1" for
// three labels, and "a/b=1" for two.
func native(r *Registry, metric string) (list []string) {
	for _, f := range r.Figures() {
		if f.MetricName == metric {
			text := f.Labels[1] + "/" + f.Labels[3]
			if len(f.Labels) > 4 {
				text += " " + f.Labels[5]
			}
			list = append(list, fmt.Sprintf("%s=%d", text, f.Value))
		}
	}
	slices.Sort(list)
	return list
}

// ask is the request of all answers.
var ask = &limiter.Request{
	Domain: []byte("d"),
	Descriptors: []limiter.Descriptor{
		{Entries: []rules.Entry{{Key: []byte("ip"), Value: []byte("1")}}},
		{Entries: []rules.Entry{{Key: []byte("ip")}}},
	},
}

// answer is one status: rule number i of set went from before to after.
func answer(set *rules.Set, i int, before, after uint64) *limiter.Answer {
	rule := set.Rules()[i]
	charges := []limiter.Charge{{Rule: rule, Limit: rule.Rate}}
	st := limiter.Status{Match: matchOf(rule), Amount: after - before, Charges: charges}
	st.Charges[0].Verdict = &backend.Verdict{Outcome: algorithm.Outcome{
		Before: before, After: after,
		Over: after > uint64(rule.Requests), Charged: after > before,
	}}
	return &limiter.Answer{RuleSet: set, Domain: set.Domains()[0], Statuses: []limiter.Status{st}}
}

func TestRecord(t *testing.T) {
	set := load(t, testRules)
	with := func(a *limiter.Answer, change func(*limiter.Answer)) *limiter.Answer {
		change(a)
		return a
	}
	tests := []struct {
		name string
		a    *limiter.Answer
		want []string
	}{
		// A limit of 10 is near from 8 on.
		{"within", answer(set, 0, 0, 1), []string{"rate_limit.d.ip.total_hits=1", "rate_limit.d.ip.within_limit=1"}},
		{
			"across near", answer(set, 0, 7, 9),
			[]string{"rate_limit.d.ip.near_limit=1", "rate_limit.d.ip.total_hits=2", "rate_limit.d.ip.within_limit=2"},
		},
		{
			"near", answer(set, 0, 8, 10),
			[]string{"rate_limit.d.ip.near_limit=2", "rate_limit.d.ip.total_hits=2", "rate_limit.d.ip.within_limit=2"},
		},
		{
			"across the limit", answer(set, 0, 8, 12),
			[]string{"rate_limit.d.ip.near_limit=2", "rate_limit.d.ip.over_limit=2", "rate_limit.d.ip.total_hits=4"},
		},
		{
			"across both", answer(set, 0, 0, 25),
			[]string{"rate_limit.d.ip.near_limit=2", "rate_limit.d.ip.over_limit=15", "rate_limit.d.ip.total_hits=25"},
		},
		{"over", answer(set, 0, 10, 13), []string{"rate_limit.d.ip.over_limit=3", "rate_limit.d.ip.total_hits=3"}},
		{
			"shadow over", answer(set, 2, 9, 12),
			[]string{
				"rate_limit.d.trial.near_limit=1", "rate_limit.d.trial.over_limit=2", "rate_limit.d.trial.shadow_mode=2",
				"rate_limit.d.trial.total_hits=3",
			},
		},
		{
			"cached", with(answer(set, 0, 10, 12), func(a *limiter.Answer) { a.Statuses[0].Charges[0].Verdict.Cached = true }),
			[]string{
				"rate_limit.d.ip.over_limit=2", "rate_limit.d.ip.over_limit_with_local_cache=2",
				"rate_limit.d.ip.total_hits=2",
			},
		},
		{
			"failed", with(answer(set, 0, 0, 2),
				func(a *limiter.Answer) { a.Statuses[0].Charges[0].Verdict = &backend.Verdict{Err: fmt.Errorf("gone")} }),
			[]string{"call.should_rate_limit.redis_error=1", "rate_limit.d.ip.total_hits=2"},
		},
		{"refund", with(answer(set, 0, 0, 2),
			func(a *limiter.Answer) { a.Statuses[0].Charges[0].Op = algorithm.Refund }), nil},
		{
			"name with odd characters", answer(set, 1, 0, 1),
			[]string{"rate_limit.d.host_10_0_0_7_80_x.total_hits=1", "rate_limit.d.host_10_0_0_7_80_x.within_limit=1"},
		},
		{"unlimited", &limiter.Answer{
			RuleSet: set, Domain: set.Domains()[0],
			Statuses: []limiter.Status{{Match: matchOf(set.Rules()[3])}},
		}, nil},
		{"unmatched", &limiter.Answer{RuleSet: set, Domain: set.Domains()[0], Statuses: make([]limiter.Status, 2)}, nil},
		{
			"unknown domain", &limiter.Answer{RuleSet: set, Statuses: make([]limiter.Status, 2)},
			[]string{"rate_limit.d.domain_not_found=2"},
		},
		{
			"request limit", with(answer(set, 0, 0, 1), func(a *limiter.Answer) { a.Statuses[0].Charges[0].Rule = nil }),
			[]string{"rate_limit.d.ip_1.total_hits=1", "rate_limit.d.ip_1.within_limit=1"},
		},
		{
			"not charged, since another limit of the rule refused",
			with(answer(set, 4, 9, 9), func(a *limiter.Answer) { a.Statuses[0].Amount = 3 }),
			[]string{"rate_limit.d.both.total_hits=3"},
		},
		{
			"not charged, since another limit of the request refused",
			with(answer(set, 0, 5, 5), func(a *limiter.Answer) { a.Statuses[0].Amount = 3 }),
			[]string{"rate_limit.d.ip.total_hits=3", "rate_limit.d.ip.within_limit=3"},
		},
		{
			"near the burst of a bucket", with(answer(set, 5, 17, 19),
				func(a *limiter.Answer) { a.Statuses[0].Charges[0].Verdict.Over = false }),
			[]string{
				"rate_limit.d.bucket.near_limit=2", "rate_limit.d.bucket.total_hits=2",
				"rate_limit.d.bucket.within_limit=2",
			},
		},
		{
			"over a replica's share", with(answer(set, 0, 3, 4), func(a *limiter.Answer) {
				a.Statuses[0].Charges[0].Verdict = &backend.Verdict{Outcome: algorithm.Outcome{
					Before: 3, After: 4, Over: true,
					Charged: true,
				}, Fallback: backend.FallbackLocal}
			}),
			[]string{"rate_limit.d.ip.over_limit=1", "rate_limit.d.ip.total_hits=1"},
		},
		{
			"over for what its group asked before it", with(answer(set, 0, 0, 6), func(a *limiter.Answer) {
				a.Statuses[0].Charges[0].Verdict = &backend.Verdict{Outcome: algorithm.Outcome{Over: true}}
			}),
			[]string{"rate_limit.d.ip.over_limit=6", "rate_limit.d.ip.total_hits=6"},
		},
		{
			"shadow mode for all", with(answer(set, 0, 10, 11), func(a *limiter.Answer) { a.Shadowed = true }),
			[]string{"global_shadow_mode=1", "rate_limit.d.ip.over_limit=1", "rate_limit.d.ip.total_hits=1"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := New(Config{NearRatio: 0.8})
			r.UseRules(set)
			r.Record(ask, tt.a)
			if got := moved(r); !slices.Equal(got, tt.want) {
				t.Errorf("\n got %q\nwant %q", got, tt.want)
			}
		})
	}
}

// Near ratios that make no sense count nothing twice.
func TestNearRatio(t *testing.T) {
	set := load(t, testRules)
	for ratio, want := range map[float32]int64{0: 10, 0.5: 5, 1: 0, 7: 0, -1: 10} {
		r := New(Config{NearRatio: ratio})
		r.UseRules(set)
		r.Record(ask, answer(set, 0, 0, 10))
		if got := value(r, "ratelimit.service.rate_limit.d.ip.near_limit"); got != want {
			t.Errorf("ratio %v: %d near, want %d", ratio, got, want)
		}
	}
}

// The rules before a reload can go: of those that are no more only the name and the counts stay.
func TestReloadFreesTheOldRules(t *testing.T) {
	r := New(Config{NearRatio: 0.8})
	useOld := func() weak.Pointer[rules.Set] { // a call of its own, so that nothing here holds the set
		old := load(t, testRules)
		r.UseRules(old)
		r.Record(ask, answer(old, 0, 0, 1))
		return weak.Make(old)
	}
	gone := useOld()
	r.UseRules(load(t, "domain: d\ndescriptors: [{key: other, rate_limit: {unit: day, requests_per_unit: 1}}]"))
	runtime.GC()
	if gone.Value() != nil {
		t.Error("the old rules are still there")
	}
	want := []string{"rate_limit.d.ip.total_hits=1", "rate_limit.d.ip.within_limit=1"}
	for range 2 {
		if got := moved(r); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestStatsAreSortedAndShowZeros(t *testing.T) {
	r := New(Config{NearRatio: 0.8})
	r.UseRules(load(t, testRules))
	r.AddFigures(func() []Figure { return []Figure{{StatName: "a.gauge", Kind: KindGauge, Value: 7}} }, false)
	stats := r.Stats()
	if stats[0] != (Stat{"a.gauge", KindGauge, 7}) {
		t.Errorf("first: %+v", stats[0])
	}
	if !slices.IsSortedFunc(stats, func(a, b Stat) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("not sorted")
	}
	if !slices.Contains(stats, Stat{"ratelimit.service.rate_limit.d.trial.shadow_mode", KindCounter, 0}) {
		t.Error("a rule that was never met is not shown")
	}
}

func TestConcurrent(t *testing.T) {
	r := New(Config{NearRatio: 0.8})
	set := load(t, testRules)
	r.UseRules(set)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range uint64(1000) {
				r.Record(ask, answer(set, 0, i, i+1))
				if i%100 == 0 {
					r.UseRules(set)
					r.Stats()
				}
			}
		})
	}
	wg.Wait()
	if got := value(r, "ratelimit.service.rate_limit.d.ip.total_hits"); got != 8000 {
		t.Errorf("%d hits counted, want 8000", got)
	}
}

// matchOf returns the match of a descriptor whose only limit is r.
func matchOf(r *rules.Rule) *rules.Match {
	return &rules.Match{Descriptor: r.Descriptor, Limits: []*rules.Rule{r}}
}
