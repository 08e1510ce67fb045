package service

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/src/files/certs"
	"ratelimit/src/metrics"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
	"ratelimit/testbed/xdstest"
)

var updateFigures = flag.Bool("update-figures", false,
	"write src/metrics/testdata/figures.txt instead of comparing with it")

const figureRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: host
    value: 10.0.0.7:80|x
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: trial
    rate_limit: {unit: year, requests_per_unit: 1}
    shadow_mode: true
  - key: staff
    rate_limit: {unlimited: true}
  - key: user
    detailed_metric: true
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: soft
    rate_limit: {unit: year, requests_per_unit: 10, on_store_failure: allow}
`

// heldFigureRule is the rule with holds, and with enforce_percent, of figureRules. Memcached would refuse it.
const heldFigureRule = "  - {key: call, rate_limit: {algorithm: concurrency, requests_per_unit: 4, hold: 30s, " +
	"hold_id: id, enforce_percent: 10}}\n"

// leasedFigureRule is the leased rule of figureRules. With it replicas read from the store now and then.
const leasedFigureRule = "  - {key: lease, rate_limit: {unit: year, requests_per_unit: 10, counting: leased}}\n"

// Every figure keeps its names, help text, type and labels: in /stats, in what a
// scrape shows and in what statsd receives. Values are compared where the requests
// decide them.
func TestFigures(t *testing.T) {
	runtime.GC() // so that all figures of the collector have moved
	var all strings.Builder
	seen := make(map[string]bool) // lines, so that a later section shows what is new in it
	section := func(name, text string) {
		fmt.Fprintf(&all, "== %s\n", name)
		for _, line := range steadyFigures(text) {
			if !seen[line] {
				seen[line] = true
				all.WriteString(line + "\n")
			}
		}
	}
	certs := harness.NewCertificates(t)
	onTLS := []string{"DEBUG_TLS_CERT=" + certs.Server.Cert, "DEBUG_TLS_KEY=" + certs.Server.Key}
	prometheus := []string{"DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"}
	redis := redistest.Start(t, redistest.Options{})
	memcache := memcachedtest.Start(t, memcachedtest.Options{})

	snapshot := "MEMORY_SNAPSHOT=" + filepath.Join(t.TempDir(), "counters")
	s := askForFigures(t, launch(t, figureRules+heldFigureRule,
		append(prometheus, "DIVVY_PORT=0", "RESP_PORT=0", "EXTRA_TAGS=env:test", snapshot)...))
	section("memory, /stats", s.page("debug", "/stats"))
	section("memory, /metrics", s.page("prometheus", "/metrics"))

	s = askForFigures(t, launch(t, figureRules+leasedFigureRule,
		append(prometheus, "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=10s", "LOCAL_CACHE_SIZE_IN_BYTES=1000000")...))
	redis.Stop()
	for _, key := range []string{"ip", "soft"} {
		if _, err := s.post(key, "9"); err != nil {
			t.Fatal(err)
		}
	}
	s.until("a read of changed limits failed", func() bool { // From then on the figure is in /metrics.
		return strings.Contains(s.page("prometheus", "/metrics"), "\nratelimit_overrides_read_failures ")
	})
	section("Redis, /stats", s.page("debug", "/stats"))
	section("Redis, /metrics", s.page("prometheus", "/metrics"))

	s = askForFigures(t, launch(t, figureRules,
		append(prometheus, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+memcache.Addr, "MEMCACHE_TIMEOUT=10s",
			"REPLICAS=1")...)) // Replicas that count themselves read from Memcached now and then.
	section("Memcached, /stats", s.page("debug", "/stats"))
	section("Memcached, /metrics", s.page("prometheus", "/metrics"))

	l := listenLocal(t, "")
	xdstest.Start(t, l).Publish(t, "default", "v1", domain(2))
	s = launchXDS(t, l.Addr().String(), append(onTLS, prometheus...)...)
	s.until("ready", s.healthy)
	s.ask("1")
	section("xDS and TLS, /metrics", s.page("prometheus", "/metrics"))

	s = launchThreeSources(t).service
	s.until("ready", s.healthy)
	section("several sources of rules, /stats", s.page("debug", "/stats"))
	section("several sources of rules, /metrics", s.page("prometheus", "/metrics"))

	s = launch(t, oneRule, append(prometheus, "RUNTIME_CANDIDATE_SUBDIRECTORY=next")...)
	s.until("ready", s.healthy)
	s.writeCandidate("rules.yaml", strings.Replace(oneRule, "requests_per_unit: 2", "requests_per_unit: 0", 1))
	s.until("a candidate", func() bool { return s.candidate().Rules == 1 })
	s.ask("1")
	section("candidate rules, /metrics", s.page("prometheus", "/metrics"))

	section("statsd", pushedFigures(t, "USE_STATSD=true", "EXTRA_TAGS=env:test"))
	section("DogStatsD", pushedFigures(t, "USE_DOG_STATSD=true", "EXTRA_TAGS=env:test"))
	divvyMetrics, divvyStatsd := divvyFigures(t)
	section("divvy, /metrics", divvyMetrics)
	section("divvy, statsd", divvyStatsd)

	path := filepath.Join("..", "..", "src", "metrics", "testdata", "figures.txt")
	if *updateFigures {
		testfiles.Write(t, path, all.String())
	}
	want := testfiles.Read(t, path)
	if got := []byte(all.String()); !bytes.Equal(got, want) {
		compareLines(t, string(got), string(want))
	}
}

// compareLines reports the lines that only one text has.
func compareLines(t *testing.T, got, want string) {
	t.Helper()
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
	for _, line := range wantLines {
		if !slices.Contains(gotLines, line) {
			t.Errorf("missing: %s", line)
		}
	}
	for _, line := range gotLines {
		if !slices.Contains(wantLines, line) {
			t.Errorf("new: %s", line)
		}
	}
	if !t.Failed() {
		t.Errorf("the lines are in another order or number:\n%s", got)
	}
}

// askForFigures sends requests that count under every kind of name.
func askForFigures(t *testing.T, s *service) *service {
	t.Helper()
	s.until("ready", s.healthy)
	for _, ask := range []struct{ key, value string }{
		{"ip", "1"},
		{"ip", "1"},
		{"ip", "1"},
		{"ip", "1"},
		{"host", "10.0.0.7:80|x"},
		{"trial", "a"},
		{"trial", "a"},
		{"staff", "a"},
		{"user", "a"},
		{"user", "b"},
		{"unmatched", "a"},
		{"soft", "a"},
	} {
		if _, err := s.post(ask.key, ask.value); err != nil {
			t.Fatal(err)
		}
	}
	for _, body := range []string{
		`{"domain":"elsewhere","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}`,
		`{"domain":"d","descriptors":[{"entries":[{"key":"own","value":"1"}],"limit":{"requestsPerUnit":5,"unit":"HOUR"}}]}`,
		`no JSON`,
	} {
		resp, err := http.Post("http://"+s.address("http")+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	s.write("rules.yaml", "domain: [")
	s.until("rules are refused", func() bool {
		_, stats := s.get("debug", "/stats")
		return strings.Contains(stats, "config_load_error: 1")
	})
	return s
}

// page is the body of a page, which must be there.
func (s *service) page(port, path string) string {
	s.t.Helper()
	code, body := s.get(port, path)
	if code != http.StatusOK {
		s.t.Fatalf("%s: %d", path, code)
	}
	return body
}

// pushedFigures are the lines of the last flush to statsd.
func pushedFigures(t *testing.T, vars ...string) string {
	t.Helper()
	conn, received := receiveLines(t)
	host, port, _ := net.SplitHostPort(conn.LocalAddr().String())
	s := askForFigures(t, launch(t, figureRules,
		append(vars, "DISABLE_STATS=false", "STATSD_PROTOCOL=udp", "STATSD_HOST="+host, "STATSD_PORT="+port,
			"STATS_FLUSH_INTERVAL=1h")...))
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	return received("runtime.num_values")
}

// divvyFigures are what a scrape of `ratelimit divvy` shows, and what its statsd gets.
func divvyFigures(t *testing.T) (scraped, pushed string) {
	t.Helper()
	conn, received := receiveLines(t)
	host, port, _ := net.SplitHostPort(conn.LocalAddr().String())
	s := launchDivvy(t, "bakery.ini", bakery, "HTTP_SERVICE_PORT=0", "PROMETHEUS_METRICS_PATH=metrics",
		"STATSD_HOST="+host, "STATSD_PORT="+port, "STATSD_PREFIX=shop", "STATS_FLUSH_INTERVAL=1h")
	s.until("listening", s.listening("counters in memory"))
	s.say("HIT path=/rye ip=1\nHIT ip=1 path=/rye\nHIT path=/rye ip=1\nHIT path=/rye ip=2\nHIT closed=\nHIT\nKNOCK\nHIT",
		nil)
	resp, err := http.Get("http://" + s.address("prometheus") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	return string(body), received("shop.hit.rejected.rye")
}

// receiveLines opens a port for statsd. received returns the sorted lines that came,
// once one of them has that name.
func receiveLines(t *testing.T) (conn net.PacketConn, received func(last string) string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, func(last string) string {
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf, text := make([]byte, 1<<16), ""
		for !strings.Contains(text, last) {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				t.Fatalf("no %s in\n%s", last, text)
			}
			text += string(buf[:n])
		}
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
}

var (
	foreignFigure = regexp.MustCompile(`^(# (HELP|TYPE) )?(go|process|promhttp)_`)
	steadyFigure  = regexp.MustCompile(
		`rate_limit|service\.|should_rate_limit|config_load|decisions|unanswered|total_requests|divvy|resp\.|shop\.|fallback|series|mapping|stats\.`)
	movingFigure = regexp.MustCompile(`\|ms|seconds|connections`)
	lastWord     = regexp.MustCompile(`(:)?( ?)[-0-9.e+]+((\|(c|g|ms)(\|#.*)?)?)$`)
	changing     = regexp.MustCompile(`(version|commit|go|hash)="[^"]*"`)
)

// steadyFigures replaces the values that depend on time, and drops what the Prometheus
// library adds itself.
func steadyFigures(text string) []string {
	var kept []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if foreignFigure.MatchString(line) {
			continue
		}
		line = changing.ReplaceAllString(line, `$1="*"`)
		if !strings.HasPrefix(line, "#") && (!steadyFigure.MatchString(line) || movingFigure.MatchString(line)) {
			line = lastWord.ReplaceAllString(line, `$1$2*$3`)
		}
		kept = append(kept, line)
	}
	return kept
}

// A misspelled field of a client certificate would only be found by a scrape with such a certificate.
func TestClientCertificateFigure(t *testing.T) {
	t.Parallel()
	list := metrics.Figures("client certificate", "redis", certs.Stats{NotAfter: time.Unix(77, 0)})
	if len(list) != 1 || list[0].ScaledValue() != 77 {
		t.Errorf("the client certificate: %+v", list)
	}
}
