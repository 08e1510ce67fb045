package rls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/h2"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
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
		store, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Backend = store
	}
	set, _, err := filerules.Load([]filerules.File{{Name: "d.yaml", Data: []byte(ruleFile)}}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(cfg)
	l.UseRules(set)
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

func TestAnswers(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		f := start(t, nil)
		_, conn := dial(t, f, cfg)
		client := pb.NewRateLimitServiceClient(conn)
		steps := []struct {
			name string
			req  *pb.RateLimitRequest
			want string // as /json would write it, without durations
		}{
			{
				"within", request(descriptor("ip", "1")),
				`{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"},"limitRemaining":1}]}`,
			},
			{
				"request hits", &pb.RateLimitRequest{
					Domain: "d", HitsAddend: 2,
					Descriptors: []*common.RateLimitDescriptor{descriptor("ip", "1")},
				},
				`{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"}}]}`,
			},
			{
				"descriptor hits win", &pb.RateLimitRequest{
					Domain: "d", HitsAddend: 2,
					Descriptors: []*common.RateLimitDescriptor{{
						Entries:    descriptor("ip", "2").Entries,
						HitsAddend: wrapperspb.UInt64(0),
					}},
				},
				`{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"},"limitRemaining":2}]}`,
			},
			{
				"refund", request(&common.RateLimitDescriptor{
					Entries:    descriptor("ip", "1").Entries,
					HitsAddend: wrapperspb.UInt64(3), IsNegativeHits: true,
				}),
				`{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"},"limitRemaining":2}]}`,
			},
			{
				"multiplier", request(descriptor("pay", "x")),
				`{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":3,"unit":"HOUR","unitMultiplier":6},"limitRemaining":2}]}`,
			},
			{
				"unlimited, unmatched", request(descriptor("staff", "x"), descriptor("nobody", "x"), descriptor()),
				`{"overallCode":"OK","statuses":[{"code":"OK","limitRemaining":4294967295},{"code":"OK"},{"code":"OK"}]}`,
			},
			{"limit of the request", request(&common.RateLimitDescriptor{
				Entries: descriptor("ip", "3").Entries,
				Limit: &common.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_HOUR,
					UnitMultiplier: wrapperspb.UInt32(2),
				},
			}), `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":5,"unit":"HOUR","unitMultiplier":2},"limitRemaining":4}]}`},
			{"limit by the week, which requests have no name for", request(&common.RateLimitDescriptor{
				Entries: descriptor("ip", "3").Entries,
				Limit:   &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: 7},
			}), `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":5,"unit":"WEEK"},"limitRemaining":4}]}`},
		}
		for _, st := range steps {
			t.Run(st.name, func(t *testing.T) {
				resp, err := client.ShouldRateLimit(t.Context(), st.req)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range resp.GetStatuses() {
					if reset := s.GetDurationUntilReset(); (reset == nil) != (s.GetCurrentLimit() == nil) ||
						reset != nil && (reset.GetSeconds() <= 0 || reset.GetNanos() != 0) {
						t.Errorf("duration_until_reset %v beside current_limit %v", reset, s.GetCurrentLimit())
					}
					s.DurationUntilReset = nil
				}
				text, err := compactJSON(resp)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.TrimSpace(string(text)); got != st.want {
					t.Errorf("\n got %s\nwant %s", got, st.want)
				}
			})
		}
		if failed := f.failed(); len(failed) > 0 {
			t.Errorf("failures: %v", failed)
		}
	})
}

// broken is a store in some kind of trouble.
type broken struct{ answer func(*backend.Batch) error }

func (b broken) Take(_ context.Context, batch *backend.Batch) error { return b.answer(batch) }

var errSecret = errors.New("INCRBY d_ip_10.0.0.7_: connection refused")

// overloaded is a store that works, and has no time for the request.
func overloaded(b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: fmt.Errorf("%w: %w", errSecret, backend.ErrOverload)}
	}
	return nil
}

func unanswered(b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: errSecret}
	}
	return nil
}

