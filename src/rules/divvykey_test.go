package rules_test

import (
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

// The keys of divvy, for those limits that it has.
func TestDivvyKeys(t *testing.T) {
	set, _, err := filerules.Load([]filerules.File{
		{Name: "kitchen.ini", Data: []byte(`
[m=GET path=/p/* ip=*]
creditLimit=3
resetSeconds=60
actorField=ip
matchPolicy=canary

[path=/p/* m=GET ip=*]
creditLimit=3
resetSeconds=60
actorField=ip

[m=PUT]
creditLimit=0

[default]
creditLimit=7
resetSeconds=30
`)},
		{Name: "list.yaml", Data: []byte(`
domain: list
rules:
- {match: {a: two}, per: [b, c], rate_limit: {algorithm: first_hit_window, period: 10s, requests_per_unit: 1}}
- {match: {a: short}, rate_limit: {algorithm: first_hit_window, period: 1500ms, requests_per_unit: 1}}
- {match: {a: gcra}, rate_limit: {algorithm: gcra, period: 10s, requests_per_unit: 1}}
- {match: {a: blocked}, rate_limit: {algorithm: first_hit_window, period: 10s, requests_per_unit: 1, count_blocked: true}}
- {match: {}, per: [b], rate_limit: {algorithm: first_hit_window, period: 10s, requests_per_unit: 1}}
`)},
	}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	keys := rules.KeyFormat{Prefix: "prefix", UseDivvyKeys: true}
	request := parseEntries("m=GET,path=/p/a,ip=9,b=x:{y}")
	for _, tt := range []struct{ domain, rule, want string }{
		{"kitchen", "ip_*.m_GET.path_/p/*.canary", "divvy:ip=* m=GET path=/p/*:9:3:60"},
		{"kitchen", "ip_*.m_GET.path_/p/*", "divvy:ip=* m=GET path=/p/*:9:3:60"},
		{"kitchen", "m_PUT", ""}, // nothing is counted
		{"kitchen", "default", "divvy:::7:30"},
		{"list", "a_two", ""},
		{"list", "a_short", ""},
		{"list", "a_gcra", ""},
		{"list", "a_blocked", ""},
		{"list", "default", "divvy::x:{y}:1:10"},
	} {
		found := false
		for _, r := range set.Rules() {
			if r.FullName != tt.domain+"."+tt.rule {
				continue
			}
			found = true
			key, tag := keys.AppendKey([]byte("before"), set.Domain([]byte(tt.domain)), r, request)
			got, ok := strings.CutPrefix(string(key), "before")
			switch {
			case tt.want == "" && (keys.WritesDivvyKey(r) || strings.HasPrefix(got, "divvy:")):
				t.Errorf("%s has the key %s", r.FullName, got)
			case tt.want != "" && (!keys.WritesDivvyKey(r) || !ok || got != tt.want || tag != len(got)):
				t.Errorf("%s: %q with a tag of %d bytes, want %q", r.FullName, got, tag, tt.want)
			}
			plain := rules.KeyFormat{}
			if plain.WritesDivvyKey(r) {
				t.Errorf("%s has divvy's key though Divvy is off", r.FullName)
			}
		}
		if !found {
			var names []string
			for _, r := range set.Rules() {
				names = append(names, r.FullName)
			}
			t.Fatalf("no rule %s.%s among %q", tt.domain, tt.rule, names)
		}
	}
}
