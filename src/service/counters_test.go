package service

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

const counterRules = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 1000}
  - key: month
    rate_limit: {unit: month, requests_per_unit: 5, calendar: true, anchor_day: 15, time_zone: Europe/Berlin}
`

// change sends a change of counters to the debug port, and returns the status and the answer.
func (s *service) change(body string, headers ...string) (int, string) {
	s.t.Helper()
	return s.postJSON("/api/counters", body, headers...)
}

// postJSON sends a body to a path of the debug port, and returns the status and the answer.
func (s *service) postJSON(path, body string, headers ...string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+s.address("debug")+path,
		strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func (s *service) changed(body string) (report operator.CounterReport) {
	s.t.Helper()
	code, text := s.change(body)
	if err := json.Unmarshal([]byte(text), &report); code != 200 || err != nil || report.Warning != "" {
		s.t.Fatalf("%s: %d %s", body, code, text)
	}
	return report
}

func change(action, user, more string) string {
	return fmt.Sprintf(`{"action":%q,"domain":"d","descriptor":[{"key":"user","value":%q}]%s}`, action, user, more)
}

// A reset at one replica takes effect at another within a second, although that one refuses from its over-limit cache.
func TestChangesReachReplicas(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		store func(*testing.T) []string // variables
	}{
		{"redis", func(t *testing.T) []string {
			return []string{"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr}
		}},
		{"redis with a second one for limits per second", func(t *testing.T) []string {
			return []string{
				"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_PERSECOND=true",
				"REDIS_PERSECOND_URL=" + redistest.Start(t, redistest.Options{}).Addr,
			}
		}},
		{"redis cluster", func(t *testing.T) []string {
			return []string{
				"REDIS_TYPE=cluster",
				"REDIS_URL=" + strings.Join(redistest.StartCluster(t, redistest.ClusterOptions{}).Addrs, ","),
			}
		}},
		{"memcached", func(t *testing.T) []string {
			return []string{
				"BACKEND_TYPE=memcache",
				"MEMCACHE_HOST_PORT=" + memcachedtest.Start(t, memcachedtest.Options{}).Addr,
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			vars := append(tt.store(t), "LOCAL_CACHE_SIZE_IN_BYTES=1000000", "REDIS_TIMEOUT=5s", "REDIS_PERSECOND_TIMEOUT=5s",
				"MEMCACHE_TIMEOUT=5s", "LOG_LEVEL=error")
			a, b := launch(t, counterRules, vars...), launch(t, counterRules, vars...)
			for _, s := range []*service{a, b} {
				s.until("ready", s.healthy)
			}
			ask := func(s *service, user string) int {
				code, err := s.post("user", user)
				if err != nil {
					t.Fatal(err)
				}
				return code
			}
			for _, s := range []*service{a, b} {
				for range 3 {
					ask(s, "alex")
					ask(s, "bob")
				}
				if code := ask(s, "alex"); code != 429 {
					t.Fatalf("over the limit: %d", code)
				}
			}
			started := time.Now()
			report := a.changed(change("reset", "alex", ""))
			if len(report.Before) != 1 || report.Before[0].Used < 3 || report.Counters[0].Used != 0 ||
				report.Counters[0].Refuses {
				t.Errorf("%+v", report)
			}
			if code := ask(a, "alex"); code != 200 {
				t.Errorf("at the replica that resets: %d", code)
			}
			b.until("the other replica follows", func() bool { return ask(b, "alex") == 200 })
			t.Logf("the other replica followed after %v", time.Since(started))
			if code := ask(b, "bob"); code != 429 {
				t.Errorf("another user: %d", code)
			}
			log := a.log.String()
			for _, want := range []string{
				`action=reset`, `descriptor="user=alex"`, `domain=d`, `by="127.0.0.1:`,
				`after="d.user 0 of 2"`,
			} {
				if !strings.Contains(log, want) {
					t.Errorf("no %s in the log:\n%s", want, log)
				}
			}
			if !regexp.MustCompile(`before="d.user \d+ of 2"`).MatchString(log) {
				t.Errorf("no count before in the log:\n%s", log)
			}
			report = b.changed(change("set", "bob", `,"used":1`))
			if report.Counters[0].Used != 1 || report.Counters[0].Remaining != 1 {
				t.Errorf("%+v", report)
			}
			a.until("a replica follows the set", func() bool { return ask(a, "bob") == 200 })
			if code := ask(a, "bob"); code != 429 {
				t.Errorf("after the last unit: %d", code)
			}
			for _, user := range []string{"al*ex", "al1", "al2"} {
				ask(a, user)
			}
			pattern := `{"action":"reset","domain":"d","descriptor":[{"key":"user","prefix":"al"}]`
			if report := b.changed(pattern + `,"dry_run":true}`); report.Matching != 4 || len(report.Names) != 4 {
				t.Errorf("the dry run: %+v", report)
			}
			if report := b.changed(pattern + `}`); report.Matching != 4 {
				t.Errorf("the reset: %+v", report)
			}
			if report := b.changed(pattern + `}`); report.Matching != 0 {
				t.Errorf("the second reset: %+v", report)
			}
			if code, _ := a.get("debug", "/api/counters?domain=d&entry=user=al1"); code != 200 {
				t.Errorf("GET: %d", code)
			}
		})
	}
}

