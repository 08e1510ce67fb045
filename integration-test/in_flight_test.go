package integration

import (
	"context"
	"flag"
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

var full = flag.Bool("full", false,
	"TestManyCallsInFlight: 10,000 calls of up to 1,000 descriptors while Redis stands still for 5 s; "+
		"TestJavaClient: build with mvn; takes minutes")

// inFlight is one client's calls, all at the same time over one connection.
type inFlight struct {
	calls       int
	descriptors []int         // of the calls, in turn
	pause       time.Duration // of Redis
	timeout     time.Duration // of a call
}

// An honest client may have thousands of large calls in flight on one connection while Redis stands still: each is
// answered or refused on its own, and the connection stays.
func TestManyCallsInFlight(t *testing.T) {
	sizes := map[string]inFlight{"large": {2000, []int{20}, time.Second, 2 * patience}}
	if *full {
		sizes = map[string]inFlight{
			"small":       {10_000, []int{1}, 5 * time.Second, 2 * time.Minute},
			"large":       {10_000, []int{20}, 5 * time.Second, 2 * time.Minute},
			"of any size": {10_000, []int{1, 20, 100, 3, 1, 8, 1000, 2, 1, 300}, 5 * time.Second, 2 * time.Minute},
			"the largest": {2_000, []int{1000}, 5 * time.Second, 2 * time.Minute},
		}
	}
	rules := newRuleDir(t)
	rules.put(t, "rules.yaml", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: "+
		"1000000000}}]\n")
	store := redistest.Start(t, redistest.Options{})
	inRedis := []string{"REDIS_URL=" + store.Addr, "REDIS_TIMEOUT=6s"}
	for name, env := range map[string][]string{
		"memory":         {"BACKEND_TYPE=memory"},
		"memory, traced": {"BACKEND_TYPE=memory", "TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
		"Redis":          inRedis,
		"Redis, traced": append([]string{"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
			inRedis...),
	} {
		for size, calls := range sizes {
			t.Run(name+", "+size, func(t *testing.T) {
				s := startService(t, append(rules.env(), env...)...)
				if strings.HasPrefix(name, "Redis") {
					store.Pause()
					defer store.Resume()
					time.AfterFunc(calls.pause, store.Resume)
				}
				begun := time.Now()
				ended := calls.make(t, s.grpc)
				if ended["answered"]+ended["refused"] != calls.calls || ended["answered"] == 0 {
					t.Errorf("%d calls ended so: %v", calls.calls, ended)
				}
				t.Logf("%v in %v", ended, time.Since(begun))
			})
		}
	}
}

// make makes the calls, and counts how they end.
func (f inFlight) make(t *testing.T, addr string) map[string]int {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	caller := rlsv3.NewRateLimitServiceClient(conn)
	var messages []*rlsv3.RateLimitRequest
	for _, n := range f.descriptors {
		var texts []string
		for i := range n {
			texts = append(texts, fmt.Sprint("k=", i))
		}
		messages = append(messages, request("d", texts...))
	}
	ctx, cancel := context.WithTimeout(t.Context(), f.timeout)
	defer cancel()
	var mu sync.Mutex // guards ended
	ended := make(map[string]int)
	var all sync.WaitGroup
	for i := range f.calls {
		all.Go(func() {
			_, err := caller.ShouldRateLimit(ctx, messages[i%len(messages)])
			text := "answered"
			switch {
			case status.Code(err) == codes.ResourceExhausted ||
				status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "store"):
				text = "refused"
			case err != nil:
				text = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			ended[text]++
		})
	}
	all.Wait()
	return ended
}
