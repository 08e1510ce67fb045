package rules_test

import (
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// What a request is charged to: each limit with its key in the store and its
// name in the statistics.
func TestCharges(t *testing.T) {
	const text = `
domain: d
charge: path
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 1}
  descriptors:
  - key: path
    value: /f/*
    share_threshold: true
    rate_limits:
    - {unit: second, requests_per_unit: 1}
    - {unit: day, requests_per_unit: 1, name: daily}
    descriptors:
    - {key: size, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
    - {key: none}
- key: ip
  detailed_metric: true
  rate_limits:
  - {unit: second, requests_per_unit: 1}
  - {unit: day, requests_per_unit: 1}
  descriptors:
  - {key: port, value_to_metric: true, rate_limits: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 1, name: daily}]}
- {key: only, rate_limits: [{unit: day, requests_per_unit: 1, name: one}]}
`
	set, warnings, err := filerules.Load([]filerules.File{{Name: "a.yaml", Data: []byte(text)}}, compile.Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	d := set.Domain([]byte("d"))
	var keys rules.KeyFormat
	for _, tt := range []struct{ entries, want string }{
		{"user=a", "d_user_a_ d.user"},
		{"user=a,path=/f/1", "d_user_a_ d.user, d_user_a_path_/f/*_ d.user.path_/f/*, d_user_a_path_/f/*_ " +
			"d.user.path_/f/*.daily"},
		{"user=a,path=/f/1,none=x", "d_user_a_ d.user, d_user_a_path_/f/*_ d.user.path_/f/*, d_user_a_path_/f/*_ " +
			"d.user.path_/f/*.daily"},
		{"user=a,path=/f/1,size=9", "d_user_a_ d.user, d_user_a_path_/f/*_ d.user.path_/f/*, d_user_a_path_/f/*_ " +
			"d.user.path_/f/*.daily, " +
			"d_user_a_path_/f/*_size_9_ d.user_a.path_/f/*.size_9"},
		{"user=a,path=/g", ""},
		{"ip=1", "d_ip_1_ d.ip_1, d_ip_1_ d.ip_1.2"},
		{"ip=1,port=2", "d_ip_1_ d.ip_1, d_ip_1_ d.ip_1.2, d_ip_1_port_2_ d.ip.port_2, d_ip_1_port_2_ d.ip.port_2.daily"},
		{"only=1", "d_only_1_ d.only"},
		{"none=1", ""},
	} {
		request := parseEntries(tt.entries)
		var got []string
		for _, r := range charged(find(d, request)) {
			key, tag := keys.AppendKey(nil, d, r, request)
			_, first := keys.AppendKey(nil, d, nil, request[:1])
			if tag != first {
				t.Errorf("%s: the tag of %s has %d bytes, want %d", tt.entries, key, tag, first)
			}
			got = append(got, string(key)+" "+string(r.AppendMetricName(nil, request, '.')))
		}
		if s := strings.Join(got, ", "); s != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.entries, s, tt.want)
		}
	}
	if got := strings.Join(d.DescriptorNames,
		" "); got != "d.user d.user.path_/f/* d.user.path_/f/*.daily d.user.path_/f/*.size d.user.path_/f/*.none d.ip "+
		"d.ip.2 d.ip.port d.ip.port.daily d.only" {
		t.Errorf("the descriptors are %s", got)
	}
}

