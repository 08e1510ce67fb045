package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// fillPort opens n connections to addr that each send hello and then nothing. They are
// closed when the test ends.
func fillPort(t *testing.T, addr string, n int, hello string) {
	t.Helper()
	for i := range n {
		conn, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			t.Fatalf("connection %d to %s: %v", i, addr, err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetWriteDeadline(time.Now().Add(patience)) // else Write says so
		if _, err := io.WriteString(conn, hello); err != nil && !strings.Contains(err.Error(), "reset") &&
			!strings.Contains(err.Error(), "pipe") {
			t.Fatalf("connection %d to %s: %v", i, addr, err) // the service may close it
		}
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

// Probes and requests are answered with 10,000 idle connections on the same port, and
// with 1,200 unfinished bodies of 1 MiB, which take no more memory than the budget.
func TestProbesBesideIdleConnections(t *testing.T) {
	if err := harness.RaiseFileLimit(13_000); err != nil {
		t.Skip(err)
	}
	rules := newRuleDir(t)
	rules.put(t, "a.yaml", "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: 1000}}\n")
	for _, tt := range []struct {
		name  string
		n     int
		hello string
		env   string
	}{
		{"10,000 idle connections", 10_000, "", "GRPC_MAX_CONNECTIONS=100"},
		{
			"1,200 unfinished bodies", 1200,
			"POST /json HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat(" ", 1<<20-1),
			"GOMEMLIMIT=224MiB",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startService(t, append(rules.env(), "DIVVY_PORT=off", tt.env)...)
			fillPort(t, s.http, tt.n, tt.hello)
			for range 20 {
				if err := probes(s); err != nil {
					t.Error(err)
				}
				if status, _ := s.ask(t, "d", "a=1"); status != http.StatusOK {
					t.Errorf("a request gets %d", status)
				}
			}
			mib := s.resident(t) >> 20
			t.Logf("%d MiB", mib)
			if mib > 280 {
				t.Errorf("%d MiB are in use, want 280 or less", mib)
			}
		})
	}
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
		fillPort(t, addr, 256, "")
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
