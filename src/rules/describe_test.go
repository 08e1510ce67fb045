package rules_test

import (
	"bytes"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/rules/yamlrules"
)

func TestWords(t *testing.T) {
	set, _, err := loading.Load([]loading.File{{Name: "a.yaml", Data: []byte(`
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: b, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 0, count_blocked: false}}
- {key: c, rate_limit: {algorithm: gcra, period: 90s, requests_per_unit: 10, burst: 3, min_interval: 100ms}}
- {key: d, rate_limit: {algorithm: sliding_window, period: 1h, requests_per_unit: 10, count_blocked: true}}
- {key: e, rate_limit: {unlimited: true}}
`)}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"3 per hour", "0 per 5 minutes, refused hits do not count", "10 per 1m30s, 4 at once, 100ms apart",
		"10 per 1h, refused hits count", "unlimited",
	} {
		if got := set.Rules()[i].Words(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := (rules.Quantity{Requests: 2, Unit: rules.Week, Multiplier: 3}).Words(); got != "2 per 3 weeks" {
		t.Errorf("got %q", got)
	}
}

// Ordered lists and trees of limits, as operators see them.
func TestDescribeOthers(t *testing.T) {
	set, _, err := loading.Load([]loading.File{{Name: "d.yaml", Data: []byte(`
domain: d
rules:
- {match: {p: /a*, ip: "*"}, per: [ip, user], shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 3, name: n}}
- {match: {}, rate_limit: {unlimited: true, requests_per_unit: 7}}
`)}, {Name: "t.yaml", Data: []byte("schema: {user: {children: {'*': {limits: [15, 30, 60], children: {trade: {limits: [5, 10, 15]}}}}}}\n")}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"d.n: unit=HOUR requests_per_unit=3, shadow_mode: true, quota_mode: false, match: {ip=* p=/a*}, per: [ip, user]",
		"d.default: unlimited, shadow_mode: false, quota_mode: false, requests_per_unit: 7, match: {}",
		"t.user.*: unit=MINUTE requests_per_unit=30, shadow_mode: false, quota_mode: false, period: 1m, algorithm: gcra, burst: 15, charge: path",
		"t.user.*.trade: unit=SECOND requests_per_unit=10, shadow_mode: false, quota_mode: false, unit_multiplier: 15, period: 15s, algorithm: gcra, burst: 5, charge: path",
	} {
		if got := set.Rules()[i].String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	var got bytes.Buffer
	err = yamlrules.Write(&got, set)
	if err != nil {
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
