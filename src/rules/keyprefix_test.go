package rules_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/filerules"
)

const prefixRules = `
domain: "d_1"
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 1}
  descriptors:
  - {key: path, rate_limit: {unit: day, requests_per_unit: 1}}
---
domain: list
rules:
- match: {path: /a}
  per: [user]
  rate_limit: {unit: day, requests_per_unit: 1}
- match: {path: /b*}
  per: [ip, user]
  rate_limit: {unit: day, requests_per_unit: 2}
- match: {user: bob}
  per: [user]
  rate_limit: {unit: day, requests_per_unit: 3}
- match: {op: x}
  per: [actor]
  rate_limit: {algorithm: first_hit_window, unit: day, requests_per_unit: 5}
- match: {}
  per: [path]
  rate_limit: {unit: day, requests_per_unit: 4}
`

// The prefixes of entries are those that begin the keys of matching requests, and no others.
func TestKeyPrefixes(t *testing.T) {
	t.Parallel()
	files := []filerules.File{{Name: "conf/my_limits.yaml", Data: []byte(treeText)}}
	for i, text := range strings.Split(prefixRules, "---\n") {
		files = append(files, filerules.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)})
	}
	set, _, err := filerules.Load(files, compile.Options{PeerKey: divvyrules.PeerKey})
	if err != nil {
		t.Fatal(err)
	}
	plain, escaped := rules.KeyFormat{Prefix: "p:"}, rules.KeyFormat{Prefix: "p:", EscapeKeys: true}
	for _, tt := range []struct {
		format              *rules.KeyFormat
		domain, entries     string
		want                string // prefixes, with their tags in braces
		matching, different string // requests whose keys begin with a prefix, and others; separated by blanks
	}{
		{&plain, "d_1", "user=al", "p:d_1_user_al", "user=al user=alex user=alex,path=/x", "user=bob user=a"},
		{&escaped, "d_1", "user=a_l", "p:d%5F1_user_a%5Fl", "user=a_l user=a_lx,path=/x", "user=a user=al"},
		{&escaped, "d_1", "user=", "p:d%5F1_user_", "user=al user=", ""},
		{
			&escaped, "d_1", "user=alex,path=/x", "{p:d%5F1_user_alex_}path_/x", "user=alex,path=/x user=alex,path=/xyz",
			"user=alex user=alexa,path=/x user=alex,path=/y",
		},
		{&plain, "list", "user=al", "error: rule list", "", ""},
		{
			&plain, "list", "path=/a,user=al", "p:list_:path_/a_:user_al", "path=/a,user=alex user=al,path=/a",
			"path=/b,ip=1,user=al",
		},
		{
			&plain, "list", "path=/b1,ip=1,user=al", "p:list_:path_/b*_:ip_1_user_al", "path=/b1,ip=1,user=alex",
			"path=/b1,ip=2,user=alex",
		},
		{&plain, "list", "path=/b1,user=al", "error: rule list", "", ""},
		{&plain, "list", "path=/z", "p:list_::path_/z", "path=/z", "path=/a,user=al"},
		{&plain, "list", "unknown=x", "", "", ""},
		{
			&plain, "my_limits", "user=al", "p:my%5Flimits_user_al {p:my%5Flimits_user_}al", "user=alex user=,alex=trade",
			"user=eve,trade= other=",
		},
		{
			&plain, "my_limits", "user=,alex=", "{p:my%5Flimits_user_alex_} p:my%5Flimits_user_alex_ {p:my%5Flimits_user_}alex_",
			"user=,alex=trade", "user=eve,trade=",
		},
		{&plain, "list", "op=x,actor=me", "divvy:op=x:me", "op=x,actor=me op=x,actor=men", "op=x,actor=you"},
	} {
		d := set.Domain([]byte(tt.domain))
		prefixes, err := tt.format.KeyPrefixes(d, parseEntries(tt.entries))
		var got []string
		for _, p := range prefixes {
			text := string(p.Text)
			if p.TagLength > 0 {
				text = "{" + text[:p.TagLength] + "}" + text[p.TagLength:]
			}
			got = append(got, text)
		}
		if want, isError := strings.CutPrefix(tt.want, "error: "); isError {
			if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "add ip=<value>") {
				t.Errorf("%s: %v", tt.entries, err)
			}
			continue
		}
		if joined := strings.Join(got, " "); err != nil || joined != tt.want {
			t.Errorf("%s: %s, %v, want %s", tt.entries, joined, err, tt.want)
			continue
		}
		begins := func(request string) bool {
			entries := parseEntries(request)
			key, tag := tt.format.AppendKey(nil, d, lastLimit(find(d, entries)), entries)
			for _, p := range prefixes {
				if bytes.HasPrefix(key, p.Text) && (p.TagLength == tag || p.TagLength == 0 && tag >= len(p.Text)) {
					return true
				}
			}
			return false
		}
		for request := range strings.FieldsSeq(tt.matching) {
			if !begins(request) {
				t.Errorf("%s: no prefix of %s", tt.entries, request)
			}
		}
		for request := range strings.FieldsSeq(tt.different) {
			if begins(request) {
				t.Errorf("%s: a prefix of %s", tt.entries, request)
			}
		}
	}
}
