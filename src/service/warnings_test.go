package service

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/testbed/redistest"
)

// A full port is in the log, once in a minute, with what to do; /readyz and the state for operators say it as well, and
// the process stays ready.
func TestFullPortIsTold(t *testing.T) {
	s := launch(t, oneRule, "GRPC_MAX_CONNECTIONS=2")
	s.until("ready", s.healthy)
	for range 6 {
		s.dial("grpc")
	}
	const advice = "raise GRPC_MAX_CONNECTIONS, or have clients share connections"
	line := s.logged("the grpc port is full with 2 connections: ")
	s.until("a line", func() bool { return line() && strings.Contains(s.log.String(), advice) })
	for range 6 {
		s.dial("grpc")
	}
	const note = "full with 2 connections: 10 were closed or refused "
	s.until("a note with all connections", func() bool {
		code, body := s.get("http", "/readyz")
		return code == http.StatusOK && strings.Contains(body, `"name":"grpc port"`) && strings.Contains(body, note)
	})
	if _, body := s.get("debug", "/api/state"); !strings.Contains(body, note) || !strings.Contains(body, `"warning":true`) {
		t.Errorf("the state is %s", body)
	}
	if n := strings.Count(s.log.String(), "port is full"); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// Calls whose callers leave are no failure of the store: no line of the log, and no outage.
func TestCallersThatLeaveAreNoOutage(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=20s", "DISABLE_STATS=false", "USE_PROMETHEUS=true",
		"PROMETHEUS_ADDR=127.0.0.1:0")
	s.until("ready", s.healthy)
	server.Pause()
	defer server.Resume()
	for i := range 5 {
		leave := s.postAndLeave
		if i == 0 {
			leave = s.askAndLeave
		}
		ctx, cancel := context.WithCancel(t.Context()) // A deadline that passes is the store's failure.
		timer := time.AfterFunc(50*time.Millisecond, cancel)
		err := leave(ctx)
		timer.Stop()
		cancel()
		if err == nil {
			t.Fatal("a paused Redis answered")
		}
	}
	s.until("the calls have ended", func() bool {
		_, metrics := s.get("prometheus", "/metrics")
		return strings.Contains(metrics, `ratelimit_store_errors_total{cause="left",store="redis_pool"} 5`)
	})
	if strings.Contains(s.log.String(), "could not be decided") {
		t.Error("the log blames the store")
	}
	for _, path := range []string{"/readyz", "/api/state"} {
		if _, body := s.get("debug", path); strings.Contains(body, "degraded") || strings.Contains(body, `"outages"`) {
			t.Errorf("%s: %s", path, body)
		}
	}
	if _, stats := s.get("debug", "/stats"); !strings.Contains(stats, "should_rate_limit.redis_error: 0") {
		t.Errorf("the store is counted as failed:\n%s", stats)
	}
}

// askAndLeave asks over gRPC, and closes the connection when ctx ends.
func (s *service) askAndLeave(ctx context.Context) error {
	conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &pb.RateLimitRequest{
		Domain: "d", Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: "ip", Value: "1"}},
		}},
	})
	return err
}

// postAndLeave asks over HTTP, and closes the connection when ctx ends.
func (s *service) postAndLeave(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address("http")+"/json", strings.NewReader(
		`{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}`))
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err
}
