package suggest

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/loading"
)

func TestSoonest(t *testing.T) {
	rule := func(limit string) string {
		return "domain: d\ndescriptors:\n" + limit
	}
	for _, tt := range []struct{ name, text, want string }{
		{"the smallest that lets something pass", rule(`
  - {key: a, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: c, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: d, rate_limit: {unit: second, requests_per_unit: 2}}
  - {key: e, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: f, rate_limit: {unlimited: true}}`), "d.b"},
		{"not one that another takes", rule(`
  - {key: a, value: "*", rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: a, value: "1*", rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: a, rate_limit: {unit: day, requests_per_unit: 2}}`), "d.a_*"},
		{"one level rather than two", rule(`
  - key: a
    descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 2}}]
  - {key: c, rate_limit: {unit: day, requests_per_unit: 5}}`), "d.c"},
		{"none", rule(`
  - {key: "it's", rate_limit: {unit: day, requests_per_unit: 2}}`), ""},
	} {
		set, _, err := loading.Load([]loading.RuleFile{{Name: "a.yaml", Data: []byte(tt.text)}}, rules.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if r, _ := bestExample(set); r != nil {
			got = r.FullName
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		var out strings.Builder
		Print(&out, false, set, nil)
		if shown := strings.Contains(out.String(), "curl"); shown != (tt.want != "") {
			t.Errorf("%s: printed %s", tt.name, fmt.Sprint(out.String()))
		}
	}
}
