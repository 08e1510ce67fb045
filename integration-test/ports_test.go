package integration

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"ratelimit/testbed/redistest"
)

// fillPort opens n connections to addr that send nothing. They are closed when the test ends.
func fillPort(t *testing.T, addr string, n int) {
	t.Helper()
	for i := range n {
		conn, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			t.Fatalf("connection %d to %s: %v", i, addr, err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// probes asks for all probes over new connections.
func probes(s *service) error {
	fresh := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/livez", "/readyz", "/healthcheck"} {
		resp, err := fresh.Get("http://" + s.http + path)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", path, resp.Status)
		}
	}
	return nil
}

// With 256 file descriptors, which callers use up on all ports, probes, connections to
// Redis and reloads work, and Redis may go and come back.
func TestFewFileDescriptors(t *testing.T) {
	redis := redistest.Start(t, redistest.Options{})
	rules := newRuleDir(t)
	limit := func(n int) {
		rules.put(t, "a.yaml", fmt.Sprintf("domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, "+
			"requests_per_unit: %d}}\n", n))
	}
	limit(1000)
	cmd := serviceCommand(t, append(rules.env(), "DIVVY_HOST=127.0.0.1", "DIVVY_PORT=0", "REDIS_URL="+redis.Addr,
		"REDIS_TIMEOUT=2s")...)
	cmd.Args = append([]string{"sh", "-c", `ulimit -n 256 && exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	s := &service{process: start(t, "ratelimit", cmd)}
	s.awaitReady(t)
	if log := s.log(t); !strings.Contains(log, "may open 256 files") {
		t.Errorf("no warning of it in\n%s", log)
	}
	for _, addr := range []string{s.http, s.grpc, s.divvy, s.debug} {
		fillPort(t, addr, 256)
	}
	allWorks := func(when string, requests int) {
		t.Helper()
		limit(requests)
		s.until(t, when+": probes, Redis and the reload", func() error {
			if err := probes(s); err != nil {
				return err
			}
			status, answer := s.ask(t, "d", "a=1")
			if got := answer.GetStatuses(); status != http.StatusOK ||
				int(got[0].GetCurrentLimit().GetRequestsPerUnit()) != requests {
				return fmt.Errorf("%d %v", status, got)
			}
			return nil
		})
	}
	allWorks("with all descriptors used up", 2000)
	redis.Stop()
	redis.Restart(t)
	allWorks("after Redis was away", 3000)
}
