package service

import (
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

func TestPrometheus(t *testing.T) {
	withMore := oneRule + "  - {key: call, rate_limit: {algorithm: concurrency, requests_per_unit: 4, hold: 30s, " +
		"hold_id: id}}\n" +
		"  - {key: trial, rate_limit: {unit: year, requests_per_unit: 1, enforce_percent: 0}}\n"
	s := launch(t, withMore, "RUNTIME_CANDIDATE_SUBDIRECTORY=next", "DISABLE_STATS=false", "USE_PROMETHEUS=true",
		"PROMETHEUS_ADDR=127.0.0.1:0", "PROMETHEUS_PATH=/m",
		"MEMORY_SNAPSHOT="+filepath.Join(t.TempDir(), "counters"))
	s.until("ready", s.healthy)
	s.writeCandidate("rules.yaml", strings.Replace(oneRule, "requests_per_unit: 2", "requests_per_unit: 1", 1))
	s.until("a candidate", func() bool { return s.candidate().Rules == 1 })
	for range 3 {
		s.ask("1")
	}
	if _, err := s.post("trial", "1"); err != nil {
		t.Fatal(err)
	}
	code, body := s.get("prometheus", "/m")
	for _, want := range []string{
		`ratelimit_service_rate_limit_over_limit{domain="d",key1="ip"} 1`,
		`ratelimit_decisions_total{domain="d",outcome="over",rule="ip"} 1`,
		`ratelimit_requests_total{domain="d",result="denied"} 1`,
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, no %s in\n%s", code, want, body)
		}
	}
	if code, _ := s.get("prometheus", "/debug/pprof/"); code != 404 {
		t.Errorf("profiles on the Prometheus port: %d", code)
	}
	server := redistest.Start(t, redistest.Options{})
	s = launch(t, oneRule, "DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
		"REDIS_URL="+server.Addr)
	s.until("ready", s.healthy)
	server.Stop()
	if got := s.ask("1"); got != 503 {
		t.Errorf("without Redis: %d", got)
	}
	_, withRedis := s.get("prometheus", "/metrics")
	memcache := memcachedtest.Start(t, memcachedtest.Options{})
	s = launch(t, "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 9, counting: leased}}]",
		"DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "BACKEND_TYPE=memcache",
		"MEMCACHE_HOST_PORT="+memcache.Addr)
	s.until("ready", s.healthy)
	s.ask("1")
	_, withMemcache := s.get("prometheus", "/metrics")
	body += withRedis + withMemcache
	monitoring := testfiles.Read(t, "../../docs/monitoring.md")
	_, table, _ := strings.Cut(string(monitoring), "\n| metric |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range strings.Split(table, "\n")[1:] {
		cell, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, name := range regexp.MustCompile(`ratelimit_[a-z_]+`).FindAllString(cell, -1) {
			// It starts with the first report of a proxy: see TestQuotaUsage.
			startsLater := name == "ratelimit_quota_requests_total"
			text := name + " "
			if strings.Contains(cell, name+"…") { // all that begin so
				text = name
			}
			if !startsLater && !strings.Contains(body, "\n# TYPE "+text) {
				t.Errorf("docs/monitoring.md names %s, which a scrape does not have", name)
			}
		}
	}
}

// With no sink, figures are debug lines of JSON; the last ones come at the end.
func TestLastFlush(t *testing.T) {
	s := launch(t, oneRule, "DISABLE_STATS=false", "USE_STATSD=false", "LOG_LEVEL=debug",
		"STATS_FLUSH_INTERVAL=1h", "EXTRA_TAGS=env:test")
	s.until("ready", s.healthy)
	s.ask("1")
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	if !s.logged("ratelimit.service.rate_limit.d.ip.total_hits.__env=test")() {
		t.Error("what was counted last is lost")
	}
}

func TestBadStatistics(t *testing.T) {
	for _, tt := range []struct {
		vars []string
		want string
	}{
		{[]string{"USE_PROMETHEUS=true", "USE_DOG_STATSD=true"}, "choose one"},
		{[]string{"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=A"}, "DOG_STATSD_MOGRIFIER_A"},
		{[]string{
			"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=A", "DOG_STATSD_MOGRIFIER_A_PATTERN=(",
			"DOG_STATSD_MOGRIFIER_A_NAME=a",
		}, "DOG_STATSD_MOGRIFIER_A"},
	} {
		err := launch(t, oneRule, append(tt.vars, "DISABLE_STATS=false")...).wait()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v", tt.vars, err)
		}
	}
}