func TestErrors(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		badLimit := descriptor("ip", "1")
		badLimit.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1}
		oddLimit := descriptor("ip", "1")
		oddLimit.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 99}
		longLimit := descriptor("ip", "1")
		longLimit.Limit = &common.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_YEAR,
			UnitMultiplier: wrapperspb.UInt32(1 << 31),
		}
		noMultiplier := descriptor("ip", "1")
		noMultiplier.Limit = &common.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_DAY,
			UnitMultiplier: wrapperspb.UInt32(0),
		}
		tests := []struct {
			name  string
			store backend.Backend
			req   *pb.RateLimitRequest
			code  codes.Code
			text  string
		}{
			{"no domain", nil, &pb.RateLimitRequest{}, codes.InvalidArgument, "bad request: the domain is empty"},
			{"no descriptors", nil, request(), codes.InvalidArgument, "bad request: there are no descriptors"},
			{
				"no unit", nil, request(badLimit), codes.InvalidArgument,
				"bad request: descriptor 0: limit: the unit is not second, minute, hour, day, week, month or year",
			},
			{
				"odd unit", nil, request(oddLimit), codes.InvalidArgument,
				"bad request: descriptor 0: limit: the unit is not second, minute, hour, day, week, month or year",
			},
			{
				"no multiplier", nil, request(noMultiplier), codes.InvalidArgument,
				"bad request: descriptor 0: limit: the unit_multiplier is 0",
			},
			{
				"long window", nil, request(longLimit), codes.InvalidArgument,
				"bad request: descriptor 0: limit: the window is longer than 100 years",
			},
			{"store", broken{unanswered}, request(descriptor("ip", "1")), codes.Unavailable, "the store did not answer"},
			{
				"too much for the store",
				broken{overloaded},
				request(descriptor("ip", "1")), codes.ResourceExhausted,
				"the request needs more time of the store than there is",
			},
			{
				"misuse",
				broken{func(*backend.Batch) error { return errSecret }},
				request(descriptor("ip", "1")), codes.Internal,
				"internal error",
			},
			{
				"panic",
				broken{func(*backend.Batch) error { panic(errSecret) }},
				request(descriptor("ip", "1")), codes.Internal,
				"internal error",
			},
		}
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				f := start(t, tt.store)
				_, conn := dial(t, f, cfg)
				_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), tt.req)
				if status.Code(err) != tt.code || status.Convert(err).Message() != tt.text {
					t.Errorf("got %v, want %v: %s", err, tt.code, tt.text)
				}
				if failed := f.failed(); len(failed) != 1 {
					t.Errorf("told of %d failures, want 1: %v", len(failed), failed)
				}
			})
		}
	})
}

// A span always ends with the error text for callers, and the decision is made in the
// span's context.
func TestSpan(t *testing.T) {
	type key struct{}
	for _, tt := range []struct {
		name   string
		answer func(*backend.Batch) error
		req    *pb.RateLimitRequest
		want   string
	}{
		{"good", func(*backend.Batch) error { return nil }, request(descriptor("ip", "1")), ""},
		{"bad request", nil, request(), "bad request: there are no descriptors"},
		{"store", unanswered, request(descriptor("ip", "1")), "the store did not answer"},
		{"panic", func(*backend.Batch) error { panic(errSecret) }, request(descriptor("ip", "1")), "panic"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t, inSpan{func(ctx context.Context, b *backend.Batch) error {
				if ctx.Value(key{}) != true {
					t.Error("another context")
				}
				return tt.answer(b)
			}})
			var ends []string
			f.cfg.StartSpan = func(ctx context.Context, domain string, req fmt.Stringer) (context.Context, func(string)) {
				if domain != "d" || !strings.HasPrefix(req.String(), `domain:"d"`) {
					t.Errorf("told of %s, %s", domain, req)
				}
				return context.WithValue(ctx, key{}, true), func(problem string) { ends = append(ends, problem) }
			}
			body, err := protojson.Marshal(tt.req)
			if err != nil {
				t.Fatal(err)
			}
			for _, ask := range []func(){
				func() { post(f.JSONHandler(), string(body)) },
				func() {
					_, _ = f.Service.answerGRPC(t.Context(), &callMemory{receivedMessage: mem.SliceBuffer(encode(t, tt.req))})
				},
			} {
				ends = nil
				func() {
					defer func() { _ = recover() }()
					ask()
				}()
				if !slices.Equal(ends, []string{tt.want}) {
					t.Errorf("ended with %q, want %q", ends, tt.want)
				}
			}
		})
	}
}

