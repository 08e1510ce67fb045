package divvy

import (
	"testing"

	"ratelimit/src/limiter"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

// If exactly one ordered list is loaded, it decides HITs that name no domain.
func TestOnlyList(t *testing.T) {
	const tree = "domain: tree\ndescriptors:\n  - key: a\n    rate_limit: {unit: year, requests_per_unit: 1}\n"
	const list = "\nrules:\n  - match: {}\n    rate_limit: {unlimited: true, requests_per_unit: 7}\n"
	const none = "ERR unknown \"No rules are loaded for the domain divvy.\"\n"
	l := limiter.New(limiter.Config{})
	addr := start(t, build(t, Config{Limiter: l, Domain: "divvy", DomainKey: "of", DomainFromOnlyList: true}))
	for _, tt := range []struct{ first, second, said, answered string }{
		{tree, "domain: other" + list, "HIT\n", "OK true 7 0\n"},
		{tree, "domain: other" + list, "HIT\nHIT of=divvy\n", "OK true 7 0\n" + none},
		{tree, "", "HIT\n", none},
		{"domain: one" + list, "domain: other" + list, "HIT\n", none},
		{"domain: one" + list, "domain: divvy" + list, "HIT of=one\nHIT\n", "OK true 7 0\nOK true 7 0\n"},
	} {
		files := []filerules.File{{Name: "first.yaml", Data: []byte(tt.first)}}
		if tt.second != "" {
			files = append(files, filerules.File{Name: "second.yaml", Data: []byte(tt.second)})
		}
		set := limitertest.Load(t, files)
		l.UseRules(set)
		if got := say(t, addr, tt.said); got != tt.answered {
			t.Errorf("%q%q: %q is answered %q, want %q", tt.first, tt.second, tt.said, got, tt.answered)
		}
	}
}

// Rule files of divvy's own over its own protocol: the example, and what its
// documentation promises beyond that.
func TestRuleFilesOfDivvy(t *testing.T) {
	const promised = `
[a=* b=x*y]
creditLimit = 1
resetSeconds = 10
actorField = a
matchPolicy = canary
[b=x*y a=*]
creditLimit = 1
resetSeconds = 10
actorField = a
[free=yes]
creditLimit = 5
resetSeconds = 0
[default]
creditLimit = 2
resetSeconds = 10
matchPolicy = canary
`
	example := testfiles.Read(t, "../../../examples/divvy/example-config.ini")
	set := limitertest.Load(t, []filerules.File{
		{Name: "promised.ini", Data: []byte(promised)},
		{Name: "example.ini", Data: example},
	})
	l := decide(t, limiter.Config{})
	l.UseRules(set)
	for _, tt := range []struct{ domain, said, answered string }{
		{
			"promised", "HIT b=x-y a=1\nHIT a=1 b=x-y\nHIT b=xy a=2\nHIT b=xyz a=2\nHIT b=xy\nHIT free=no\nHIT free=yes\nHIT " +
				"free=yes b=xy\n",
			"OK true 0 10\nOK false 0 10\nOK true 0 10\nOK true 1 10\nOK true 0 10\nOK false 0 10\nOK true 5 0\nOK true 5 0\n",
		},
		{
			"example", "HIT method=POST path=/cakes/birthday user=ada\nHIT path=/cakes/birthday user=ada method=POST\nHIT " +
				"method=POST path=/cakes/birthday\nHIT method=GET path=/\n" +
				"HIT method=POST path=/cookies/special ip=1\nHIT method=POST path=/cookies/special user=rosa\nHIT method=POST " +
				"path=/printers/plotter user=rosa\n",
			"OK true 0 31536000\nOK false 0 31536000\nOK true 0 31536000\nOK false 0 -1\nOK true 9 60\nOK true 999 60\nOK " +
				"false 0 -1\n",
		},
	} {
		addr := start(t, build(t, Config{Limiter: l, Domain: tt.domain}))
		if got := say(t, addr, tt.said); got != tt.answered {
			t.Errorf("%s: got %q, want %q", tt.domain, got, tt.answered)
		}
	}
}