// Counters that a replica keeps while the store is away follow changes of other replicas.
func TestChangesReachFallbackCounters(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	vars := []string{"REDIS_URL=" + server.Addr, "REDIS_TIMEOUT=500ms", "REPLICAS=1", "LOG_LEVEL=debug"}
	a, b := launch(t, fallbackRules, vars...), launch(t, fallbackRules, vars...)
	for _, s := range []*service{a, b} {
		s.until("ready", s.healthy)
	}
	server.Kill()
	b.until("the store is missed", func() bool { return asked(t, b, "theirs", 1) == "503" })
	if got := asked(t, b, "ip", 5); got != "200 200 200 200 429" {
		t.Fatal(got)
	}
	if code, text := a.change(`{"action":"reset","domain":"d","descriptor":[{"key":"ip","value":"x"}]}`); code != 503 {
		t.Errorf("a reset without the store: %d %s", code, text)
	}
	server.Restart(t)
	for _, s := range []*service{a, b} {
		s.until("the store is back", func() bool { return asked(t, s, "theirs", 1) != "503" })
	}
	a.until("the reset", func() bool {
		code, _ := a.change(`{"action":"reset","domain":"d","descriptor":[{"key":"ip","value":"x"}]}`)
		return code == 200
	})
	b.until("the other replica has the change", b.logged("a change of counters is known here"))
	server.Kill()
	b.until("the store is missed again", func() bool { return asked(t, b, "theirs", 1) == "503" })
	if got := asked(t, b, "ip", 1); got != "200" {
		t.Errorf("the fallback's counter was not reset: %s", got)
	}
}

// Changes are for operators. The log never has the token.
func TestWhoMayChangeCounters(t *testing.T) {
	t.Parallel()
	const token = "hunter2-and-more"
	s := launch(t, counterRules, "DEBUG_TOKEN="+token)
	s.until("ready", s.healthy)
	reset := change("reset", "alex", "")
	for _, tt := range []struct {
		name    string
		headers []string
		code    int
	}{
		{"no token", nil, 401},
		{"a wrong token", []string{"Authorization", "Bearer guess"}, 401},
		{"another site", []string{"Authorization", "Bearer " + token, "Sec-Fetch-Site", "cross-site"}, 403},
		{"a name that rebinds", []string{"Authorization", "Bearer " + token, "Host", "evil.example"}, 403},
		{"a form", []string{"Authorization", "Bearer " + token, "Content-Type", "text/plain"}, 415},
		{"an operator", []string{"Authorization", "Bearer " + token}, 200},
	} {
		if code, text := s.change(reset, tt.headers...); code != tt.code {
			t.Errorf("%s: %d %s, want %d", tt.name, code, text, tt.code)
		}
	}
	for range 20 {
		s.change(reset, "Authorization", "Bearer guess")
	}
	if code, text := s.change(reset, "Authorization", "Bearer "+token); code != 429 {
		t.Errorf("after many guesses: %d %s", code, text)
	}
	if !s.logged("action=reset")() || strings.Contains(s.log.String(), token) ||
		strings.Contains(s.log.String(), "guess") {
		t.Errorf("the log:\n%s", s.log.String())
	}
}

// The store in memory resets and sets counters, too. What does not exist is refused.
func TestCountersInMemory(t *testing.T) {
	t.Parallel()
	s := launch(t, counterRules)
	s.until("ready", s.healthy)
	for range 3 {
		if _, err := s.post("user", "alex"); err != nil {
			t.Fatal(err)
		}
	}
	if report := s.changed(change("reset", "alex", `,"dry_run":true`)); report.Counters[0].Used != 3 ||
		!report.Counters[0].Refuses {
		t.Errorf("the dry run: %+v", report)
	}
	if s.logged("action=reset")() {
		t.Error("a dry run is in the log as a change")
	}
	if report := s.changed(change("set", "alex", `,"used":1`)); report.Before[0].Used != 3 ||
		report.Counters[0].Used != 1 {
		t.Errorf("the set: %+v", report)
	}
	c := s.changed(`{"action":"get","domain":"d","descriptor":[{"key":"month","value":"alex"}]}`).Counters[0]
	if c.CalendarWindow != "calendar month from day 15 in Europe/Berlin" || c.PeriodSeconds != 0 {
		t.Errorf("a limit with a calendar: %+v", c)
	}
	for _, tt := range []struct {
		body, reason string
		code         int
	}{
		{`{"action":"reset","domain":"d","descriptor":[{"key":"nobody","value":"x"}]}`, "no limit of domain", 422},
		{`{"action":"reset","domain":"nowhere","descriptor":[{"key":"user","value":"x"}]}`, "no limit of domain", 422},
	} {
		if code, text := s.change(tt.body); code != tt.code || !strings.Contains(text, tt.reason) {
			t.Errorf("%s: %d %s", tt.body, code, text)
		}
	}
}

// Patterns find counters in memory as long as it keeps their names.
func TestPatternsInMemory(t *testing.T) {
	t.Parallel()
	const reset = `{"action":"reset","domain":"d","descriptor":[{"key":"user","prefix":"al"}]}`
	for variable, code := range map[string]int{"MEMORY_COUNTER_NAMES=true": 200, "MEMORY_COUNTER_NAMES=false": 501} {
		s := launch(t, counterRules, variable)
		s.until("ready", s.healthy)
		for _, user := range []string{"alex", "alice", "bob"} {
			if _, err := s.post("user", user); err != nil {
				t.Fatal(err)
			}
		}
		got, text := s.change(reset)
		if got != code || code == 200 && !strings.Contains(text, `"matching":2`) ||
			code == 501 && !strings.Contains(text, "set MEMORY_COUNTER_NAMES=true") {
			t.Errorf("%s: %d %s", variable, got, text)
		}
	}
}
