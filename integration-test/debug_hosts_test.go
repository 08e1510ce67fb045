package integration

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

// The debug port answers to names that no web page can have, so that a page cannot read it through a browser.
func TestHostsOfTheDebugPort(t *testing.T) {
	t.Parallel()
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", denyAll("d"))
	s := startService(t, append(rules.env(), "DEBUG_ALLOWED_HOSTS=debug.example")...)
	_, port, _ := strings.Cut(s.debug, ":")
	for host, want := range map[string]int{
		s.debug: 200, "localhost:" + port: 200, "[::1]": 200, "10.96.0.7": 200,
		"ratelimit-debug.ns.svc": 200, "ratelimit-debug.ns.svc:" + port: 200,
		"ratelimit-debug.ns.svc.cluster.local:" + port: 200,
		own: 200, strings.ToUpper(own) + ":" + port: 200, "debug.example": 200,
		"attacker.example": 403, "attacker.example:" + port: 403, "ratelimit-debug.ns.svc.attacker.example": 403, "xsvc": 403,
		"cluster.local.attacker.example": 403, own + ".attacker.example": 403, "localhost.attacker.example": 403,
	} {
		for _, path := range []string{"/rlconfig", "/stats", "/debug/pprof/cmdline", "/nothing"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.debug+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close() // only the status matters
			if (resp.StatusCode == http.StatusForbidden) != (want == 403) {
				t.Errorf("host %q, %s: %s, want %d", host, path, resp.Status, want)
			}
		}
	}
}
