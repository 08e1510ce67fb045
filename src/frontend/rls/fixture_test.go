package rls

import (
	"net"
	"sync"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

const testRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: day, requests_per_unit: 2, name: per-ip}
  - key: pay
    rate_limit: {unit: hour, requests_per_unit: 3, unit_multiplier: 6}
  - key: staff
    rate_limit: {unlimited: true}
`

// fixture is a service over memory with testRules.
type fixture struct {
	*Service
	mu       sync.Mutex
	failures []error
}

// start returns a service of testRules over a store; if that is nil, over memory.
func start(t testing.TB, store backend.Backend) *fixture {
	t.Helper()
	return startWith(t, testRules, limiter.Config{Backend: store})
}

// startWith returns a service of a rule file. If cfg has no store, it counts in memory.
func startWith(t testing.TB, ruleFile string, cfg limiter.Config) *fixture {
	t.Helper()
	if cfg.Backend == nil {
		cfg.Backend = limitertest.Store(t, memory.Config{})
	}
	l := limiter.New(cfg)
	l.UseRules(limitertest.Load(t, []filerules.File{{Name: "d.yaml", Data: []byte(ruleFile)}}))
	f := &fixture{}
	f.Service = New(Config{Limiter: l, OnError: func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.failures = append(f.failures, err)
	}})
	return f
}

func (f *fixture) failed() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]error(nil), f.failures...)
}

// eachEngine runs test with a server of package h2, and with one of grpc-go.
func eachEngine(t *testing.T, test func(t *testing.T, cfg ServerConfig)) {
	t.Helper()
	t.Parallel()
	for _, grpcGo := range []bool{false, true} {
		name := "h2"
		if grpcGo {
			name = "grpc-go"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, ServerConfig{UseGRPCGo: grpcGo})
		})
	}
}

// dial serves f on a port of its own, with reflection, and returns a connection to it.
func dial(t *testing.T, f *fixture, cfg ServerConfig) (*Server, *grpc.ClientConn) {
	t.Helper()
	cfg.ReflectionEnabled = true
	l := listen(t, "tcp", "127.0.0.1:0")
	return serve(t, f.Service, cfg, l), connect(t, l.Addr().String())
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve serves s on l until the test ends.
func serve(t *testing.T, s *Service, cfg ServerConfig, l net.Listener) *Server {
	t.Helper()
	srv, served := NewServer(s, cfg), make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Shutdown(ended())
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return srv
}

// connect returns a client of the server at target.
func connect(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// descriptor is one descriptor of alternating keys and values.
func descriptor(pairs ...string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func request(descriptors ...*common.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: "d", Descriptors: descriptors}
}
