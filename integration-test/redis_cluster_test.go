package integration

import (
	"net/http"
	"strings"
	"testing"

	"ratelimit/testbed/redistest"
)

// Redis Cluster takes a call with several keys only if they have one hash tag. An empty one, `{}`, is none: so would be
// that of a domain or prefix that begins with `}`.
func TestBraceBeforeHoldsInCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, redistest.ClusterOptions{})
	const limits = "descriptors:\n" +
		"- {key: calls, rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: 60s, hold_id: id}}\n" +
		"- {key: budget, rate_limit: {unit: year, requests_per_unit: 2, hold: 60s, hold_id: id}}\n" +
		"- key: team\n  charge: path\n  on_reject: none\n  rate_limit: {unit: year, requests_per_unit: 2, algorithm: gcra}\n" +
		"  descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 9, algorithm: gcra}}]\n"
	for _, tt := range []struct{ name, domain, prefix string }{
		{"the domain", "}d", ""},
		{"the prefix", "e", "}p:"},
		{"both", "}f}", "}}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rules := newRuleDir(t)
			rules.put(t, "a.yaml", "domain: \""+tt.domain+"\"\n"+limits)
			s := startService(t, append(rules.env(), "REDIS_TYPE=cluster", "REDIS_URL="+strings.Join(cluster.Addrs, ","),
				"REDIS_TIMEOUT=2s", "CACHE_KEY_PREFIX="+tt.prefix)...)
			for _, descriptor := range []string{"calls=1,id=", "budget=1,id=", "team=1,user="} {
				for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
					if status, answer := s.ask(t, tt.domain, descriptor+string(rune('a'+i))); status != want {
						t.Errorf("%s, request %d: %d %v, want %d", descriptor, i+1, status, answer, want)
					}
				}
			}
		})
	}
}
