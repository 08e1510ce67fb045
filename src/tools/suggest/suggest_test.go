package suggest

import (
	"fmt"
	"net"
	"net/netip"
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
		Print(&out, false, set, nil, nil)
		if shown := strings.Contains(out.String(), "curl"); shown != (tt.want != "") {
			t.Errorf("%s: printed %s", tt.name, fmt.Sprint(out.String()))
		}
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	set, _, err := loading.Load([]loading.RuleFile{{Name: "a.yaml", Data: []byte("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 2}}]")}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tcp := func(address string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)) }
	for _, tt := range []struct {
		http, debug net.Addr
		want        []string
	}{
		{tcp("[::]:8080"), tcp("127.0.0.1:6070"), []string{" localhost:8080/json ", "in a browser: http://localhost:6070/\n"}},
		{tcp("10.0.0.7:80"), tcp("[2001:db8::1]:6070"), []string{" 10.0.0.7:80/json ", "in a browser: http://[2001:db8::1]:6070/\n"}},
		{nil, nil, []string{" localhost/json ", "'\n\nCtrl-C stops"}},
	} {
		var out strings.Builder
		Print(&out, false, set, tt.http, tt.debug)
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v and %v: no %q in\n%s", tt.http, tt.debug, want, &out)
			}
		}
	}
}
