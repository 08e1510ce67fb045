package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// lab is a Prometheus with the shipped alerts, in a hurry.
type lab struct {
	url     string // the address of Prometheus
	targets string // the directory of the files that name the services to scrape
	started time.Time
}

// hurried has the shipped alerts with short intervals: an alert for 10m waits a second, a rate is that of 10 s, and an
// hour ago is 20 s ago. What is slow is ten times slower, because the machine may be busy.
func hurried(alerts string) string {
	alerts = regexp.MustCompile(`(?m)^(\s+for:) \w+$`).ReplaceAllString(alerts, "$1 1s")
	alerts = regexp.MustCompile(`\[\d+m\]`).ReplaceAllString(alerts, "[10s]")
	alerts = regexp.MustCompile(`(\[10s\]\)\)\) > 0\.)0`).ReplaceAllString(alerts, "$1")
	return strings.ReplaceAll(alerts, "offset 1h", "offset 20s")
}

// startLab starts Prometheus, which ends with the test.
func startLab(t *testing.T) *lab {
	t.Helper()
	dir, path := t.TempDir(), harness.Program(t, "prometheus", "prometheus")
	l := &lab{targets: filepath.Join(dir, "targets"), started: time.Now()}
	config := `
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: fault
    file_sd_configs: [{files: [targets/*.json], refresh_interval: 1s}]
`
	err := errors.Join(
		os.Mkdir(l.targets, 0o755),
		os.WriteFile(filepath.Join(dir, "alerts.yaml"), []byte(hurried(read(t, "alerts.yaml"))), 0o600),
		os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600),
	)
	port, portErr := harness.FreePort()
	if err := errors.Join(err, portErr); err != nil {
		t.Fatal(err)
	}
	l.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	p := &harness.Process{Path: path, Log: filepath.Join(dir, "log"), Args: []string{
		"--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port),
	}}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			p.ShowLog(t, "Prometheus")
		}
	})
	harness.Await(t, harness.Deadline, "Prometheus is ready", func() error {
		if err := p.Exited(); err != nil {
			return harness.Permanent{Err: err}
		}
		return l.get("/-/ready", nil, nil)
	})
	return l
}

var web = &http.Client{Timeout: 30 * time.Second}

// get asks Prometheus and reads the data of its answer into data, if that is not nil.
func (l *lab) get(path string, form url.Values, data any) error {
	resp, err := web.Get(l.url + path + "?" + form.Encode())
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	if data == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(&struct{ Data any }{data})
}

// scrape has Prometheus scrape services as a job.
func (l *lab) scrape(t *testing.T, job string, services ...*service) {
	t.Helper()
	var addrs []string
	for _, s := range services {
		addrs = append(addrs, s.Addrs["prometheus"])
	}
	text, err := json.Marshal([]any{map[string]any{"targets": addrs, "labels": map[string]string{"job": job}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(l.targets, job+".json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// firing returns the names of the alerts of a job that fire, sorted.
func (l *lab) firing(job string) (names []string, err error) {
	var data struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	err = l.get("/api/v1/alerts", nil, &data)
	for _, a := range data.Alerts {
		if a.State == "firing" && a.Labels["job"] == job {
			names = append(names, a.Labels["alertname"])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// await waits until the alerts of a job fire, or until none of them does.
func (l *lab) await(t *testing.T, job string, alerts []string, fire bool) {
	t.Helper()
	what := map[bool]string{true: "these fire: ", false: "these are resolved: "}[fire]
	harness.Await(t, 90*time.Second, what+strings.Join(alerts, ", "), func() error {
		names, err := l.firing(job)
		for _, a := range alerts {
			if err == nil && slices.Contains(names, a) != fire {
				err = fmt.Errorf("%s does not; %q fire", a, names)
			}
		}
		return err
	})
}

// series is one result of a query: its labels, and its values since the start of the lab.
type series struct {
	Metric map[string]string
	Values [][2]any // time and value
}

// isZero reports whether all values are 0 or no numbers.
func (s series) isZero() bool {
	return !slices.ContainsFunc(s.Values, func(v [2]any) bool { return v[1] != "0" && v[1] != "NaN" })
}

// query returns what a query found since the start of the lab.
func (l *lab) query(expr string) ([]series, error) {
	var data struct{ Result []series }
	err := l.get("/api/v1/query_range", url.Values{
		"query": {expr}, "start": {fmt.Sprint(l.started.Unix())}, "end": {fmt.Sprint(time.Now().Unix())}, "step": {"2"},
	}, &data)
	return data.Result, err
}
