package main

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/xdsrules"
)

// everything has every key of the rule files.
const everything = `
domain: edge
charge: path
on_reject: none
descriptors:
  - key: path
    value: /pay
    shadow_mode: yes
    quota_mode: on
    detailed_metric: true
    charge: leaf
    on_reject: each
    metadata: {team: pay, tags: [a, 1, {b: true}], none: null}
    rate_limit: {unit: minute, unit_multiplier: 0x5, requests_per_unit: 1_000, name: pay, replaces: [{name: all}]}
    descriptors: &below
      - key: user
        value: 7
        rate_limit: {unlimited: true}
      - key: user
        value_to_metric: true
        rate_limits:
          - {period: 1m30s, requests_per_unit: 5, algorithm: gcra, burst: 0}
          - {unit: day, requests_per_unit: 100, algorithm: sliding_window, min_interval: 1500ms, count_blocked: false, name: daily}
  - key: path
    value: /files/*
    share_threshold: true
    rate_limit: {unit: week, requests_per_unit: 5, name: all}
    descriptors: *below
  - key: budget
    rate_limit: {unit: month, requests_per_unit: 100_000_000_000, algorithm: gcra, burst: 50_000_000_000}
`

// What services make of the messages is what they would have made of the files.
func TestDomains(t *testing.T) {
	examples, _, err := filerules.Read("../ratelimit/config")
	if err != nil || len(examples) < 5 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	files := append(examples,
		filerules.File{Name: "everything.yaml", Data: []byte(everything)},
		filerules.File{Name: "some_test.yaml", Data: []byte("rules: .\ntests: []\n")})
	want, _, err := filerules.Load(files, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := domains(files, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	resources := make([]*anypb.Any, len(messages))
	for i, m := range messages {
		if resources[i], err = anypb.New(m); err != nil {
			t.Fatal(err)
		}
	}
	got, _, err := xdsrules.Load(resources, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if g, w := list(got), list(want); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
	if n := len(got.Domains()); n != len(files)-1 {
		t.Errorf("%d domains of %d files", n, len(files)-1)
	}
}

// list is all that is known of each rule, but for where it stands.
func list(s *rules.Set) string {
	var lines []string
	for _, r := range s.Rules() {
		line := fmt.Sprintf("%v %+v %v %q %v", r, r.Limit, r.AnswerMetadata, r.Replaces, r.DetailedMetric)
		for i := range r.Path {
			l := &r.Path[i]
			v4, v6 := l.CountedPrefixes()
			line += fmt.Sprintf(" [%v %q %q %v %d %d %v %v]", l.Kind, l.Key(), l.Value(), l.Networks(), v4, v6, l.ValueToMetric,
				l.ShareThreshold)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"domain: [":                      "x.yaml:1",
		"domain: d\nkez: 1":              `x.yaml:2:1: unknown key "kez"`,
		"a: &a {domain: d}\n<<: *a":      "x.yaml:1",
		"base: 1\ndomain: d\n":           "x.yaml:1",
		"domain: d\n<<: {charge: leaf}":  "<< is not understood here",
		"domain: d\ndescriptors: [{}]\n": "x.yaml:2:15: the descriptor has no key",
	} {
		if list, err := domains([]filerules.File{{Name: "x.yaml", Data: []byte(text)}}, compile.Options{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
}
