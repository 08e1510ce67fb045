package limiter_test

import (
	"fmt"
	"testing"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
)

const orderedRules = `
domain: d
rules:
  - match: {m: GET, ip: "*"}            # a canary, and a rule with the same match
    per: [ip]
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - match: {m: GET, ip: "*"}
    per: [ip]
    rate_limit: {unit: hour, requests_per_unit: 2}
  - match: {staff: "*"}
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1, name: staff-canary}
  - match: {staff: "*"}
    rate_limit: {unlimited: true, requests_per_unit: 9}
  - match: {both: "*"}
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - match: {both: "*"}
    on_reject: none
    rate_limits:
      - {unit: minute, requests_per_unit: 2}
      - {unit: day, requests_per_unit: 3}
  - match: {trial: "*"}
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - match: {banned: "yes"}
    rate_limit: {unit: second, requests_per_unit: 0}
  - match: {premium: "*"}
    rate_limit: {unit: hour, requests_per_unit: 8, replaces: [{name: staff-canary}, {name: five}]}
  - match: {five: "*"}
    rate_limit: {unit: hour, requests_per_unit: 5, name: five}
`

func TestOrderedLists(t *testing.T) {
	const withDefault = orderedRules + "  - {match: {}, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: " +
		"1}}\n"
	for _, tt := range []struct {
		name, rules string
		cfg         limiter.Config
		ask         []string
	}{
		{"a canary beside a rule with the same match", orderedRules, limiter.Config{}, []string{
			"m=GET,ip=1", "ok: ok 1/2",
			"ip=1,x=y,m=GET", "ok: ok 0/2",
			"m=GET,ip=1", "over: over 0/2",
			"m=GET,ip=2", "ok: ok 1/2",
			"m=GET,ip=", "ok: ok 1/2",
			"m=GET", "ok: -",
			"m=GET,ip=1,ip=3", "ok: ok 1/2", // the last one counts
		}},
		{"a canary before an unlimited rule", orderedRules, limiter.Config{}, []string{
			"staff=1", "ok: unlimited", "staff=1", "ok: unlimited",
		}},
		{"a canary before several limits", orderedRules, limiter.Config{}, []string{
			"both=1", "ok: ok 1/2", "both=1", "ok: ok 0/2", "both=1", "over: over 0/2",
		}},
		{"a canary and nothing that decides", orderedRules, limiter.Config{}, []string{
			"trial=1", "ok: ok 0/1", "trial=1", "ok: ok 0/1",
		}},
		{"a canary that is the default", withDefault, limiter.Config{}, []string{
			"trial=1", "ok: ok 0/1", "trial=1", "over: over 0/1", "x=y", "over: over 0/1",
		}},
		{"always deny", orderedRules, limiter.Config{}, []string{"banned=yes", "over: over 0/0", "banned=no", "ok: -"}},
		{"replaced", orderedRules, limiter.Config{}, []string{
			"five=1", "ok: ok 4/5", "premium=1 five=1", "ok: ok 7/8, -", "five=1", "ok: ok 3/5",
			"staff=1 premium=1", "ok: unlimited, ok 6/8",
		}},
		{"all or nothing: canaries refuse no request", orderedRules, limiter.Config{ChargeAllOrNothing: true}, []string{
			"both=1 banned=yes", "over: ok 2/2, over 0/0", "both=1:2", "ok: ok 0/2",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := start(t, tt.cfg)
			l.UseRules(load(t, tt.rules))
			play(t, l, tt.ask)
		})
	}
}

// All charges of a descriptor are told, canaries in front and marked; each is
// counted under the name of its rule.
func TestOrderedCharges(t *testing.T) {
	counters := metrics.New(metrics.Config{})
	l := start(t, limiter.Config{Recorders: []limiter.Recorder{counters}})
	set := load(t, orderedRules)
	counters.UseRules(set)
	l.UseRules(set)
	var a limiter.Answer
	for range 3 {
		if err := l.Check(t.Context(), parse("m=GET,ip=1 both=1 staff=1"), &a); err != nil {
			t.Fatal(err)
		}
	}
	got := ""
	for _, st := range a.Statuses {
		for _, c := range st.Charges {
			got += fmt.Sprintf("%s canary=%t over=%t; ", c.Rule.FullName, c.IsCanary, c.Over)
		}
	}
	if want := "d.ip_*.m_GET.canary canary=true over=false; d.ip_*.m_GET canary=false over=true; " +
		"d.both_*.canary canary=true over=false; d.both_* canary=false over=true; d.both_*.2 canary=false over=false; " +
		"d.staff-canary canary=true over=false; "; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	count := make(map[string]int64) // by rule and outcome
	for _, f := range counters.Figures() {
		if f.MetricName == "ratelimit_decisions_total" {
			count[f.Labels[3]+" "+f.Labels[5]] = f.Value
		}
	}
	for name, want := range map[string]int64{
		"ip_*.m_GET near": 2, "ip_*.m_GET over": 1, "ip_*.m_GET.canary shadow": 1,
		"staff-canary shadow": 2, "staff_* unlimited": 3, "both_*.canary shadow": 2, "both_* over": 1,
	} {
		if count[name] != want {
			t.Errorf("%s: counted %d, want %d: %v", name, count[name], want, count)
		}
	}
}

// listOf returns an ordered list of n rules for paths, and a default at the end.
func listOf(n int, pattern string) string {
	text := "domain: d\nrules:\n"
	for i := range n {
		text += fmt.Sprintf("  - {match: {method: GET, path: \""+pattern+"\"}, per: [ip], rate_limit: {algorithm: "+
			"first_hit_window, unit: hour, requests_per_unit: 1000000000}}\n", i)
	}
	return text + "  - {match: {}, per: [ip], rate_limit: {algorithm: first_hit_window, unit: hour, requests_per_unit: " +
		"1000000000}}\n"
}

// BenchmarkOrdered is a whole decision by an ordered list, over memory, of which
// the last rule but the default matches.
func BenchmarkOrdered(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		for _, pattern := range []string{"/v1/%d/*", "/v1/%d"} {
			b.Run(fmt.Sprintf("rules=%d,path=%s", n, pattern), func(b *testing.B) {
				l := start(b, limiter.Config{})
				l.UseRules(load(b, listOf(n, pattern)))
				path := fmt.Sprintf("/v1/%d", n-1)
				if pattern == "/v1/%d/*" {
					path += "/x"
				}
				req, a := parse("method=GET,ip=10.0.0.7,path="+path), new(limiter.Answer)
				b.ReportAllocs()
				for b.Loop() {
					if err := l.Check(b.Context(), req, a); err != nil || a.Statuses[0].Match.ListSettings == nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
