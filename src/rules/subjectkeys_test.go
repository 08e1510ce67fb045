package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/filerules"
)

const subjectRules = `
domain: d_1
descriptors:
- key: user
  rate_limit: &limit {unit: day, requests_per_unit: 1}
  descriptors:
  - {key: action, rate_limit: *limit}
  - {key: action, value: pay, rate_limit: *limit}
- {key: path, value: /pay*, share_threshold: true, rate_limit: *limit}
- {key: ip, count_by_prefix: {v4: 24}, rate_limit: *limit}
---
domain: list
rules:
- match: {path: /a*}
  per: [ip, user]
  rate_limit: {unit: day, requests_per_unit: 1}
- match: {path: /b}
  rate_limit: {unit: day, requests_per_unit: 2}
- match: {op: x}
  per: [actor]
  rate_limit: {algorithm: first_hit_window, unit: day, requests_per_unit: 5}
`

// The keys of a rule whose subjects begin like a pattern are found by their prefix and their form, and no others. Each
// subject is the start of its key.
func TestSubjectKeys(t *testing.T) {
	t.Parallel()
	var files []filerules.File
	for i, text := range strings.Split(subjectRules, "---\n") {
		files = append(files, filerules.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)})
	}
	set, _, err := filerules.Load(files, compile.Options{PeerKey: divvyrules.PeerKey})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		rule, entries string // a * behind the entries is a prefix
		want          string // the form of the keys as with EscapeKeys; empty if the rule has no such subjects
		same, others  string // requests whose keys have the form, and others; separated by blanks
	}{
		{"d_1.user", "user=al*", "d%5F1_user_al*_", "user=al user=alex", "user=bob user=a"},
		{"d_1.user", "user=al", "d%5F1_user_al_", "user=al", "user=alex"},
		{"d_1.user", "user=*", "d%5F1_user_*_", "user=al user=", ""},
		{"d_1.user", "", "d%5F1_user_*_", "user=al user=", "path=/pay"},
		{"d_1.user.action", "user=a_*", "d%5F1_user_a%5F*_action_*_", "user=a_1,action=x", "user=a_1 user=a,action=x"},
		{"d_1.user.action", "user=al", "d%5F1_user_al_action_*_", "user=al,action=x", "user=alex,action=x"},
		{"d_1.user.action_pay", "user=al*", "d%5F1_user_al*_action_pay_", "user=alex,action=pay", "user=alex,action=x"},
		{"d_1.path_/pay*", "path=/p*", "d%5F1_path_path:/pay*_", "path=/pay path=/pay/1", "user=/pay"},
		{"d_1.path_/pay*", "path=/x*", "", "", ""},
		{"d_1.ip", "ip=10.0.*", "d%5F1_ip_:10.0.*_", "ip=10.0.0.1 ip=10.0.7.1", "ip=10.1.0.1"},
		{
			"list.path_/a*", "ip=1,user=al*", "list_:path_/a*_:ip_1_user_al*_:1/24h_fixed_window_", "path=/a,ip=1,user=al",
			"path=/a,ip=2,user=al path=/b",
		},
		{"list.path_/a*", "ip=1", "list_:path_/a*_:ip_1_user_*_:1/24h_fixed_window_", "path=/a,ip=1,user=al", "path=/a,ip=11,user=al"},
		{"list.path_/b", "path=/b", "list_:path_/b_::2/24h_fixed_window_", "path=/b", "path=/a,ip=1,user=al"},
		{"list.op_x", "actor=m*", "divvy:op=x:m*:5:86400", "op=x,actor=me", "op=x,actor=you"},
	} {
		var r *rules.Rule
		for _, rule := range set.Rules() {
			if rule.FullName == tt.rule {
				r = rule
			}
		}
		if r == nil {
			t.Fatalf("no rule %s", tt.rule)
		}
		entries, isPrefix := strings.CutSuffix(tt.entries, "*")
		var list []rules.Entry
		if entries != "" {
			list = parseEntries(entries)
		}
		d := set.Domain([]byte(r.Domain))
		for _, format := range []rules.KeyFormat{{Prefix: "p:"}, {Prefix: "p:", EscapeKeys: true}} {
			k, ok := format.SubjectKeys(d, r, list, isPrefix)
			if !ok || tt.want == "" {
				if ok || tt.want != "" {
					t.Errorf("%s %s: %+v", tt.rule, tt.entries, k)
				}
				continue
			}
			if want := strings.Replace("p:"+tt.want, "p:divvy", "divvy", 1); format.EscapeKeys && k.Form != want {
				t.Errorf("%s %s: form %s, want %s", tt.rule, tt.entries, k.Form, want)
			}
			has := func(request string) bool {
				entries := parseEntries(request)
				limit := lastLimit(find(d, entries))
				key, tag := format.AppendKey(nil, d, limit, entries)
				subject, ok := k.Subject(key)
				starts := strings.HasPrefix(string(key), string(k.Prefix.Text)) &&
					(k.Prefix.TagLength == 0 || k.Prefix.TagLength == tag)
				isStart := strings.HasPrefix(string(key), string(subject)) && !strings.Contains(string(subject), ":1/24h")
				if ok && (!starts || !isStart) {
					t.Errorf("%s %s: key %s, subject %s, prefix %s", tt.rule, tt.entries, key, subject, k.Prefix.Text)
				}
				return ok
			}
			for request := range strings.FieldsSeq(tt.same) {
				if !has(request) {
					t.Errorf("%s %s, escaped %t: not %s", tt.rule, tt.entries, format.EscapeKeys, request)
				}
			}
			for request := range strings.FieldsSeq(tt.others) {
				if has(request) {
					t.Errorf("%s %s, escaped %t: %s, too", tt.rule, tt.entries, format.EscapeKeys, request)
				}
			}
		}
	}
}
