package service

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/redistest"
)

const fallbackRules = `
domain: d
on_store_failure: local
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 4}
  - key: open
    rate_limit: {unit: year, requests_per_unit: 1, on_store_failure: allow}
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 9, on_store_failure: deny}
  - key: theirs
    rate_limit: {unit: year, requests_per_unit: 9, on_store_failure: error}
`

// asked sends n requests and returns the status codes.
func asked(t *testing.T, s *service, key string, n int) string {
	t.Helper()
	var codes []string
	for range n {
		code, err := s.post(key, "x")
		if err != nil {
			t.Fatal(err)
		}
		codes = append(codes, fmt.Sprint(code))
	}
	return strings.Join(codes, " ")
}

// In an outage a reload changes on_store_failure, as docs/outages.md advises.
func TestFallbackIsChangedInAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms")
	s.until("ready", s.healthy)
	server.Kill()
	s.until("requests fail", func() bool { return asked(t, s, "ip", 1) == "503" })
	s.write("rules.yaml", strings.Replace(redisRules, "domain: d\n", "domain: d\non_store_failure: local\n", 1))
	s.until("requests are counted in the process", func() bool { return asked(t, s, "ip", 1) == "200" })
}

// Without the store on_store_failure of each rule decides, and answers and /readyz show it.
func TestStoreFailure(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, fallbackRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms", "REPLICAS=2",
		"LIMIT_DEGRADED_HEADER=X-Degraded",
		"RESPONSE_DYNAMIC_METADATA=true", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "DISABLE_STATS=false",
		"LOG_LEVEL=info")
	s.until("ready", s.healthy)
	if got := asked(t, s, "ip", 1); got != "200" {
		t.Fatal(got)
	}
	server.Kill()
	s.until("the store is missed", func() bool { return asked(t, s, "theirs", 1) == "503" })
	for _, tt := range []struct {
		key  string
		n    int
		want string
	}{
		{"ip", 3, "200 200 429"}, // a half of 4
		{"open", 3, "200 200 200"},
		{"closed", 2, "429 429"},
		{"theirs", 2, "503 503"},
	} {
		if got := asked(t, s, tt.key, tt.n); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.key, got, tt.want)
		}
	}
	resp, err := http.Post("http://"+s.address("http")+"/json", "application/json",
		strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"open","value":"x"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if got := resp.Header.Get("X-Degraded"); err != nil || got != "allow" ||
		!strings.Contains(strings.ReplaceAll(string(body), " ", ""), `"degraded":"allow"`) {
		t.Errorf("header %q, body %s, %v", got, body, err)
	}
	code, ready := s.get("http", "/readyz")
	if code != 200 || !strings.Contains(ready, "degraded: a hit without an answer") {
		t.Errorf("%d %s", code, ready)
	}
	s.until("the breaker shows", func() bool {
		asked(t, s, "theirs", 1)
		_, ready := s.get("http", "/readyz")
		return strings.Contains(ready, `"note":"1 server without an answer, only probed"`)
	})
	_, stats := s.get("debug", "/stats")
	for _, want := range []string{"ratelimit.fallback.hits_local: 3\n", "ratelimit.fallback.replicas: 2\n"} {
		if !strings.Contains(stats, want) {
			t.Errorf("no %q in\n%s", want, stats)
		}
	}
	_, scrape := s.get("prometheus", "/metrics")
	for _, want := range []string{
		`ratelimit_unanswered_total{domain="d",instead="local",rule="ip"} 3`,
		`ratelimit_fallback_hits_total{instead="deny"} 2`,
		`ratelimit_requests_total{domain="d",result="denied_without_store"} 3`,
	} {
		if !strings.Contains(scrape, want) {
			t.Errorf("no %q among the metrics", want)
		}
	}
	_, denied := s.get("debug", "/api/denials")
	for _, want := range []string{`"reason":"the store does not answer"`, `"reason":"over this replica's share"`} {
		if !strings.Contains(denied, want) {
			t.Errorf("no %s in %s", want, denied)
		}
	}
	server.Restart(t) // empty
	s.until("the store decides again", func() bool { return asked(t, s, "theirs", 1) == "200" })
	if got := asked(t, s, "ip", 5); got != "200 200 200 200 429" {
		t.Errorf("after the outage: %s", got)
	}
}

