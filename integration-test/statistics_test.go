package integration

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// runBare runs the built service with no setting of statistics but env.
func runBare(t *testing.T, env ...string) *service {
	t.Helper()
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	rules := newRuleDir(t)
	rules.put(t, "shop.yaml", "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 2}}]\n")
	cmd := exec.Command(path, "serve", "--config", rules.files)
	cmd.Env = append([]string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"STATS_FLUSH_INTERVAL=20ms",
	}, env...)
	s := &service{process: start(t, "ratelimit", cmd)}
	s.awaitReady(t)
	return s
}

// The absence of a statsd that no setting asks for is no warning. It is said once.
func TestDefaultStatsd(t *testing.T) {
	t.Parallel()
	if c, err := net.Dial("tcp", "localhost:8125"); err == nil {
		_ = c.Close()
		t.Skip("something listens on the port of statsd")
	}
	const notSent = "counters are not sent for now (USE_STATSD=false if there is no statsd)"
	for level, want := range map[string]int{"warn": 0, "info": 1} {
		s := runBare(t, "LOG_LEVEL="+level)
		time.Sleep(7 * time.Second) // three attempts
		if got := strings.Count(s.log(t), notSent); got != want {
			t.Errorf("LOG_LEVEL=%s: said %d times, want %d:\n%s", level, got, want, s.log(t))
		}
	}
	s := runBare(t, "STATSD_HOST=localhost")
	s.untilLogged(t, notSent)
}

// Without a sink, there are no debug lines at other levels.
func TestNoStatsLinesBelowTheLevel(t *testing.T) {
	for level, want := range map[string]bool{"warn": false, "info": false, "debug": true} {
		s := runBare(t, "USE_STATSD=false", "LOG_LEVEL="+level)
		time.Sleep(200 * time.Millisecond) // ten flushes
		s.stop(t)
		if got := strings.Contains(s.log(t), `"level":"debug"`); got != want {
			t.Errorf("LOG_LEVEL=%s: lines of counters: %t, want %t", level, got, want)
		}
	}
}

func TestDisabledStatsWarn(t *testing.T) {
	s := runBare(t, "DISABLE_STATS=true", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	const want = "USE_PROMETHEUS=true has no effect: DISABLE_STATS is true; remove it, or set DISABLE_STATS=false"
	if !strings.Contains(s.log(t), want) {
		t.Errorf("no %q in\n%s", want, s.log(t))
	}
}

// The debug port says where metrics are, and redirects to them.
func TestMetricsOnTheDebugPort(t *testing.T) {
	s := runBare(t, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=:0", "PROMETHEUS_PATH=/m")
	_, port, err := net.SplitHostPort(s.prometheus)
	if err != nil {
		t.Fatal(err)
	}
	get := func(s *service) (status int, at, page string) {
		resp, err := client.Get("http://" + s.debug + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Request.URL.String(), string(body)
	}
	status, at, page := get(s)
	if want := "http://127.0.0.1:" + port + "/m"; status != http.StatusOK || at != want ||
		!strings.Contains(page, "ratelimit_config_") {
		t.Errorf("%d at %s, want %s:\n%.300s", status, at, want, page)
	}
	status, _, page = get(runBare(t, "USE_STATSD=false"))
	if status != http.StatusNotFound || !strings.Contains(page, "set USE_PROMETHEUS=true") {
		t.Errorf("%d %s", status, page)
	}
}

// A reload is a line at the default level that says what changed. So is a requested one that changes nothing.
func TestReloadLine(t *testing.T) {
	rules := newRuleDir(t)
	limit := func(n int) string {
		return fmt.Sprintf("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: %d}}]\n", n)
	}
	rules.put(t, "shop.yaml", limit(10))
	s := startService(t, append(rules.env(), "RUNTIME_DEBOUNCE=10ms", "DISABLE_STATS=true")...)
	lines := func(n int) func() error {
		return func() error {
			if got := strings.Count(s.log(t), "rules reloaded"); got != n {
				return fmt.Errorf("%d lines, want %d", got, n)
			}
			return nil
		}
	}
	rules.put(t, "shop.yaml", limit(5))
	s.until(t, "a line", lines(1))
	rules.put(t, "other.yaml", strings.Replace(limit(1), "shop", "other", 1))
	s.until(t, "a second line", lines(2))
	rules.put(t, "shop.yaml", limit(5)+"# a comment\n")
	s.until(t, "a third line", lines(3))
	for _, want := range []string{
		"rules reloaded: 1 rule tightened: shop.user (10 per minute -> 5 per minute)",
		"rules reloaded: 1 rule added: other.user (1 per minute)", "rules reloaded: no limit differs",
	} {
		s.until(t, want, func() error {
			if !strings.Contains(s.log(t), want) {
				return errors.New(tail(s.log(t)))
			}
			return nil
		})
	}
}

// Sizes and times with units, and what is wrong with others.
func TestSettingsWithUnits(t *testing.T) {
	s := runBare(t, "USE_STATSD=false", "MEMORY_MAX_BYTES=64MiB", "SHUTDOWN_TIMEOUT=1d", "NEAR_LIMIT_RATIO=50%",
		"LOG_DENIALS=60/m")
	s.stop(t)
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "serve", "--config", t.TempDir())
	cmd.Env = []string{"MEMORY_MAX_BYTES=4 gigs", "SHUTDOWN_TIMEOUT=5", "LOG_DENIALS=3 per second"}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("it starts")
	}
	for _, want := range []string{
		"MEMORY_MAX_BYTES=4 gigs: write a number of bytes, 128KiB or more, such as 4GiB",
		"SHUTDOWN_TIMEOUT=5: write a duration with its unit, such as 5s",
		"LOG_DENIALS=3 per second: write a whole number per second, 0 to 10000, such as 3/s",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
