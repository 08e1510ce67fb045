package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	configv3 "ratelimit/api/ratelimit/config/ratelimit/v3"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/xdstest"
)

// startOrderRule limits (ip, 1) of domain d to 5 per year.
var startOrderRule = &configv3.RateLimitConfig{Name: "d", Domain: "d", Descriptors: []*configv3.RateLimitDescriptor{{
	Key: "ip", RateLimit: &configv3.RateLimitPolicy{RequestsPerUnit: 5, Unit: configv3.RateLimitUnit_YEAR},
}}}

// canConnect reports whether a client can connect to address.
func canConnect(network, address string) bool {
	conn, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was sent
	return true
}

// askAtOnce makes one call that does not wait for the server.
func askAtOnce(target string) error {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("d", "ip=1"))
	if err == nil && answer.GetStatuses()[0].GetCurrentLimit() == nil {
		return fmt.Errorf("the rules do not apply: %v", answer)
	}
	return err
}

// postJSON asks about ip=1 of domain d over /json, and returns the status.
func (s *service) postJSON(t *testing.T) int {
	t.Helper()
	resp, err := client.Post("http://"+s.http+"/json", "application/json",
		strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}`))
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = resp.Body.Close() // only the status matters
	return resp.StatusCode
}

// A client that waits for the gRPC port meets a service that decides, whatever the source of the rules and however late
// these are.
func TestCallersWaitForRules(t *testing.T) {
	for _, engine := range engines {
		for _, tt := range []struct {
			name, network string
			late          bool // the rules come after the start
		}{
			{"xds", "tcp", true}, {"xds, rules at once", "tcp", false}, {"a unix socket", "unix", true},
		} {
			t.Run(engine+"/"+tt.name, func(t *testing.T) {
				l := harness.Listen(t)
				server := xdstest.Start(t, l)
				publish := func() { server.Publish(t, "n", "1", startOrderRule) }
				if !tt.late {
					publish()
				}
				port := freePort(t)
				address, target := "127.0.0.1:"+port, "127.0.0.1:"+port
				env := []string{
					"LOG_LEVEL=info", "GRPC_ENGINE=" + engine, "GRPC_PORT=" + port, "CONFIG_TYPE=GRPC_XDS_SOTW",
					"CONFIG_GRPC_XDS_SERVER_URL=" + l.Addr().String(), "CONFIG_GRPC_XDS_NODE_ID=n",
				}
				if tt.network == "unix" {
					address = filepath.Join(t.TempDir(), "s")
					target, env = "unix://"+address, append(env, "GRPC_UDS="+address)
				}
				s := runService(t, env...)
				if tt.late {
					s.untilLogged(t, "connected to the xds server")
					if canConnect(tt.network, address) {
						t.Error("a client can connect before the rules")
					}
					s.readLog(t)
					if code, text := s.healthcheck(t); code != http.StatusInternalServerError ||
						text != "the rules are not loaded yet\n" {
						t.Errorf("/healthcheck before the rules: %d %s", code, text)
					}
					publish()
				}
				s.until(t, "a client can connect", func() error {
					if !canConnect(tt.network, address) {
						return errors.New("not yet")
					}
					if err := askAtOnce(target); err != nil {
						t.Errorf("the first call: %v", err)
					}
					return nil
				})
				s.awaitReady(t)
				if code, text := s.healthcheck(t); code != http.StatusOK {
					t.Errorf("/healthcheck with rules: %d %s", code, text)
				}
			})
		}
	}
}

// The ports of all callers wait for the first good rules. Refused ones do not open them, and
// FORCE_START_WITHOUT_INITIAL_CONFIG does.
func TestPortsWaitForGoodRules(t *testing.T) {
	const good = "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 5}}]"
	for _, tt := range []struct {
		name, variable string
		open           bool // the ports are open without rules
	}{
		{"refused rules", "LOG_LEVEL=warn", false},
		{"refused rules, forced", "FORCE_START_WITHOUT_INITIAL_CONFIG=true", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", "domain: d\ndescriptors: [{kez: ip}]")
			addresses := map[string]string{"GRPC_PORT": freePort(t), "RESP_PORT": freePort(t), "DIVVY_PORT": freePort(t)}
			env := append(rules.env(), tt.variable, "RESP_HOST=127.0.0.1", "DIVVY_HOST=127.0.0.1", "RUNTIME_DEBOUNCE=10ms")
			for name, port := range addresses {
				env = append(env, name+"="+port)
			}
			s := runService(t, env...)
			s.untilLogged(t, `unknown key \"kez\"`)
			for name, port := range addresses {
				if got := canConnect("tcp", "127.0.0.1:"+port); got != tt.open {
					t.Errorf("%s without rules: a client can connect: %t", name, got)
				}
			}
			if !tt.open {
				s.untilLogged(t, "the ports of callers stay closed")
			}
			s.readLog(t)
			if status := s.postJSON(t); status != http.StatusServiceUnavailable {
				t.Errorf("/json after a refusal: %d", status)
			}
			rules.put(t, "d.yaml", good)
			for name, port := range addresses {
				s.until(t, name+" is open", func() error {
					if !canConnect("tcp", "127.0.0.1:"+port) {
						return errors.New("not yet")
					}
					return nil
				})
			}
			s.until(t, "the rules apply", func() error { return askAtOnce("127.0.0.1:" + addresses["GRPC_PORT"]) })
		})
	}
}

