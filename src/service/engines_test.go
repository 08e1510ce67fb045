package service

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// eachEngine runs test with each value of GRPC_ENGINE. engine is the variable and its value.
func eachEngine(t *testing.T, test func(t *testing.T, engine string)) {
	t.Helper()
	for _, name := range []string{"h2", "grpc-go"} {
		t.Run(name, func(t *testing.T) { test(t, "GRPC_ENGINE="+name) })
	}
}

// TestStopLosesNoCall checks that a stop loses no call: callers see no error but that their next connection is refused.
// Health watches say so before. Until then, each call is counted once for its method.
func TestStopLosesNoCall(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine string) {
		t.Parallel()
		s := launch(t, oneRule, engine)
		s.until("ready", s.healthy)
		conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		limits, health := pb.NewRateLimitServiceClient(conn), healthpb.NewHealthClient(conn)
		watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		const checks, callsEach, callers = 3, 100, 8
		for range checks {
			if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Error(err)
			}
		}
		var arrived, ended sync.WaitGroup
		arrived.Add(callers)
		goOn := make(chan struct{})
		for range callers {
			ended.Go(func() {
				for n := 1; ; n++ {
					_, err := limits.ShouldRateLimit(t.Context(), request("d", "other"))
					if err != nil && (n <= callsEach || !strings.Contains(err.Error(), "connection refused")) {
						t.Errorf("call %d: %v", n, err)
					}
					if n == callsEach || err != nil && n < callsEach {
						arrived.Done()
						<-goOn
					}
					if err != nil {
						return
					}
				}
			})
		}
		arrived.Wait()
		_, page := s.get("debug", "/stats")
		for name, want := range map[string]int{"ShouldRateLimit": callers * callsEach, "Check": checks} {
			if line := fmt.Sprintf("ratelimit_server.%s.total_requests: %d\n", name, want); !strings.Contains(page, line) {
				t.Errorf("/stats has no %q", line)
			}
		}
		close(goOn)
		s.signals <- syscall.SIGTERM
		ended.Wait()
		for _, want := range []string{"SERVING", "NOT_SERVING"} {
			if next, err := watch.Recv(); err != nil || next.GetStatus().String() != want {
				t.Errorf("the watch got %v, %v, want %v", next, err, want)
			}
		}
		if err := s.wait(); err != nil {
			t.Error(err)
		}
	})
}
