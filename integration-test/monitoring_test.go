package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

const monitoringDir = "examples/monitoring"

var update = flag.Bool("update", false, "write examples/monitoring/prometheusrule.yaml anew")

// scrapes are those of a service that counts in memory and of one that counts
// in Redis behind the over-limit cache, with a bit of everything that happens, and of
// one without its management server.
func scrapes(t *testing.T) scraped {
	t.Helper()
	const file = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 10}}\n" +
		"- {key: call, rate_limit: {algorithm: concurrency, requests_per_unit: 4, hold: 30s, hold_id: id}}\n"
	all := make(scraped)
	certificates := harness.NewCertificates(t)
	server := redistest.Start(t, redistest.Options{})
	for _, env := range [][]string{
		{"MEMORY_SNAPSHOT=" + filepath.Join(t.TempDir(), "counters")},
		{
			"REDIS_URL=" + server.Addr, "REDIS_TIMEOUT=5s", "LOCAL_CACHE_SIZE_IN_BYTES=1048576", "STORE_FAILURE_MODE=local",
			"REPLICAS=1",
			"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + certificates.Server.Cert,
			"GRPC_SERVER_TLS_KEY=" + certificates.Server.Key,
		},
	} {
		rules := newRuleDir(t)
		rules.put(t, "d.yaml", file)
		rules.put(t, "quotas.yaml", "domain: quotas\nquota_buckets: true\ndescriptors: [{key: a, rate_limit: {unit: year, "+
			"requests_per_unit: 10}}]\n")
		u := startWith(t, rules, append(env, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")...)
		for range 12 { // within, near and over
			u.ask(t, "d", "a=1")
		}
		u.ask(t, "no-such-domain", "a=1")
		if slices.Contains(env, "REDIS_URL="+server.Addr) {
			server.Stop()
			u.ask(t, "d", "a=2")
		} else {
			reportQuota(t, u.grpc, "quotas", map[string]string{"a": "1"})
		}
		rules.put(t, "d.yaml", "domain: [\n")
		u.until(t, "bad rules are refused", func() error {
			text, err := get("http://" + u.prometheus + "/metrics")
			if err == nil && !strings.Contains(string(text), "\nratelimit_config_refused 1\n") {
				err = fmt.Errorf("no sign of it in\n%s", linesWith(string(text), "config_refused"))
			}
			if err == nil {
				all.add(string(text))
			}
			return err
		})
	}
	// One that asks a management server which is not there, and would show it a
	// certificate.
	s := startServiceUnready(t, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+certificates.Client.Cert,
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+certificates.Client.Key)
	text, err := get("http://" + s.prometheus + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nratelimit_xds_connected 0\n") {
		t.Errorf("without a management server:\n%s", linesWith(string(text), "ratelimit_xds"))
	}
	all.add(string(text))
	return all
}

// reportQuota reports a quota bucket as a proxy does that refused a request and let another one pass, and returns the
// answer.
func reportQuota(t *testing.T, address, domain string,
	bucket map[string]string,
) (answer *quotapb.RateLimitQuotaResponse) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := quotapb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(t.Context())
	if err == nil {
		err = stream.Send(&quotapb.RateLimitQuotaUsageReports{
			Domain: domain,
			BucketQuotaUsages: []*quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{
				{BucketId: &quotapb.BucketId{Bucket: bucket}, NumRequestsAllowed: 1, NumRequestsDenied: 1},
			},
		})
	}
	if err == nil {
		answer, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// alertFile is what ours uses of Prometheus' rule files; other keys are errors.
type alertFile struct {
	Groups []struct {
		Name  string  `yaml:"name"`
		Rules []alert `yaml:"rules"`
	} `yaml:"groups"`
}

type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func readAlerts(t *testing.T) []alert {
	t.Helper()
	var f alertFile
	d := yaml.NewDecoder(strings.NewReader(read(t, filepath.Join(monitoringDir, "alerts.yaml"))))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		t.Fatal(err)
	}
	if len(f.Groups) != 1 || len(f.Groups[0].Rules) < 8 {
		t.Fatalf("%d groups: want one, with the alerts", len(f.Groups))
	}
	return f.Groups[0].Rules
}

// Each alert asks for what a scrape has, says what it means, and has a test in
// which it fires and is resolved.
func TestAlerts(t *testing.T) {
	var tests struct {
		Tests []struct {
			Name  string `yaml:"name"`
			Exprs []struct {
				Expr    string `yaml:"expr"`
				Samples []struct {
					Labels string `yaml:"labels"`
				} `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		} `yaml:"tests"`
	}
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(monitoringDir, "alerts_test.yaml"))), &tests); err != nil {
		t.Fatal(err)
	}
	fires := make(map[string]bool)
	for _, test := range tests.Tests {
		if last := test.Exprs[len(test.Exprs)-1]; !strings.HasPrefix(last.Expr, "ALERTS") || len(last.Samples) > 0 {
			t.Errorf("%s: it ends before all alerts are resolved", test.Name)
		}
		for _, e := range test.Exprs {
			for _, s := range e.Samples {
				if m := regexp.MustCompile(`alertname="(\w+)", alertstate="firing"`).FindStringSubmatch(s.Labels); m != nil {
					fires[m[1]] = true
				}
			}
		}
	}
	there, seen := scrapes(t), make(map[string]bool)
	told := read(t, "docs/monitoring.md")
	for _, a := range readAlerts(t) {
		if a.Alert == "" || seen[a.Alert] || !strings.HasPrefix(a.Alert, "Ratelimit") {
			t.Errorf("alert %q: want a name that begins with Ratelimit, once", a.Alert)
		}
		seen[a.Alert] = true
		for _, problem := range there.problems(a.Expr) {
			t.Errorf("%s: %s", a.Alert, problem)
		}
		if _, err := time.ParseDuration(a.For); err != nil {
			t.Errorf("%s: for: %v", a.Alert, err)
		}
		if s := a.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", a.Alert, s)
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: it does not say what it means", a.Alert)
		}
		if problem := runbookProblem(t, a.Annotations["runbook"]); problem != "" {
			t.Errorf("%s: runbook %q: %s", a.Alert, a.Annotations["runbook"], problem)
		}
		for _, text := range a.Annotations {
			for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
				if !there.yields(a.Expr, m[1]) {
					t.Errorf("%s: %q: it has no label %s", a.Alert, text, m[1])
				}
			}
		}
		if !fires[a.Alert] {
			t.Errorf("%s: no test in which it fires", a.Alert)
		}
		if !strings.Contains(told, "\n| `"+a.Alert+"` |") {
			t.Errorf("docs/monitoring.md has no row for %s", a.Alert)
		}
	}
	for name := range fires {
		if !seen[name] {
			t.Errorf("a test expects %s, which there is not", name)
		}
	}
}

// runbookProblem returns what is wrong with the page and the heading that an alert names; "" if nothing is.
func runbookProblem(t *testing.T, link string) string {
	t.Helper()
	page, heading, hasHeading := strings.Cut(link, "#")
	switch {
	case !strings.HasPrefix(page, "docs/"):
		return "want a page of docs"
	case !hasHeading:
		_ = read(t, page) // A missing page fails the test.
		return ""
	}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(read(t, page), -1) {
		if strings.ToLower(strings.ReplaceAll(m[1], " ", "-")) == heading {
			return ""
		}
	}
	return "the page has no such heading"
}

const ruleHead = `# Needs the Prometheus Operator. Written from alerts.yaml by ` + "`make docs`" + `; a test
# holds it to that.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ratelimit
spec:
`

// The alerts for the operator are those of the plain file.
func TestPrometheusRule(t *testing.T) {
	_, groups, ok := strings.Cut(read(t, filepath.Join(monitoringDir, "alerts.yaml")), "\ngroups:\n")
	if !ok {
		t.Fatal("alerts.yaml has no groups")
	}
	want := ruleHead + "  groups:\n" + regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(groups, "  $1")
	const name = monitoringDir + "/prometheusrule.yaml"
	if *update {
		if err := os.WriteFile(filepath.Join(repository, name), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if read(t, name) != want {
		t.Errorf("%s is not what alerts.yaml says: run `make docs`", name)
	}
}

// board is what is looked at of a dashboard.
type board struct {
	Title       string  `json:"title"`
	UID         *string `json:"uid"`
	Annotations struct {
		List []target `json:"list"`
	} `json:"annotations"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID          int         `json:"id"`
	Type        string      `json:"type"`
	Title       string      `json:"title"`
	Description string      `json:"description"`
	Datasource  *datasource `json:"datasource"`
	Grid        struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets []target `json:"targets"`
	Panels  []panel  `json:"panels"` // within a row
}

type target struct {
	Datasource *datasource `json:"datasource"`
	Expr       string      `json:"expr"`
	Legend     string      `json:"legendFormat"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

func readBoard(t *testing.T) board {
	t.Helper()
	var b board
	if err := json.Unmarshal([]byte(read(t, filepath.Join(monitoringDir, "dashboard.json"))), &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// The dashboard asks for what scrapes have, of whichever Prometheus is chosen.
func TestDashboard(t *testing.T) {
	b, there := readBoard(t), scrapes(t)
	if b.Title == "" || b.UID != nil {
		t.Errorf("title %q, uid %v: want a title, and no uid, so that it may be there twice", b.Title, b.UID)
	}
	variables := make(map[string]string)
	for _, v := range b.Templating.List {
		variables[v.Name] = v.Type
		if v.Type == "query" {
			m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
			if m == nil {
				t.Errorf("$%s is asked for by %s", v.Name, v.Definition)
				continue
			}
			for _, problem := range there.problems(fmt.Sprintf("sum by (%s) (%s)", m[2], m[1])) {
				t.Errorf("$%s: %s", v.Name, problem)
			}
		}
	}
	if variables["datasource"] != "datasource" {
		t.Errorf("variables %v: the data source is none", variables)
	}
	chosen := datasource{"prometheus", "${datasource}"}
	ids, cells, asked := make(map[int]bool), make(map[[2]int]string), 0
	for _, p := range b.Panels {
		if p.ID < 1 || ids[p.ID] {
			t.Errorf("%s: id %d: want one of its own", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.Grid.X; x < p.Grid.X+p.Grid.W; x++ {
			for y := p.Grid.Y; y < p.Grid.Y+p.Grid.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies on %q, or beyond the edge", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			if len(p.Panels)+len(p.Targets) > 0 {
				t.Errorf("row %s is folded", p.Title)
			}
			continue
		}
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || p.Datasource == nil || *p.Datasource != chosen {
			t.Errorf("%s: want a title, a description, something to show, and the data source that is chosen", p.Title)
		}
		for _, q := range p.Targets {
			asked++
			there.shows(t, p.Title, q, chosen)
		}
	}
	for _, q := range b.Annotations.List {
		there.shows(t, "annotation", q, chosen)
	}
	if asked < 20 {
		t.Errorf("only %d expressions", asked)
	}
	for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(read(t,
		filepath.Join(monitoringDir, "dashboard.json")), -1) {
		if variables[m[1]] == "" && m[1] != "__rate_interval" {
			t.Errorf("$%s is no variable", m[1])
		}
	}
}

// shows holds one line of a panel to the scrapes.
func (s scraped) shows(t *testing.T, title string, q target, chosen datasource) {
	t.Helper()
	if q.Datasource == nil || *q.Datasource != chosen {
		t.Errorf("%s: %s is not asked of the data source that is chosen", title, q.Expr)
	}
	for _, problem := range s.problems(q.Expr) {
		t.Errorf("%s: %s", title, problem)
	}
	for _, use := range parseQuery(q.Expr).metrics {
		if !slices.ContainsFunc(use.matchers, func(m matcher) bool { return m == matcher{"job", "=~", "$job"} }) {
			t.Errorf("%s: %s is of other jobs, too", title, use.name)
		}
	}
	for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.Legend, -1) {
		if !s.yields(q.Expr, m[1]) {
			t.Errorf("%s: %s has no label %s", title, q.Expr, m[1])
		}
	}
}

// promtool runs Prometheus' own checker, or skips the test, or fails it when CI
// is "true".
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("%v; it is in Debian's package prometheus", err)
	default:
		t.Skipf("%v; it is in Debian's package prometheus", err)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Prometheus takes the alerts, and they fire when they should and not before.
func TestPromtoolAlerts(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", filepath.Join(repository, monitoringDir, "alerts.yaml"))
	promtool(t, "test", "rules", filepath.Join(repository, monitoringDir, "alerts_test.yaml"))
}

// Prometheus takes the scrape that docs/monitoring.md shows: all of it but the discovery
// of pods, which Debian's promtool is built without.
func TestPromtoolScrape(t *testing.T) {
	m := regexp.MustCompile("(?s)```yml\n(scrape_configs:\n.*?)```").FindStringSubmatch(read(t, "docs/monitoring.md"))
	if m == nil {
		t.Fatal("docs/monitoring.md shows none")
	}
	discovery := regexp.MustCompile(`(?m)kubernetes_sd_configs:\n.*$`)
	if !discovery.MatchString(m[1]) {
		t.Fatalf("no discovery of pods in\n%s", m[1])
	}
	text := discovery.ReplaceAllString(m[1], `static_configs: [{targets: ["localhost:9090"]}]`)
	path := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "config", path)
}

// All that the dashboard asks is PromQL, once Grafana has put in its variables.
func TestPromtoolDashboard(t *testing.T) {
	b := readBoard(t)
	exprs := make(map[string]bool)
	for _, p := range b.Panels {
		for _, q := range p.Targets {
			exprs[q.Expr] = true
		}
	}
	for _, q := range b.Annotations.List {
		exprs[q.Expr] = true
	}
	type record struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var list []record
	for i, expr := range slices.Sorted(maps.Keys(exprs)) {
		expr = strings.ReplaceAll(expr, "$__rate_interval", "1m")
		list = append(list, record{fmt.Sprintf("dashboard:%d", i), regexp.MustCompile(`\$\w+`).ReplaceAllString(expr, ".*")})
	}
	file := map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": list}}}
	text, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", path)
}
