package rules_test

import (
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

func parseEntries(text string) (entries []rules.Entry) {
	for pair := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(pair, "=")
		entries = append(entries, rules.Entry{[]byte(key), []byte(value)})
	}
	return entries
}

// nameRules have levels of all kinds.
const nameRules = `
domain: d
descriptors:
- {key: plain, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: detailed, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: shown, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: wild, value: a*, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: any, value: "*", value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: shared, value: a*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: both, value: a*, share_threshold: true, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: detshared, value: a*, share_threshold: true, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: "st*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: "w*", value: x, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: "p*h", value: q, rate_limit: {unit: day, requests_per_unit: 1}}
- key: top
  value_to_metric: true
  descriptors:
  - key: path
    value: /f/*
    descriptors:
    - {key: user, value: x, rate_limit: {unit: day, requests_per_unit: 1}}
    - {key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- key: inner
  value: b*
  share_threshold: true
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: det, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - key: more
    value_to_metric: true
    descriptors:
    - {key: "k*", rate_limit: {unit: day, requests_per_unit: 1}}
`

// What a hit is counted under, in the store and in the statistics.
func TestNames(t *testing.T) {
	set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(nameRules)}})
	tests := []struct {
		entries string
		key     string // in the store
		name    string // of the counters
	}{
		{"plain=1", "plain_1_", "d.plain"},
		{"detailed=1", "detailed_1_", "d.detailed_1"},
		{"detailed=", "detailed__", "d.detailed_"},
		{"shown=1", "shown_1_", "d.shown_1"},
		{"shown=", "shown__", "d.shown"},
		{"wild=abc", "wild_abc_", "d.wild_abc"},
		{"any=", "any__", "d.any"},
		{"shared=abc", "shared_a*_", "d.shared_a*"},
		{"shared=a", "shared_a*_", "d.shared_a*"},
		{"both=abc", "both_a*_", "d.both_a*"},
		{"detshared=abc", "detshared_a*_", "d.detshared_a*"},
		{"start=x", "start_st*_", "d.start_st*"},
		{"path=q", "path_q_", "d.path_p*h_q"},
		{"wx=1", "", ""}, // w*_x does not match wx_1
		{"w1_2=x", "w1_2_x_", "d.w1_2_x"},
		{"top=1,path=/f/1,user=x", "top_1_path_/f/1_user_x_", "d.top_1.path_/f/*.user_x"},
		{"top=,path=/f/1,user=x", "top__path_/f/1_user_x_", "d.top.path_/f/*.user_x"},
		{"top=1,path=/f/1,user=y", "top_1_path_/f/1_user_y_", "d.top_1.path_/f/1.user_y"},
		{"inner=b1,user=y", "inner_b*_user_y_", "d.inner_b*.user"},
		{"inner=b1,det=y", "inner_b*_det_y_", "d.inner_b*.det_y"},
		{"inner=b1,det=", "inner_b*_det__", "d.inner_b*.det"},
		{"inner=b1,more=m,key=v", "inner_b*_more_m_key_v_", "d.inner_b*.more_m.key_k*"},
	}
	for _, tt := range tests {
		entries := parseEntries(tt.entries)
		domain := set.Domain([]byte("d"))
		rule := lastLimit(find(domain, entries))
		if rule == nil {
			if tt.key != "" {
				t.Errorf("%s: no rule", tt.entries)
			}
			continue
		}
		if got, _ := new(rules.KeyFormat).AppendKey(nil, domain, rule, entries); string(got) != "d_"+tt.key {
			t.Errorf("%s: kept under %s, want d_%s", tt.entries, got, tt.key)
		}
		if got := string(rule.AppendMetricName(nil, entries, '.')); got != tt.name {
			t.Errorf("%s: counted as %s, want %s", tt.entries, got, tt.name)
		}
	}
}