func TestDescribed(t *testing.T) {
	long := descriptor("ip", strings.Repeat("x", 1<<20))
	many := descriptor()
	for range maxRequestEntries {
		many.Entries = append(many.Entries, descriptor("a", "b").GetEntries()...)
	}
	for _, tt := range []struct {
		req  *pb.RateLimitRequest
		want string
	}{
		{
			request(descriptor("ip", "1\n\"", "b", ""), descriptor("c", "é")),
			`domain:"d" descriptors:{entries:{key:"ip" value:"1\n\""} entries:{key:"b" value:""}} descriptors:{entries:{key:"c" value:"é"}}`,
		},
		{&pb.RateLimitRequest{HitsAddend: 3, Descriptors: []*common.RateLimitDescriptor{{
			Limit:          &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_HOUR},
			HitsAddend:     wrapperspb.UInt64(0),
			IsNegativeHits: true,
		}}}, `domain:"" descriptors:{ limit:{requests_per_unit:5 unit:HOUR unit_multiplier:1} hits_addend:{value:0} is_negative_hits:true} hits_addend:3`},
		{
			request(long, descriptor("b", "c")),
			`domain:"d" descriptors:{entries:{key:"ip" value:"` + strings.Repeat("x", maxRequestTextBytes) + `"}} …`,
		},
		{
			request(many, descriptor("b", "c")),
			`domain:"d" descriptors:{` + strings.Repeat(`entries:{key:"a" value:"b"} `, 146) + `…} …`,
		},
	} {
		c := new(callMemory)
		c.read(tt.req)
		if got := (*requestText)(&c.req).String(); got != tt.want {
			t.Errorf("\n got %s\nwant %s", got, tt.want)
		}
	}
}

type inSpan struct {
	answer func(context.Context, *backend.Batch) error
}

func (s inSpan) Take(ctx context.Context, b *backend.Batch) error { return s.answer(ctx, b) }

func TestNotReady(t *testing.T) {
	f := start(t, nil)
	f.cfg.Limiter = limiter.New(limiter.Config{})
	_, err := f.ShouldRateLimit(t.Context(), request(descriptor("ip", "1")))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
}

func TestHealth(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv, conn := dial(t, start(t, nil), cfg)
		client := healthpb.NewHealthClient(conn)
		check := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			for _, name := range []string{"", HealthServiceName} {
				resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
				if err != nil || resp.GetStatus() != want {
					t.Errorf("%q: got %v, %v, want %v", name, resp.GetStatus(), err, want)
				}
			}
		}
		check(healthpb.HealthCheckResponse_NOT_SERVING)
		srv.SetServing(true)
		check(healthpb.HealthCheckResponse_SERVING)
		srv.SetServing(false)
		check(healthpb.HealthCheckResponse_NOT_SERVING)
		if _, err := client.Check(t.Context(),
			&healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
			t.Errorf("another name: %v, want NotFound", err)
		}
	})
}

// expectShutdownInTime shuts srv down, which must not have to cut off its streams.
func expectShutdownInTime(t *testing.T, srv *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	srv.Shutdown(ctx)
	if ctx.Err() != nil {
		t.Error("the stream had to be cut off")
	}
}

// A watch that stays open does not hold up a shutdown.
func TestShutdownEndsWatches(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv, conn := dial(t, start(t, nil), cfg)
		stream, err := healthpb.NewHealthClient(conn).Watch(t.Context(),
			&healthpb.HealthCheckRequest{Service: HealthServiceName})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		expectShutdownInTime(t, srv)
		if _, err := stream.Recv(); err == nil {
			t.Error("the watch goes on")
		}
	})
}

// Nor does a reflection stream, which tells the services, and whose handler waits for its client.
func TestReflection(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv, conn := dial(t, start(t, nil), cfg)
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
		}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		names := fmt.Sprint(resp.GetListServicesResponse().GetService())
		if !strings.Contains(names, "envoy.service.ratelimit.v3.RateLimitService") ||
			!strings.Contains(names, "grpc.health.v1.Health") {
			t.Errorf("services: %s", names)
		}
		expectShutdownInTime(t, srv)
	})
}

// tellingListener tells when it has accepted a connection.
type tellingListener struct {
	net.Listener
	accepted chan<- struct{}
}

func (l tellingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted <- struct{}{}
	}
	return conn, err
}

// Nor does a connection that never sends a byte: grpc-go would wait for it.
func TestShutdownClosesSilentConnections(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		l, accepted := listen(t, "tcp", "127.0.0.1:0"), make(chan struct{}, 1)
		srv := serve(t, start(t, nil).Service, cfg, tellingListener{l, accepted})
		silent, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = silent.Close() }()
		<-accepted
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		begun := time.Now()
		srv.Shutdown(ctx)
		if took := time.Since(begun); took > h2.HandshakeTimeout-time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A server that is told to stop before it serves does not complain.
func TestShutdownBeforeServe(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		srv := NewServer(start(t, nil).Service, cfg)
		srv.Shutdown(t.Context())
		if err := srv.Serve(listen(t, "tcp", "127.0.0.1:0")); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// A call that never ends is cut off when the time for it is over.
func TestShutdownCutsOffCalls(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		entered, leave := make(chan struct{}), make(chan struct{})
		srv, conn := dial(t, start(t, broken{func(*backend.Batch) error {
			close(entered)
			<-leave
			return nil
		}}), cfg)
		result := make(chan error, 1)
		go func() {
			_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request(descriptor("ip", "1")))
			result <- err
		}()
		<-entered
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		done := make(chan struct{})
		go func() {
			srv.Shutdown(ctx)
			close(done)
		}()
		if err := <-result; status.Code(err) != codes.Unavailable {
			t.Errorf("got %v", err)
		}
		close(leave) // grpc-go waits for handlers
		<-done
	})
}

