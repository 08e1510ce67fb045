package divvy

import (
	"os"
	"testing"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

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
	example, err := os.ReadFile("../../../examples/divvy/example-config.ini")
	if err != nil {
		t.Fatal(err)
	}
	set, _, err := rules.Load([]rules.File{{Name: "promised.ini", Data: []byte(promised)}, {Name: "example.ini", Data: example}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := decide(t, limiter.Config{})
	l.Use(set)
	for _, tt := range []struct{ domain, said, answered string }{
		{
			"promised", "HIT b=x-y a=1\nHIT a=1 b=x-y\nHIT b=xy a=2\nHIT b=xyz a=2\nHIT b=xy\nHIT free=no\nHIT free=yes\nHIT free=yes b=xy\n",
			"OK true 0 10\nOK false 0 10\nOK true 0 10\nOK true 1 10\nOK true 0 10\nOK false 0 10\nOK true 5 0\nOK true 5 0\n",
		},
		{
			"example", "HIT method=POST path=/cakes/birthday user=ada\nHIT path=/cakes/birthday user=ada method=POST\nHIT method=POST path=/cakes/birthday\nHIT method=GET path=/\n" +
				"HIT method=POST path=/cookies/special ip=1\nHIT method=POST path=/cookies/special user=rosa\nHIT method=POST path=/printers/plotter user=rosa\n",
			"OK true 0 31536000\nOK false 0 31536000\nOK true 0 31536000\nOK false 0 -1\nOK true 9 60\nOK true 999 60\nOK false 0 -1\n",
		},
	} {
		addr := start(t, build(t, Config{Limiter: l, Domain: tt.domain}))
		if got := say(t, addr, tt.said); got != tt.answered {
			t.Errorf("%s: got %q, want %q", tt.domain, got, tt.answered)
		}
	}
}
