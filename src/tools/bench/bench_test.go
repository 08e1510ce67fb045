package bench

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listener(t *testing.T) net.Listener {
	t.Helper()
	l := harness.Listen(t)
	return l
}

// service starts a limiter over memory behind gRPC and returns its address.
func service(t *testing.T, text string) string {
	t.Helper()
	lim := limitertest.New(t, limiter.Config{}, text)
	srv := rls.NewServer(rls.New(rls.Config{Limiter: lim}), rls.ServerConfig{})
	l := listener(t)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Shutdown(context.Background())
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// handler is a server of a few lines.
type handler func(context.Context) (*pb.RateLimitResponse, error)

type handlerServer struct {
	pb.UnimplementedRateLimitServiceServer
	handle handler
}

func (s handlerServer) ShouldRateLimit(ctx context.Context, _ *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return s.handle(ctx)
}

// with starts a server that answers what h does, or has no such service if h is nil.
func with(t *testing.T, h handler) string {
	t.Helper()
	srv := grpc.NewServer()
	if h != nil {
		pb.RegisterRateLimitServiceServer(srv, handlerServer{handle: h})
	}
	l := listener(t)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// config is one that passes, for a thousand calls.
func config(addr string) Config {
	return Config{
		Addr: addr, Connections: 2, InFlight: 4, Requests: 1000, Timeout: 10 * time.Second,
		Seed: 1, Workload: "uniform", Domain: "d", Key: "k", Keys: 50,
	}
}

const benchRules = `
domain: d
descriptors:
  - key: k
    rate_limit: {unit: year, requests_per_unit: 10}
`

// counts are answers by code, without the zeros.
func counts(r *Result) map[string]uint64 {
	m := maps.Clone(r.Answers)
	maps.DeleteFunc(m, func(_ string, n uint64) bool { return n == 0 })
	return m
}

func TestRun(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	line := `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v%d"}]}]}` + "\n"
	testfiles.Write(t, file, fmt.Appendf(nil, line+line+`{"domain":"d"}`, 1, 2))
	// Each key lets 10 calls pass.
	for _, tt := range []struct {
		name   string
		set    func(*Config)
		want   map[string]uint64
		errors map[string]uint64

		isUnlimited bool
	}{
		{
			name: "unknown domain", set: func(c *Config) { c.Domain = "dd" },
			want: map[string]uint64{"OK": 1000}, isUnlimited: true,
		},
		{name: "hot", set: func(c *Config) { c.Workload = "hot" }, want: map[string]uint64{"OK": 10, "OVER_LIMIT": 990}},
		{
			name: "overlimit", set: func(c *Config) { c.Workload = "overlimit" },
			want: map[string]uint64{"OK": 10, "OVER_LIMIT": 990},
		},
		{name: "nomatch", set: func(c *Config) { c.Workload = "nomatch" }, want: map[string]uint64{"OK": 1000}},
		{name: "uniform", set: func(*Config) {}, want: map[string]uint64{"OK": 500, "OVER_LIMIT": 500}},
		{
			name: "multi", set: func(c *Config) { c.Workload, c.Keys = "multi", 8 },
			want: map[string]uint64{"OK": 20, "OVER_LIMIT": 980},
		},
		{
			name: "open loop", set: func(c *Config) { c.Rate, c.Workload, c.Connections = 20_000, "hot", 1 },
			want: map[string]uint64{"OK": 10, "OVER_LIMIT": 990},
		},
		{
			name: "a file", set: func(c *Config) { c.RequestsFile, c.Requests = file, 60 },
			want: map[string]uint64{"OK": 20, "OVER_LIMIT": 20}, errors: map[string]uint64{"INVALID_ARGUMENT": 20},
		},
	} {
		cfg := config(service(t, benchRules))
		tt.set(&cfg)
		r, err := Run(t.Context(), cfg)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := counts(r); !maps.Equal(got, tt.want) || !maps.Equal(r.Errors, tt.errors) || r.Requests != cfg.Requests {
			t.Errorf("%s: %d requests, %v, %v, want %v, %v", tt.name, r.Requests, got, r.Errors, tt.want, tt.errors)
		}
		if l := r.Latency; l.P50 < 1 || l.P90 < l.P50 || l.P99 < l.P90 || l.P999 < l.P99 || l.Max < l.P999 || l.Mean <= 0 ||
			r.Seconds <= 0 || r.Rate <= 0 {
			t.Errorf("%s: %+v", tt.name, r)
		}
		if r.IsUnlimited != tt.isUnlimited {
			t.Errorf("%s: unlimited %t", tt.name, r.IsUnlimited)
		}
		if r.Interrupted || (r.OpenLoop != nil) != (cfg.Rate > 0) {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}

// The warmup is sent, and not counted.
func TestWarmup(t *testing.T) {
	t.Parallel()
	var asked atomic.Uint64
	cfg := config(with(t, func(context.Context) (*pb.RateLimitResponse, error) {
		asked.Add(1)
		return &pb.RateLimitResponse{OverallCode: over}, nil
	}))
	cfg.Warmup, cfg.Requests, cfg.Duration = 20*time.Millisecond, 0, 20*time.Millisecond
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests == 0 || r.Requests >= asked.Load() || r.Answers["OVER_LIMIT"] != r.Requests || r.Seconds < 0.02 {
		t.Errorf("%d were asked, %+v", asked.Load(), r)
	}
}

func TestProcesses(t *testing.T) {
	cfg := config(service(t, benchRules))
	cfg.Processes = []Process{{Name: "self", PID: os.Getpid()}}
	r, err := Run(t.Context(), cfg)
	if runtime.GOOS != "linux" {
		if err == nil || !strings.Contains(err.Error(), "Linux only") {
			t.Error(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := r.CPU["self"]; !ok || c.PID != os.Getpid() || r.Generator == nil || r.Generator.Seconds <= 0 ||
		r.Generator.PerRequest <= 0 {
		t.Errorf("%+v, %+v", r.CPU, r.Generator)
	}
	cfg.Processes[0].PID = 1 << 22
	if r, err := Run(t.Context(), cfg); r != nil || err == nil || !strings.Contains(err.Error(), "no such process") {
		t.Error(r, err)
	}
}

func TestEveryCallFails(t *testing.T) {
	t.Parallel()
	slow := func(ctx context.Context) (*pb.RateLimitResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, tt := range []struct {
		name    string
		h       handler
		timeout time.Duration
		code    string
		want    string
	}{
		{
			"another service", nil, 10 * time.Second, "UNIMPLEMENTED",
			"bench: every call failed, the first with UNIMPLEMENTED: unknown service envoy.service.ratelimit.v3.RateLimitService",
		},
		{
			"no answer", slow, 10 * time.Millisecond, "DEADLINE_EXCEEDED",
			"bench: every call failed, the first with DEADLINE_EXCEEDED: ",
		},
	} {
		cfg := config(with(t, tt.h))
		cfg.Requests, cfg.Timeout = 20, tt.timeout
		r, err := Run(t.Context(), cfg)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if r == nil || r.Requests != 20 || r.Errors[tt.code] != 20 || r.Rate != 0 {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}

// Some calls failing is a result like any other.
func TestSomeCallsFail(t *testing.T) {
	t.Parallel()
	var asked atomic.Uint64
	cfg := config(with(t, func(context.Context) (*pb.RateLimitResponse, error) {
		if asked.Add(1)%10 == 0 {
			return nil, status.Error(codes.ResourceExhausted, "the tenth")
		}
		return &pb.RateLimitResponse{OverallCode: ok}, nil
	}))
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 1000 || r.Answers["OK"] != 900 || r.Errors["RESOURCE_EXHAUSTED"] != 100 ||
		r.FirstError != "RESOURCE_EXHAUSTED: the tenth" {
		t.Errorf("%+v", r)
	}
}

// A run that is ended early has a result, and no call is lost.
func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Uint64
	cfg := config(with(t, func(context.Context) (*pb.RateLimitResponse, error) {
		if asked.Add(1) == 100 {
			cancel()
		}
		return &pb.RateLimitResponse{OverallCode: ok}, nil
	}))
	cfg.Requests, cfg.Duration = 0, time.Hour
	r, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Interrupted || r.Requests < 100 || r.Requests != asked.Load() || r.Answers["OK"] != r.Requests {
		t.Errorf("%d were asked, %+v", asked.Load(), r)
	}
	cfg.Warmup = time.Hour // ctx has ended by now
	if r, err := Run(ctx, cfg); r != nil || err == nil {
		t.Error(r, err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	l := listener(t)
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), config(addr))
	if r != nil || err == nil || !strings.Contains(err.Error(), "bench: cannot reach "+addr+": ") ||
		!strings.Contains(err.Error(), "refused") {
		t.Error(r, err)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var last Progress
	told := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := config(service(t, benchRules))
	cfg.Requests, cfg.Duration = 0, time.Hour
	cfg.Progress = func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		if last.Elapsed == 0 {
			close(told)
		}
		last = p
	}
	go func() {
		<-told
		cancel()
	}()
	r, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if last.Requests == 0 || last.Requests > r.Requests || last.Rate <= 0 || last.Elapsed < time.Second ||
		last.Errors != 0 || last.Warmup {
		t.Errorf("%+v, %+v", last, r)
	}
}

func TestConfigProblems(t *testing.T) {
	for _, tt := range []struct {
		set  func(*Config)
		want string
	}{
		{func(c *Config) { c.Linger = -1 }, "linger -1ns: must be"},
		{func(c *Config) { c.Connections = 0 }, "connections 0: must be from 1 to 10000"},
		{func(c *Config) { c.Connections = 10_001 }, "connections 10001: must be"},
		{func(c *Config) { c.InFlight = -3 }, "in flight -3: must be from 1 to 10000"},
		{
			func(c *Config) { c.Connections, c.InFlight = 1000, 1001 },
			"1000 connections with 1001 calls in flight each: must be 1000000 together at most",
		},
		{func(c *Config) { c.InFlight = 1 << 62 }, "in flight 4611686018427387904: must be"},
		{func(c *Config) { c.Rate = -1 }, "rate -1: must be above 0 and at most 1e+06"},
		{func(c *Config) { c.Rate = 2e6 }, "rate 2e+06: must be"},
		{func(c *Config) { c.Rate = math.NaN() }, "rate NaN: must be"},
		{func(c *Config) { c.Requests = 0 }, "neither a duration nor a number of requests"},
		{func(c *Config) { c.Requests = 1 << 63 }, "requests 9223372036854775808: must be at most 10000000000"},
		{func(c *Config) { c.Duration = -1 }, "duration -1ns: must be from 0s to 24h0m0s"},
		{func(c *Config) { c.Warmup = -1 }, "warmup -1ns: must be"},
		{func(c *Config) { c.Timeout = 0 }, "timeout 0s: must be from 1µs to 10m0s"},
		{func(c *Config) { c.Keys = 0 }, "keys 0: must be from 1 to 1000000"},
		{func(c *Config) { c.Domain = "" }, "bytes in domain 0: must be from 1 to 1024"},
		{func(c *Config) { c.Key = strings.Repeat("x", 1025) }, "bytes in key 1025: must be"},
		{func(c *Config) { c.Processes = []Process{{"a", 1}, {"a", 2}} }, "two processes are named a"},
	} {
		cfg := config("127.0.0.1:1")
		tt.set(&cfg)
		if err := cfg.validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("want %s, got %v", tt.want, err)
		}
	}
}

func TestServeNull(t *testing.T) {
	t.Parallel()
	for _, streams := range []uint32{0, 2} {
		ctx, cancel := context.WithCancel(t.Context())
		l := listener(t)
		served := make(chan error, 1)
		go func() { served <- serveNull(ctx, l, streams) }()
		cfg := config(l.Addr().String())
		r, err := Run(t.Context(), cfg)
		if err != nil || r.Answers["OK"] != cfg.Requests {
			t.Errorf("%d workers: %+v, %v", streams, r, err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}
