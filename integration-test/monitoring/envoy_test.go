package monitoring

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// startEnvoy starts an Envoy with examples/envoy/quota.yaml, which asks s for quotas, and returns a function that sends
// it a request.
func startEnvoy(t *testing.T, s *service) (request func()) {
	t.Helper()
	text := testfiles.Read(t, filepath.Join(repository, "examples", "envoy", "quota.yaml"))
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	_, servicePort, _ := strings.Cut(s.Addrs["grpc"], ":")
	config := string(text)
	for from, to := range map[string]string{
		"127.0.0.1, port_value: 8001": "127.0.0.1, port_value: 0",
		"0.0.0.0, port_value: 8888":   fmt.Sprintf("127.0.0.1, port_value: %d", port),
		"127.0.0.1, port_value: 8081": "127.0.0.1, port_value: " + servicePort,
	} {
		if !strings.Contains(config, from) {
			t.Fatalf("examples/envoy/quota.yaml has no %q", from)
		}
		config = strings.Replace(config, from, to, 1)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "envoy.yaml")
	testfiles.Write(t, file, config)
	p := &harness.Process{Path: harness.Envoy(t), Log: filepath.Join(dir, "log"), Args: []string{
		"--config-path", file, "--concurrency", "1", "--log-level", "warning", "--disable-hot-restart",
	}}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			p.ShowLog(t, "Envoy")
		}
	})
	send := func() error {
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
		if err != nil {
			return err
		}
		req.Header.Set("env", "prod")
		resp, err := web.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body) // to its end, so that the connection is used again
		return errors.Join(err, resp.Body.Close())
	}
	harness.Await(t, harness.Deadline, "Envoy answers", func() error {
		if err := p.Exited(); err != nil {
			return harness.Permanent{Err: err}
		}
		return send()
	})
	return func() { _ = send() } // It fails when Envoy stops.
}

// causeUnfair has two Envoys share 20 requests a second. The callers of one send 40 a second. Those of the other send
// 80 at once every four seconds: at most half of the limit passes then, and what this Envoy does not use in the other
// three seconds is lost with the second's window. A window of ten seconds, in which each Envoy keeps its half until the
// burst, repairs it.
func causeUnfair(t *testing.T, l *lab, job string) func() {
	rules := func(limit string) string {
		return "domain: quotas\nquota_buckets: true\ndescriptors: [{key: env, descriptors: [{key: name, rate_limit: {" + limit + "}}]}]\n"
	}
	s := startService(t, rules("unit: second, requests_per_unit: 20"))
	l.scrape(t, job, s)
	steady, bursts := startEnvoy(t, s), startEnvoy(t, s)
	traffic(t, 25*time.Millisecond, func(int) { steady() })
	traffic(t, 4*time.Second, func(int) {
		for range 80 {
			bursts()
		}
	})
	return func() { s.write(t, rules("unit: second, unit_multiplier: 10, requests_per_unit: 200")) }
}