// Requests to /json that come before the first rules wait for them, for at most 5 s from the start.
func TestEarlyJSON(t *testing.T) {
	t.Parallel()
	l := harness.Listen(t)
	server := xdstest.Start(t, l)
	env := []string{"LOG_LEVEL=info", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + l.Addr().String()}
	started := time.Now()
	with, without := runService(t, append(env, "CONFIG_GRPC_XDS_NODE_ID=with")...),
		runService(t, append(env, "CONFIG_GRPC_XDS_NODE_ID=without")...)
	got := make(chan int, 1)
	for _, s := range []*service{with, without} {
		s.untilLogged(t, "connected to the xds server")
		s.readLog(t)
	}
	go func() { got <- with.postJSON(t) }()
	select {
	case status := <-got:
		t.Fatalf("a request was answered without rules: %d", status)
	case <-time.After(100 * time.Millisecond):
	}
	server.Publish(t, "with", "1", startOrderRule)
	if status := <-got; status != http.StatusOK {
		t.Errorf("a request before the rules: %d", status)
	}
	if status := without.postJSON(t); status != http.StatusServiceUnavailable {
		t.Errorf("a request without rules: %d", status)
	}
	if took := time.Since(started); took < 5*time.Second {
		t.Errorf("it was refused after %v, want 5 s or more", took)
	}
}

// Two services cannot have one gRPC port, even if both still wait for rules; and SIGTERM ends one that waits.
func TestSecondStartWithoutRules(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	port := freePort(t)
	env := []string{"GRPC_PORT=" + port, "RUNTIME_ROOT=" + dir, "RUNTIME_POLL_INTERVAL=50ms", "RUNTIME_DEBOUNCE=10ms"}
	first := runService(t, env...)
	first.untilLogged(t, "does not exist; create it")
	second := runService(t, env...)
	second.untilLogged(t, "does not exist; create it")
	// Both load the rules at the same time; one of them gets the port.
	if err := os.MkdirAll(filepath.Join(dir, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "d.yaml"),
		[]byte("domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 5}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	loser := first
	select {
	case <-first.Done():
	case <-second.Done():
		loser = second
	case <-time.After(patience):
		t.Fatal("both services run")
	}
	loser.stopped = true
	if log, want := loser.log(
		t), "the grpc port 127.0.0.1:"+port+" is taken: stop what listens there, or set GRPC_PORT"; !strings.Contains(log,
		want) {
		t.Errorf("no %q in\n%s", want, log)
	}
	// The cleanup of each service sends SIGTERM and checks the exit code. This one still waits for rules then.
	waiting := runService(t, "RUNTIME_ROOT="+dir+"/none", "GRPC_PORT="+freePort(t))
	waiting.untilLogged(t, "does not exist; create it")
}

// After a start without Redis the service is healthy as soon as calls succeed, however long the pauses between two log
// lines are.
func TestHealthFollowsRedis(t *testing.T) {
	redis := redistest.Start(t, redistest.Options{})
	redis.Stop()
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 5}}]")
	s := runService(t, append(rules.env(), "DISABLE_STATS=true", "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=1s",
		"REDIS_STARTUP_INITIAL_INTERVAL=1h", "REDIS_STARTUP_MAX_INTERVAL=1h")...)
	s.untilLogged(t, "not ready: Redis does not answer")
	s.readLog(t)
	redis.Restart(t)
	s.until(t, "a call succeeds", func() error {
		if status := s.postJSON(t); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	succeeded := time.Now()
	s.until(t, "the service is healthy", func() error {
		if code, text := s.healthcheck(t); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	if took := time.Since(succeeded); took > 2*time.Second {
		t.Errorf("it was healthy %v after the first call", took)
	}
	if n := strings.Count(s.log(t), "not ready: Redis does not answer"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}