// raw sends bytes as a request, whatever they are.
func raw(t *testing.T, conn *grpc.ClientConn, data []byte) (*pb.RateLimitResponse, error) {
	t.Helper()
	resp := new(pb.RateLimitResponse)
	err := conn.Invoke(t.Context(), pb.RateLimitService_ShouldRateLimit_FullMethodName, data, resp,
		grpc.ForceCodecV2(rawCodec{newCodec()}))
	return resp, err
}

// rawCodec sends []byte as it is.
type rawCodec struct{ codec }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// wire is a request in protobuf, whose texts need not be UTF-8.
func wire(domain string, descriptors ...[]rules.Entry) []byte {
	text := func(b []byte, n protowire.Number, s []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), s)
	}
	msg := text(nil, 1, []byte(domain))
	for _, entries := range descriptors {
		var d []byte
		for _, e := range entries {
			d = text(d, 1, text(text(nil, 1, e.Key), 2, e.Value))
		}
		msg = text(msg, 2, d)
	}
	return msg
}

// One byte that is not UTF-8 must not get a request past its limits: Envoy
// sends header values as they come, and lets failures pass.
func TestNotUTF8(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		f := start(t, nil)
		_, conn := dial(t, f, cfg)
		odd := []rules.Entry{{Key: []byte("ip"), Value: []byte("1\xff\xfe2")}}
		for i, want := range []pb.RateLimitResponse_Code{
			pb.RateLimitResponse_OK, pb.RateLimitResponse_OK,
			pb.RateLimitResponse_OVER_LIMIT,
		} {
			resp, err := raw(t, conn, wire("d", odd, []rules.Entry{{Key: []byte("staff"), Value: []byte("\x80")}}))
			if err != nil || resp.GetOverallCode() != want || len(resp.GetStatuses()) != 2 {
				t.Errorf("request %d: %v, %v", i+1, resp, err)
			}
		}
		if _, err := raw(t, conn, wire("d\xff", odd)); err != nil {
			t.Errorf("domain: %v", err)
		}
		if failed := f.failed(); len(failed) > 0 {
			t.Errorf("failures: %v", failed)
		}
	})
}

func TestUnreadableMessages(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		many := make([][]rules.Entry, limiter.MaxDescriptors+1)
		entries := make([]rules.Entry, maxRequestEntries+1)
		for _, tt := range []struct {
			name string
			data []byte
			code codes.Code
			text string
		}{
			{
				"cut off", wire("d", []rules.Entry{{Key: []byte("ip")}})[:8], codes.InvalidArgument,
				"bad request: not a RateLimitRequest",
			},
			{"not protobuf", []byte("GET / HTTP/1.1\r\n"), codes.InvalidArgument, "bad request: not a RateLimitRequest"},
			{
				"not protobuf, and long", bytes.Repeat([]byte{0xFF}, 1<<16), codes.InvalidArgument,
				"bad request: not a RateLimitRequest",
			},
			{
				"too many descriptors", wire("d", many...), codes.ResourceExhausted,
				"bad request: too large: more than 1000 descriptors",
			},
			{
				"far too many", append(wire("d"), bytes.Repeat([]byte{2<<3 | 2, 0}, 2_000_000)...), codes.ResourceExhausted,
				"bad request: too large: more than 1000 descriptors",
			},
			{"too many entries", wire("d", entries), codes.ResourceExhausted, "bad request: too large: more than 16000 entries"},
		} {
			f := start(t, nil)
			_, conn := dial(t, f, cfg)
			_, err := raw(t, conn, tt.data)
			if status.Code(err) != tt.code || !strings.HasPrefix(status.Convert(err).Message(), tt.text) {
				t.Errorf("%s: got %v", tt.name, err)
			}
			if len(f.failed()) != 1 {
				t.Errorf("%s: told of %v", tt.name, f.failed())
			}
		}
	})
}

func TestUnixSocket(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		l := listen(t, "unix", t.TempDir()+"/s")
		serve(t, start(t, nil).Service, cfg, l)
		client := pb.NewRateLimitServiceClient(connect(t, "unix://"+l.Addr().String()))
		if _, err := client.ShouldRateLimit(t.Context(), request(descriptor("ip", "1"))); err != nil {
			t.Error(err)
		}
	})
}
