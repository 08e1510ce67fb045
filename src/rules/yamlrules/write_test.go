package yamlrules_test

import (
	"bytes"
	"testing"

	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/testbed/limitertest"
)

// writtenRules are read, and written as writtenYAML.
const writtenRules = `
domain: d
descriptors:
- key: path
  value: /f/*
  share_threshold: true
  descriptors:
  - key: user
    value_to_metric: true
    shadow_mode: true
    quota_mode: true
    metadata: {pool: gold}
    rate_limit: {unit: hour, unit_multiplier: 6, requests_per_unit: 0, name: n, replaces: [{name: m}]}
- {key: u, detailed_metric: true, rate_limit: {unlimited: true, name: m}}
- {key: g, rate_limit: {algorithm: gcra, period: 90s, requests_per_unit: 30, burst: 5, min_interval: 100ms, count_blocked: true}}
- {key: s, rate_limit: {algorithm: sliding_window, unit: day, unit_multiplier: 2, requests_per_unit: 30}}
- key: p
  charge: path
  on_reject: none
  rate_limits: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 2, name: daily}]
  descriptors: [{key: none}]
`

const writtenYAML = `- rule: d.path_/f/*.user
  domain: d
  at: a.yaml:8:5
  descriptors:
    - key: path
      value: /f/*
      share_threshold: true
    - key: user
      value_to_metric: true
  rate_limit:
    unit: hour
    unit_multiplier: 6
    requests_per_unit: 0
    name: "n"
    replaces:
      - m
  shadow_mode: true
  quota_mode: true
  metadata:
    pool: gold
- rule: d.u
  domain: d
  at: a.yaml:14:3
  descriptors:
    - key: u
  rate_limit:
    unlimited: true
    name: m
  detailed_metric: true
- rule: d.g
  domain: d
  at: a.yaml:15:3
  descriptors:
    - key: g
  rate_limit:
    algorithm: gcra
    period: 1m30s
    requests_per_unit: 30
    burst: 5
    min_interval: 100ms
    count_blocked: true
- rule: d.s
  domain: d
  at: a.yaml:16:3
  descriptors:
    - key: s
  rate_limit:
    algorithm: sliding_window
    unit: day
    unit_multiplier: 2
    requests_per_unit: 30
- rule: d.p
  domain: d
  at: a.yaml:20:17
  descriptors:
    - key: p
  rate_limit:
    unit: second
    requests_per_unit: 1
  charge: path
  on_reject: none
- rule: d.p.daily
  domain: d
  at: a.yaml:20:55
  descriptors:
    - key: p
  rate_limit:
    unit: day
    requests_per_unit: 2
    name: daily
  charge: path
  on_reject: none
`

func TestWrite(t *testing.T) {
	set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(writtenRules)}})
	var got bytes.Buffer
	if err := yamlrules.Write(&got, set); err != nil {
		t.Fatal(err)
	}
	if got.String() != writtenYAML {
		t.Errorf("got\n%swant\n%s", &got, writtenYAML)
	}
}
