package rules_test

import (
	"bytes"
	"strings"
	"testing"

	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/testbed/limitertest"
)

// Ordered lists and trees of limits, as operators see them.
func TestDescribeOthers(t *testing.T) {
	set := limitertest.Load(t, []filerules.File{{Name: "d.yaml", Data: []byte(`
domain: d
rules:
- {match: {p: /a*, ip: "*"}, per: [ip, user], shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 3, name: n}}
- {match: {}, rate_limit: {unlimited: true, requests_per_unit: 7}}
`)}, {Name: "t.yaml", Data: []byte("schema: {user: {children: {'*': {limits: [15, 30, 60], children: {trade: {limits: [5, 10, 15]}}}}}}\n")}})
	for i, want := range []string{
		"d.n: unit=HOUR requests_per_unit=3, shadow_mode: true, quota_mode: false, match: {ip=* p=/a*}, per: [ip, user]",
		"d.default: unlimited, shadow_mode: false, quota_mode: false, requests_per_unit: 7, match: {}",
		"t.user.*: unit=MINUTE requests_per_unit=30, shadow_mode: false, quota_mode: false, period: 1m, algorithm: gcra, " +
			"burst: 15, charge: path",
		"t.user.*.trade: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, unit_multiplier: 15, " +
			"period: 15s, algorithm: gcra, burst: 5, charge: path",
	} {
		if got := set.Rules()[i].String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	var got bytes.Buffer
	if err := yamlrules.Write(&got, set); err != nil {
		t.Fatal(err)
	}
	if want := `- rule: d.n
  domain: d
  at: d.yaml:4:3
  match:
    ip: '*'
    p: /a*
  per:
    - ip
    - user
  rate_limit:
    unit: hour
    requests_per_unit: 3
    name: "n"
  shadow_mode: true
- rule: d.default
  domain: d
  at: d.yaml:5:3
  match: {}
  rate_limit:
    unlimited: true
    requests_per_unit: 7
- rule: t.user.*
  domain: t
  at: t.yaml:1:28
  names:
    - user
    - '*'
  rate_limit:
    algorithm: gcra
    period: 1m
    requests_per_unit: 30
    burst: 15
  charge: path
- rule: t.user.*.trade
  domain: t
  at: t.yaml:1:67
  names:
    - user
    - '*'
    - trade
  rate_limit:
    algorithm: gcra
    period: 15s
    requests_per_unit: 10
    burst: 5
  charge: path
`; got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}

// TestDescribeWindows checks that defaults are left out, and that the text of a rule is read back as the same rule.
func TestDescribeWindows(t *testing.T) {
	t.Parallel()
	for limit, want := range map[string]string{
		"unit: month\ncalendar: true\nrequests_per_unit: 5\n": "d.a: unit=MONTH requests_per_unit=5, shadow_mode: false, " +
			"quota_mode: false, calendar: true",
		"unit: month\nunit_multiplier: 3\ncalendar: true\ntime_zone: Europe/Berlin\nanchor_day: 15\nrequests_per_unit: 5\n": "d.a: unit=MONTH requests_per_unit=5, shadow_mode: false, " +
			"quota_mode: false, unit_multiplier: 3, calendar: true, time_zone: Europe/Berlin, anchor_day: 15",
		"unit: week\ncalendar: true\nweek_starts: sunday\nrequests_per_unit: 5\n": "d.a: unit=WEEK requests_per_unit=5, " +
			"shadow_mode: false, quota_mode: false, calendar: true, week_starts: sunday",
		"algorithm: concurrency\nrequests_per_unit: 4\nhold: 30s\nhold_id: id\n": "d.a: unit=UNKNOWN requests_per_unit=4, " +
			"shadow_mode: false, quota_mode: false, " +
			"algorithm: concurrency, hold: 30s, hold_id: id",
		"unit: day\nrequests_per_unit: 9\nhold: 1h\nhold_id: id\nunsettled: release\n": "d.a: unit=DAY requests_per_unit=9, shadow_mode: false, quota_mode: false, " +
			"hold: 1h, hold_id: id, unsettled: release",
		"unit: day\nrequests_per_unit: 9\non_store_failure: deny\nenforce_percent: 0.5\n": "d.a: unit=DAY requests_per_unit=9, shadow_mode: false, quota_mode: false, " +
			"on_store_failure: deny, enforce_percent: 0.5",
		"unit: day\nrequests_per_unit: 9\ncounting: leased\non_contention: refuse\n": "d.a: unit=DAY requests_per_unit=9, " +
			"shadow_mode: false, quota_mode: false, counting: leased, on_contention: refuse",
	} {
		indented := strings.TrimRight(strings.ReplaceAll("\n"+limit, "\n", "\n    "), " ")
		set := limitertest.Load(t, []filerules.File{{
			Name: "d.yaml",
			Data: []byte("domain: d\ndescriptors:\n- key: a\n  rate_limit:" + indented),
		}})
		if got := set.Rules()[0].String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		var written bytes.Buffer
		if err := yamlrules.Write(&written, set); err != nil ||
			!strings.HasSuffix(written.String(), "  rate_limit:"+indented) {
			t.Errorf("got\n%s\nwant the end\n%s%v", &written, indented, err)
		}
	}
}

func TestLimitText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{unit: minute, requests_per_unit: 10}":                  "10 per minute",
		"{unit: hour, requests_per_unit: 3, unit_multiplier: 6}": "3 per 6 hours",

		"{unlimited: true}": "unlimited",
		"{unit: minute, requests_per_unit: 10, enforce_percent: 2.5}":                                "10 per minute, enforced for 2.5% of counters",
		"{algorithm: concurrency, requests_per_unit: 4, hold: 30s, hold_id: id, enforce_percent: 0}": "4 at a time, each for at most 30s, enforced for 0% of counters",

		"{algorithm: sliding_window, period: 90s, requests_per_unit: 5}":                                "5 per 1m30s",
		"{algorithm: sliding_window, period: 1500ms, requests_per_unit: 5}":                             "5 per 1.5s",
		"{algorithm: gcra, unit: minute, requests_per_unit: 6, burst: 20}":                              "6 per minute, 21 at once",
		"{unit: month, calendar: true, anchor_day: 15, time_zone: Europe/Berlin, requests_per_unit: 7}": "7 per calendar month from day 15 in Europe/Berlin",
		"{algorithm: first_hit_window, period: 1h, requests_per_unit: 4000000}":                         "4000000 per 1h",
		"{algorithm: concurrency, requests_per_unit: 4, hold: 30s, hold_id: id}":                        "4 at a time, each for at most 30s",
		"{unit: day, requests_per_unit: 1000, hold: 10m, hold_id: id}":                                  "1000 per day, reservations charged after 10m",
		"{unit: day, calendar: true, requests_per_unit: 5, hold: 10m, hold_id: id, unsettled: release}": "5 per calendar day in UTC, reservations released after 10m",
	} {
		set := limitertest.Load(t, []filerules.File{{
			Name: "d.yaml",
			Data: []byte("domain: d\ndescriptors: [{key: a, rate_limit: " + text + "}]"),
		}})
		if got := set.Rules()[0].LimitText(); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