// A rule that is replaced is dropped alone: other levels and items stay.
func TestReplacedCharges(t *testing.T) {
	const text = `
domain: d
charge: path
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 1, name: user}
  descriptors:
  - {key: vip, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: user}]}}
  - key: action
    rate_limits:
    - {unit: second, requests_per_unit: 1, name: fast}
    - {unit: day, requests_per_unit: 1, name: slow}
- {key: relief, rate_limits: [{unit: second, requests_per_unit: 1, replaces: [{name: fast}]}, {unit: day, requests_per_unit: 1, replaces: [{name: user}]}]}
- {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: a, replaces: [{name: b}]}}
- {key: b, rate_limit: {unit: day, requests_per_unit: 1, name: b, replaces: [{name: c}]}}
- {key: c, rate_limit: {unit: day, requests_per_unit: 1, name: c}}
- {key: u, rate_limit: {unlimited: true, name: b, replaces: [{name: c}]}}
- {key: x, rate_limit: {unit: day, requests_per_unit: 1}}
`
	set, warnings, err := filerules.Load([]filerules.File{{Name: "a.yaml", Data: []byte(text)}}, compile.Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	d := set.Domain([]byte("d"))
	if !d.HasReplacingRules {
		t.Fatal("nothing replaces anything")
	}
	var p rules.ReplacedNames
	for _, tt := range []struct{ request, want string }{
		{"user=1", "d.user"},
		{"user=1,action=1", "d.user d.user.action d.user.action.slow"},
		{"user=1,vip=1", "d.user.vip"},
		{"user=1,vip=1 user=1,action=1", "d.user.vip d.user.action d.user.action.slow"},
		{"relief=1 user=1,action=1", "d.relief d.relief.2 d.user.action.slow"},
		{"a=1", "d.a"},
		{"a=1 b=1", "d.a"},
		{"b=1 a=1", "d.a"},
		{"a=1 b=1 c=1", "d.a"}, // b is replaced, and replaces c nevertheless
		{"b=1 c=1", "d.b"},
		{"c=1 x=1", "d.c d.x"},
		{"u=1 a=1 b=1 c=1", "d.u d.a"}, // Unlimited rules are never replaced.
	} {
		var all []*rules.Rule
		for one := range strings.FieldsSeq(tt.request) {
			all = append(all, charged(find(d, parseEntries(one)))...)
		}
		p.Reset()
		for _, r := range all {
			p.AddReplacedBy(r)
		}
		var got []string
		for _, r := range all {
			if !p.IsReplaced(r) {
				got = append(got, r.FullName)
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: charged to %s, want %s", tt.request, s, tt.want)
		}
	}
}

// What a match says of its descriptor.
func TestMatches(t *testing.T) {
	const text = `
domain: d
on_reject: none
descriptors:
- key: list
  quota_mode: true
  shadow_mode: true
  metadata: {a: b}
  rate_limits: [{unit: second, requests_per_unit: 1}, {algorithm: gcra, period: 90s, requests_per_unit: 5}]
- key: path
  charge: path
  on_reject: each
  rate_limit: {unit: day, requests_per_unit: 1}
  descriptors:
  - {key: none, quota_mode: true}
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
`
	set, warnings, err := filerules.Load([]filerules.File{{Name: "a.yaml", Data: []byte(text)}}, compile.Options{})
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	d := set.Domain([]byte("d"))
	for _, tt := range []struct {
		request, key             string
		index, limits            int
		quota, shadow, allOrNone bool
	}{
		{"list=1", "d.list", -1, 2, true, true, true},
		{"path=1", "d.path", 2, 1, false, false, false},
		{"path=1,none=1", "d.path.none", -1, 1, true, false, false},
		{"path=1,one=1", "d.path.one", 3, 2, false, false, false},
	} {
		r := find(d, parseEntries(tt.request))
		index := -1
		if own := r.OwnLimit(); own != nil {
			index = own.Index
		}
		if r.FullName != tt.key || index != tt.index || len(r.Limits) != tt.limits ||
			len(r.Path) != strings.Count(tt.request, "=") ||
			r.QuotaMode != tt.quota || r.ShadowMode != tt.shadow || r.ChargesAllOrNone != tt.allOrNone ||
			(r.AnswerMetadata != nil) != (tt.key == "d.list") ||
			r.Domain != "d" {
			t.Errorf("%s finds %+v", tt.request, r)
		}
	}
}
