package rules_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

func TestProblemText(t *testing.T) {
	tests := []struct {
		problem rules.Problem
		want    string
	}{
		{rules.Problem{rules.Pos{"a.yaml", 3, 5}, "x is odd", "make it even"}, "a.yaml:3:5: x is odd; make it even"},
		{rules.Problem{rules.Pos{"a.yaml", 3, 0}, "x is odd", ""}, "a.yaml:3: x is odd"},
		{rules.Problem{rules.Pos{"a.yaml", 0, 0}, "x is odd", ""}, "a.yaml: x is odd"},
		{rules.Problem{rules.Pos{}, "x is odd", "make it even"}, "x is odd; make it even"},
	}
	for _, test := range tests {
		if got := test.problem.String(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// The error of a refused set can be taken apart again, and says at most 50
// lines.
func TestProblemsError(t *testing.T) {
	for lines, want := range map[int]string{
		1:   "a.yaml:3:3: a descriptor is a whole number, not a map; write `- key: ...`",
		50:  "a.yaml:52:3: a descriptor is a whole number, not a map; write `- key: ...`",
		51:  "and 1 more",
		999: "and 949 more",
	} {
		_, _, err := filerules.Load([]filerules.File{{
			Name: "a.yaml",
			Data: []byte("domain: d\ndescriptors:\n" + strings.Repeat("- 5\n", lines)),
		}}, compile.Options{})
		var problems rules.Problems
		if !errors.As(err, &problems) || len(problems) != lines {
			t.Fatalf("%d wrong lines: %d problems", lines, len(problems))
		}
		said := strings.Split(err.Error(), "\n")
		if len(said) != min(lines, 51) || said[len(said)-1] != want {
			t.Errorf("%d wrong lines: %d lines, the last %q, want %q", lines, len(said), said[len(said)-1], want)
		}
	}
}

func TestProblemsSort(t *testing.T) {
	at := func(file string, line, col int, what string) rules.Problem {
		return rules.Problem{rules.Pos{file, line, col}, what, ""}
	}
	want := rules.Problems{
		at("a", 0, 0, "no line"), at("a", 1, 2, ""), at("a", 1, 10, "first"), at("a", 1, 10, "again"), at("a", 2, 1, ""),
		at("b", 1, 1, ""),
	}
	got := rules.Problems{want[5], want[2], want[4], want[0], want[3], want[1]}
	got.Sort()
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestRuleString pins the line that operators' tools read, which is that of
// envoyproxy/ratelimit unless there is what that does not know.
func TestRuleString(t *testing.T) {
	set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(`domain: d
descriptors:
- {key: a, value: b, shadow_mode: yes, rate_limit: {unit: week, requests_per_unit: 5, unit_multiplier: 1}}
- {key: c, quota_mode: yes, rate_limit: {unit: day, requests_per_unit: 6, unit_multiplier: 7}}
- {key: e, rate_limit: {unlimited: true, requests_per_unit: 8}}
- {key: f, rate_limit: {period: 90s, requests_per_unit: 9, algorithm: fixed_window, count_blocked: true}}
- {key: g, rate_limit: {unit: day, requests_per_unit: 9, count_blocked: false}}
- {key: h, rate_limit: {period: 500ms, requests_per_unit: 9, algorithm: gcra, count_blocked: true, min_interval: 5ms}}
- {key: i, rate_limit: {unit: hour, unit_multiplier: 2, requests_per_unit: 9, algorithm: gcra, burst: 0}}
- {key: j, rate_limit: {unit: hour, requests_per_unit: 9, algorithm: sliding_window, min_interval: 1h}}
`)}})
	for i, want := range []string{
		"d.a_b: unit=WEEK requests_per_unit=5, shadow_mode: true, quota_mode: false",
		"d.c: unit=DAY requests_per_unit=6, shadow_mode: false, quota_mode: true, unit_multiplier: 7",
		"d.e: unlimited, shadow_mode: false, quota_mode: false",
		"d.f: unit=SECOND requests_per_unit=9, shadow_mode: false, quota_mode: false, unit_multiplier: 90, period: 1m30s",
		"d.g: unit=DAY requests_per_unit=9, shadow_mode: false, quota_mode: false, count_blocked: false",
		"d.h: unit=UNKNOWN requests_per_unit=9, shadow_mode: false, quota_mode: false, period: 500ms, algorithm: gcra, " +
			"burst: 8, min_interval: 5ms, count_blocked: true",
		"d.i: unit=HOUR requests_per_unit=9, shadow_mode: false, quota_mode: false, unit_multiplier: 2, algorithm: gcra, " +
			"burst: 0",
		"d.j: unit=HOUR requests_per_unit=9, shadow_mode: false, quota_mode: false, algorithm: sliding_window, " +
			"min_interval: 1h",
	} {
		if got := set.Rules()[i].String(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
