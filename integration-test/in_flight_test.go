package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"ratelimit/testbed/redistest"
)

// An honest client may have thousands of large calls in flight on one connection while Redis stands still: each is answered or
// refused on its own, and the connection stays.
func TestManyCallsInFlight(t *testing.T) {
	const calls, descriptors = 4000, 20
	rules := newRuleDir(t)
	rules.put(t, "rules.yaml", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000000000}}]\n")
	store := redistest.Start(t, redistest.Options{})
	for name, env := range map[string][]string{
		"memory":  {"BACKEND_TYPE=memory"},
		"Redis":   {"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + store.Addr, "REDIS_TIMEOUT=5s"},
		"tracing": {"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + store.Addr, "REDIS_TIMEOUT=5s", "TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startService(t, append(rules.env(), env...)...)
			conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			caller := rlsv3.NewRateLimitServiceClient(conn)
			var texts []string
			for i := range descriptors {
				texts = append(texts, fmt.Sprint("k=", i))
			}
			message := request("d", texts...)
			if name != "memory" {
				store.Pause()
				defer store.Resume()
				time.AfterFunc(time.Second, store.Resume)
			}
			var mu sync.Mutex
			ended := make(map[string]int)
			var all sync.WaitGroup
			for range calls {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
					defer cancel()
					_, err := caller.ShouldRateLimit(ctx, message)
					text := "answered"
					switch {
					case status.Code(err) == codes.ResourceExhausted || status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "store"):
						text = "refused"
					case err != nil:
						text = err.Error()
					}
					mu.Lock()
					ended[text]++
					mu.Unlock()
				})
			}
			all.Wait()
			if ended["answered"]+ended["refused"] != calls {
				t.Errorf("%d calls ended so: %v", calls, ended)
			}
			t.Logf("%v", ended)
		})
	}
}