// A process that decides without the store starts without it.
func TestStartWithoutStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	server.Stop()
	s := launch(t, oneRule, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms", "STORE_FAILURE_MODE=local", "REPLICAS=1",
		"REDIS_STARTUP_MAX_INTERVAL=100ms")
	told := s.logged("on_store_failure decides\"")
	s.until("ready", s.logged("msg=ready"))
	s.until("a word of the store", told)
	if got := asked(t, s, "ip", 3); got != "200 200 429" {
		t.Error(got)
	}
	code, ready := s.get("http", "/readyz")
	if code != http.StatusOK || !strings.Contains(ready, "Redis does not answer") ||
		!strings.Contains(ready, "on_store_failure decides") {
		t.Errorf("%d %s", code, ready)
	}
	byRules := launch(t, "domain: d\non_store_failure: local\ndescriptors:\n  - {key: ip, rate_limit: {unit: year, "+
		"requests_per_unit: 2}}\n  - {key: free, rate_limit: {unlimited: true}}\n",
		"REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms", "REPLICAS=1")
	byRules.until("ready by its rules", byRules.logged("msg=ready"))
	byRules.write("rules.yaml", oneRule)
	byRules.until("not ready by others", func() bool { return !byRules.healthy() })
	server.Restart(t)
	s.until("it is told no more", func() bool {
		_, ready := s.get("http", "/readyz")
		return !strings.Contains(ready, "Redis does not answer")
	})
	strict := launch(t, oneRule, "REDIS_URL=127.0.0.1:1", "STORE_FAILURE_MODE=local",
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true")
	strict.until("why it is not ready", func() bool {
		code, body := strict.get("http", "/healthcheck")
		return code == 500 && strings.Contains(body, "Redis does not answer")
	})
}

// The line protocol falls back like all others, also with divvy's counters.
func TestStoreFailureOfDivvy(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	const bread = "[path=/rye]\ncreditLimit = 4\nresetSeconds = 3600\n[default]\ncreditLimit = 0\nresetSeconds = 60\n"
	host, port, _ := strings.Cut(server.Addr, ":")
	s := launchDivvy(t, "bread.ini", bread, "REDIS_HOST="+host, "REDIS_PORT="+port, "REDIS_TIMEOUT=500ms",
		"STORE_FAILURE_MODE=local", "REPLICAS=2", "DIVVY_KEYS=upstream")
	s.until("an answer", func() bool { return s.say("HIT path=/rye", nil) == "OK true 3 3600\n" })
	server.Kill()
	s.until("a share of its own", func() bool { return s.say("HIT path=/rye", nil) == "OK true 1 3600\n" })
	if got := s.say("HIT path=/rye\nHIT path=/rye", nil); got != "OK true 0 3600\nOK false 0 3600\n" {
		t.Errorf("got %q", got)
	}
	server.Restart(t)
	s.until("Redis counts again", func() bool { return s.say("HIT path=/rye", nil) == "OK true 3 3600\n" })
}

// The log says that local decides without the number of replicas, how long the store was away, and what it has lost.
// Replicas are counted before a rule counts locally, so one may be changed to that during an outage.
func TestOutageInLog(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, fallbackRules[:strings.Index(fallbackRules, "on_store")]+"descriptors:\n  - {key: ip, rate_limit: {unit: year, "+
		"requests_per_unit: 2}}\n", "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms", "CACHE_KEY_PREFIX=p:")
	s.until("ready", s.healthy)
	s.until("the replica has counted itself and left its mark", func() bool {
		_, state := s.get("debug", "/api/state")
		return strings.Contains(state, `"replicas":1`) && strings.Contains(fmt.Sprint(server.Do(t, "KEYS", "p:*")), "p:ratelimit_mark_")
	})
	server.Kill()
	s.until("the store is missed", func() bool { return asked(t, s, "ip", 1) == "503" })
	s.write("rules.yaml", strings.Replace(oneRule, "domain: d\n", "domain: d\non_store_failure: local\n", 1))
	s.until("the share is used up", func() bool { return asked(t, s, "ip", 1) == "429" })
	time.Sleep(2500 * time.Millisecond) // two looks
	if s.logged("it is unknown how many replicas")() {
		t.Error("the replicas were counted, and are unknown")
	}
	server.Restart(t) // empty
	s.until("it is said that the store is back", s.logged("Redis answers again after "))
	s.until("it is said what it has lost", s.logged("; Redis came back without what this service had stored, so counters start again"))

	s = launch(t, oneRule, "REDIS_URL=127.0.0.1:1", "STORE_FAILURE_MODE=local")
	s.until("the whole limit", func() bool { return asked(t, s, "ip", 1) == "429" })
	s.until("a warning", s.logged("level=warning msg=\"on_store_failure: local decides, and it is unknown how many replicas"))
}
