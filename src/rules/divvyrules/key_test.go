package divvyrules_test

import (
	"strings"
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/filerules"
)

// TestPeerKey checks that limits that divvy has too get its keys, and others keys of this service.
func TestPeerKey(t *testing.T) {
	files := []filerules.File{
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
	}
	set, _, err := filerules.Load(files, compile.Options{PeerKey: divvyrules.PeerKey})
	if err != nil {
		t.Fatal(err)
	}
	keys := rules.KeyFormat{Prefix: "prefix"}
	request := []rules.Entry{
		{Key: []byte("m"), Value: []byte("GET")},
		{Key: []byte("path"), Value: []byte("/p/a")},
		{Key: []byte("ip"), Value: []byte("9")},
		{Key: []byte("b"), Value: []byte("x:{y}")},
	}
	want := map[string]string{
		"kitchen.ip_*.m_GET.path_/p/*.canary": "divvy:ip=* m=GET path=/p/*:9:3:60",
		"kitchen.ip_*.m_GET.path_/p/*":        "divvy:ip=* m=GET path=/p/*:9:3:60",
		"kitchen.m_PUT":                       "", // nothing is counted
		"kitchen.default":                     "divvy:::7:30",
		"list.a_two":                          "",
		"list.a_short":                        "",
		"list.a_gcra":                         "",
		"list.a_blocked":                      "",
		"list.default":                        "divvy::x:{y}:1:10",
	}
	for _, r := range set.Rules() {
		key, tag := keys.AppendKey([]byte("before"), set.Domain([]byte(r.Domain)), r, request)
		got, ok := strings.CutPrefix(string(key), "before")
		if !ok || want[r.FullName] == "" {
			if !ok || r.PeerKey != nil || !strings.HasPrefix(got, "prefix"+r.Domain+"_") {
				t.Errorf("%s has the key %s", r.FullName, got)
			}
		} else if got != want[r.FullName] || tag != len(got) {
			t.Errorf("%s: %q with a tag of %d bytes, want %q", r.FullName, got, tag, want[r.FullName])
		}
		delete(want, r.FullName)
	}
	if len(want) > 0 {
		t.Errorf("there are no rules %v", want)
	}
}
