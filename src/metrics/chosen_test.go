package metrics

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/limiter"
)

// A few unknown domains have names of their own. Thousands that a caller makes up are
// one series, and what they count adds up.
func TestUnknownDomains(t *testing.T) {
	set := load(t, seriesRules)
	r := New(Config{})
	r.UseRules(set)
	ask := func(domain string) {
		r.Record(&limiter.Request{Domain: []byte(domain)}, &limiter.Answer{RuleSet: set, Statuses: make([]limiter.Status, 2)})
	}
	for range 3 {
		ask("nowhere")
	}
	const many = 30_000
	for i := range many {
		ask(fmt.Sprintf("made-up-%d", i))
	}
	ask(strings.Repeat("x", 1<<20))
	ask("nowhere")
	named, sum := 0, int64(0)
	for _, s := range r.Stats() {
		if strings.HasSuffix(s.Name, ".domain_not_found") {
			named++
			sum += s.Value
		}
	}
	if named != maxUnknownDomains+1 || sum != 2*(many+5) {
		t.Errorf("%d series that add up to %d, want %d and %d", named, sum, maxUnknownDomains+1, 2*(many+5))
	}
	if n := value(r, rulePrefix+"nowhere.domain_not_found"); n != 8 {
		t.Errorf("nowhere was asked for %d times, want 8", n)
	}
	if n := value(r, rulePrefix+otherDomainsName+".domain_not_found"); n != 2*(many+1-maxUnknownDomains+1) {
		t.Errorf("the others were asked for %d times", n)
	}
	if n := testing.AllocsPerRun(100, func() { r.unknownDomains.counterOf([]byte("made-up-29999")) }); n != 0 {
		t.Errorf("%v allocations for a domain that shares a counter", n)
	}
}

// Whatever callers send, a name has no tag of theirs, which receivers find anywhere in
// it. Other names stay as envoyproxy/ratelimit has them.
func TestForgedTags(t *testing.T) {
	t.Parallel()
	tests := []struct{ key, want string }{
		{"d.user_a", "d.user_a"},
		{"d.user_.__role=admin", "d.user_._role=admin"},
		{"__role=admin", "_role=admin"},
		{"d.user_a.__x=1.__y=2", "d.user_a._x=1._y=2"},
		{"d.user_a.____x=1", "d.user_a._x=1"},
		{"d.user_a.:_x=1", "d.user_a._x=1"},
		{"d.user_a.|\n_x=1", "d.user_a._x=1"},
		{"d.user_1.2.3.4.__x=1", "d.user_1_2_3_4._x=1"},
		{"d.__proto__", "d.__proto__"},
		{"d.user_a__x=1", "d.user_a__x=1"},
		{"d.user_.__.__x=1", "d.user_.__._x=1"},
	}
	for _, test := range tests {
		for _, prefix := range []string{clientPrefix(test.key), clientPrefix(test.key) + "domain_not_found"} {
			if got := strings.TrimPrefix(prefix, rulePrefix); !strings.HasPrefix(got, test.want+".") {
				t.Errorf("%q: got %q, want %q", test.key, got, test.want)
			}
			noTag(t, prefix)
		}
	}
}

func noTag(t *testing.T, name string) {
	t.Helper()
	for part := range strings.SplitSeq(name, ".") {
		if strings.HasPrefix(part, "__") && strings.Contains(part, "=") {
			t.Errorf("%q has a tag", name)
		}
	}
}

func FuzzForgedTags(f *testing.F) {
	f.Add("d.user_.__role=admin")
	f.Add("__.1.2.3.4.:_=\x00.__")
	f.Fuzz(func(t *testing.T, key string) {
		noTag(t, clientPrefix(boundedName([]byte(key))))
		noTag(t, clientPrefix(key)+"domain_not_found")
	})
}
