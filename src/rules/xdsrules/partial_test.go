package xdsrules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"
)

// Domains that no bad resource touches take effect, from the first response on.
func TestRefusedInPart(t *testing.T) {
	const problem = "xds resource \"bad\": descriptors[0].rate_limit: the rate_limit has no unit; add `unit: second`, " +
		"minute, hour, day, week, month or year, or `unlimited: true`"
	bad := func(domain string) *configv3.RateLimitConfig {
		return &configv3.RateLimitConfig{
			Name: "bad", Domain: domain,
			Descriptors: []*configv3.RateLimitDescriptor{{Key: "k", RateLimit: &configv3.RateLimitPolicy{}}},
		}
	}
	good := func(domain string, n uint32) *configv3.RateLimitConfig {
		c := limit(domain, n)
		c.Name = "bad"
		return c
	}
	type response struct {
		resources []*configv3.RateLimitConfig
		want      string
	}
	for _, tt := range []struct {
		name         string
		allOrNothing bool
		responses    []response
	}{
		{"from the first on", false, []response{
			{[]*configv3.RateLimitConfig{limit("a", 1), bad("b")}, "a.k=1 refused: " + problem},
			{[]*configv3.RateLimitConfig{limit("a", 2), good("b", 3)}, "a.k=2 b.k=3"},
			{[]*configv3.RateLimitConfig{limit("a", 4), bad("b"), limit("c", 5)}, "a.k=4 b.k=3 c.k=5 refused: " + problem},
			{[]*configv3.RateLimitConfig{bad("b"), limit("c", 5)}, "b.k=3 c.k=5 refused: " + problem},
			{
				[]*configv3.RateLimitConfig{bad("c"), limit("c", 6)},
				"refused: " + problem + ` | xds resource "c": domain "c" is already defined at xds resource "bad"; join the two, rename one, or set MERGE_DOMAIN_CONFIG=true`,
			},
			{nil, ""},
		}},
		{"nothing else changed", false, []response{
			{[]*configv3.RateLimitConfig{limit("a", 1), good("b", 3)}, "a.k=1 b.k=3"},
			{[]*configv3.RateLimitConfig{limit("a", 1), bad("b")}, "refused: " + problem},
		}},
		{"all or nothing", true, []response{
			{[]*configv3.RateLimitConfig{limit("a", 1), bad("b")}, "refused: " + problem},
			{[]*configv3.RateLimitConfig{limit("a", 2), good("b", 3)}, "a.k=2 b.k=3"},
			{[]*configv3.RateLimitConfig{limit("a", 4), bad("b")}, "refused: " + problem},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inLab(t, func(cfg *Config) { cfg.AllOrNothing = tt.allOrNothing }, func(t *testing.T, l *lab) {
				s := l.manage()
				for i, r := range tt.responses {
					s.Publish(t, "me", fmt.Sprint(i+1), r.resources...)
					var want []string
					if i == 0 {
						want = append(want, "connected")
					}
					l.after(10*time.Second, append(want, strings.TrimSpace(fmt.Sprintf("v%d: %s", i+1, r.want)))...)
				}
				told := requestsOf(s)
				if n := strings.Count(told, "refused in part, other domains took effect: xds resource \\\"bad\\\""); (n > 0) == (tt.name != "from the first on") {
					t.Errorf("the server was told\n%s", told)
				}
			})
		})
	}
}
