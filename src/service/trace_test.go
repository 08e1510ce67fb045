package service

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// collector is an OpenTelemetry collector in this process.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*span
}

// span is a received span with the attributes of its resource.
type span struct {
	*tracepb.Span
	resource map[string]string
}

// startCollector starts a collector. Services launched after it send their spans there.
func startCollector(t *testing.T, protocol string) *collector {
	t.Helper()
	c := new(collector)
	collectorAt(t, serveOTLP(t, protocol, func(srv *grpc.Server) { collectorpb.RegisterTraceServiceServer(srv, c) }, c))
	return c
}

// serveOTLP serves a collector over the protocol, with what register adds to a gRPC server or with h, and returns its
// address.
func serveOTLP(t *testing.T, protocol string, register func(*grpc.Server), h http.Handler) (addr string) {
	t.Helper()
	l := harness.Listen(t)
	if protocol == "grpc" {
		srv := grpc.NewServer()
		register(srv)
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(srv.Stop)
	} else {
		srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
		srv.Start()
		t.Cleanup(srv.Close)
	}
	return l.Addr().String()
}

func collectorAt(t *testing.T, addr string) {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+addr)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
}

// Export receives spans over gRPC.
func (c *collector) Export(_ context.Context,
	req *collectorpb.ExportTraceServiceRequest,
) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range req.GetResourceSpans() {
		about := attributes(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, &span{s, about})
			}
		}
	}
	return new(collectorpb.ExportTraceServiceResponse), nil
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := new(collectorpb.ExportTraceServiceRequest)
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, req)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), req)
}

func attributes(list []*commonpb.KeyValue) map[string]string {
	m := make(map[string]string)
	for _, kv := range list {
		m[kv.GetKey()] = kv.GetValue().GetStringValue()
		if n, ok := kv.GetValue().GetValue().(*commonpb.AnyValue_IntValue); ok {
			m[kv.GetKey()] = fmt.Sprint(n.IntValue)
		}
	}
	return m
}

// find returns the spans of a trace by their names.
func (c *collector) find(trace string) map[string]*span {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := make(map[string]*span)
	for _, s := range c.spans {
		if hex.EncodeToString(s.GetTraceId()) == trace {
			found[s.GetName()] = s
		}
	}
	return found
}

func (c *collector) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.spans)
}

// call asks over gRPC about entries of domain d; headers are keys and values.
func (s *service) call(entries []string, headers ...string) error {
	return callAt(s.address("grpc"), "d", entries, headers...)
}

// callAt asks the gRPC server at target about entries with the value 1.
func callAt(target, domain string, entries []string, headers ...string) error {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx := metadata.AppendToOutgoingContext(context.Background(), headers...)
	_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request(domain, entries...))
	return err
}

// request has a descriptor for each key, with the value 1.
func request(domain string, keys ...string) *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: domain}
	for _, key := range keys {
		req.Descriptors = append(req.Descriptors,
			&common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: "1"}}})
	}
	return req
}

// postWith is post with headers.
func (s *service) postWith(key string, headers ...string) int {
	s.t.Helper()
	body := fmt.Sprintf(`{"domain":"d","descriptors":[{"entries":[{"key":%q,"value":"1"}]}]}`, key)
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+s.address("http")+"/json",
		strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

const (
	grpcSpan     = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	jsonSpan     = "POST /json"
	decisionSpan = "ShouldRateLimit Execution"
	redisSpanned = "Redis Pipeline Execution"

	callerID = "b7ad6b7169203331" // a span of the caller
)

// traceID returns the n-th trace ID of a test.
func traceID(n int) string { return fmt.Sprintf("0af7651916cd43dd8448eb211c8%05x", n) }

func traceparent(n int, sampled string) []string {
	return []string{"traceparent", "00-" + traceID(n) + "-" + callerID + "-" + sampled}
}

// chain checks that each span is the parent of the next. The caller's span is the parent of
// the first.
func chain(t *testing.T, spans map[string]*span, names ...string) {
	t.Helper()
	parent := callerID
	for _, name := range names {
		s := spans[name]
		if s == nil {
			t.Fatalf("no span %s in %v", name, spans)
		}
		if got := hex.EncodeToString(s.GetParentSpanId()); got != parent {
			t.Errorf("%s: parent %s, want %s", name, got, parent)
		}
		parent = hex.EncodeToString(s.GetSpanId())
	}
	if len(spans) != len(names) {
		t.Errorf("got %d spans, want %d: %v", len(spans), len(names), spans)
	}
}

func TestTracing(t *testing.T) { eachEngine(t, testTracing) }

func testTracing(t *testing.T, engine string) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			c := startCollector(t, protocol)
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=a,service.name=other")
			s := launch(t, oneRule, engine, "TRACING_ENABLED=true", "TRACING_EXPORTER_PROTOCOL="+protocol,
				"TRACING_SERVICE_NAME=limits",
				"TRACING_SERVICE_NAMESPACE=edge", "TRACING_SERVICE_INSTANCE_ID=pod-1")
			s.until("ready", s.healthy)
			for i, headers := range [][]string{
				traceparent(0, "01"),
				{"b3", traceID(1) + "-" + callerID + "-1"},
				{"x-b3-traceid", traceID(2), "x-b3-spanid", callerID, "x-b3-sampled", "1"},
				append(traceparent(3, "01"), "b3", traceID(4)+"-"+callerID+"-1", "baggage", "a=b"),
			} {
				if err := s.call([]string{"ip"}, headers...); err != nil {
					t.Fatal(err)
				}
				s.until("two spans", func() bool { return len(c.find(traceID(i))) == 2 })
				chain(t, c.find(traceID(i)), grpcSpan, decisionSpan)
			}
			if got := c.find(traceID(0))[grpcSpan].GetKind(); got != tracepb.Span_SPAN_KIND_SERVER {
				t.Errorf("kind %v", got)
			}
			decision := attributes(c.find(traceID(0))[decisionSpan].GetAttributes())
			if text := decision["request string"]; decision["domain"] != "d" || !strings.Contains(text, `key:"ip"`) ||
				!strings.Contains(text, `value:"1"`) {
				t.Errorf("attributes: %v", decision)
			}

			for i, headers := range [][]string{traceparent(10, "01"), {"b3", traceID(11) + "-" + callerID + "-1"}} {
				if got := s.postWith("other", headers...); got != 200 {
					t.Fatal(got)
				}
				s.until("two spans", func() bool { return len(c.find(traceID(10+i))) == 2 })
				chain(t, c.find(traceID(10+i)), jsonSpan, decisionSpan)
			}
			json := c.find(traceID(10))[jsonSpan]
			if at := attributes(json.GetAttributes()); json.GetKind() != tracepb.Span_SPAN_KIND_SERVER ||
				at["http.response.status_code"] != "200" || at["http.route"] != "/json" {
				t.Errorf("%v", json)
			}
			for name, want := range map[string]string{
				"service.name": "limits", "service.namespace": "edge",
				"service.instance.id": "pod-1", "zone": "a", "telemetry.sdk.language": "go",
			} {
				if got := json.resource[name]; got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if got := c.count(); got != 12 {
				t.Errorf("%d spans; health checks should have none", got)
			}
			s.signals <- syscall.SIGTERM
			if err := s.wait(); err != nil {
				t.Error(err)
			}
			if n := strings.Count(s.log.String(), "level=warning"); n != 1 { // No rule has the key other.
				t.Errorf("%d warnings, want 1", n)
			}
		})
	}
}

// Spans of failures are marked, and hold no more than the answer to the caller.
func TestTracedErrors(t *testing.T) {
	c := startCollector(t, "http")
	s := launch(t, "domain: [\n", "TRACING_ENABLED=true", "FORCE_START_WITHOUT_INITIAL_CONFIG=true")
	s.until("refused", s.logged("rules refused"))
	if err := s.call([]string{"ip"}, traceparent(0, "01")...); err == nil {
		t.Error("no error without rules")
	}
	if got := s.postWith("ip", traceparent(1, "01")...); got != 503 {
		t.Errorf("got %d", got)
	}
	s.until("four spans", func() bool { return c.count() == 4 })
	chain(t, c.find(traceID(0)), grpcSpan, decisionSpan)
	chain(t, c.find(traceID(1)), jsonSpan, decisionSpan)
	for _, found := range c.spans {
		if found.GetStatus().GetCode() != tracepb.Status_STATUS_CODE_ERROR {
			t.Errorf("no error in %v", found)
		}
		if id := found.resource["service.instance.id"]; len(id) != 36 || id != c.spans[0].resource["service.instance.id"] ||
			found.resource["service.name"] != "RateLimit" {
			t.Errorf("resource %v", found.resource)
		}
	}
}

func TestTracedRedis(t *testing.T) {
	first, second := redistest.Start(t, redistest.Options{}), redistest.Start(t, redistest.Options{})
	c := startCollector(t, "grpc")
	s := launch(t, redisRules, "TRACING_ENABLED=true", "TRACING_EXPORTER_PROTOCOL=grpc", "REDIS_URL="+first.Addr,
		"REDIS_TIMEOUT=2s",
		"REDIS_PERSECOND=true", "REDIS_PERSECOND_URL="+second.Addr, "REDIS_PERSECOND_TIMEOUT=2s",
		"LOCAL_CACHE_SIZE_IN_BYTES=1000000")
	s.until("ready", s.healthy)
	if err := s.call([]string{"ip", "many"}, traceparent(0, "01")...); err != nil {
		t.Fatal(err)
	}
	if err := s.call([]string{"fast"}, traceparent(1, "01")...); err != nil {
		t.Fatal(err)
	}
	if err := s.call([]string{"nobody"}, traceparent(2, "01")...); err != nil {
		t.Fatal(err)
	}
	s.until("eight spans", func() bool { return c.count() == 8 })
	chain(t, c.find(traceID(0)), grpcSpan, decisionSpan, redisSpanned)
	chain(t, c.find(traceID(1)), grpcSpan, decisionSpan, redisSpanned)
	chain(t, c.find(traceID(2)), grpcSpan, decisionSpan) // Redis was not asked
	call := c.find(traceID(0))[redisSpanned]
	if at := attributes(call.GetAttributes()); at["db.system"] != "redis" || at["pipeline length"] != "2" ||
		call.GetKind() != tracepb.Span_SPAN_KIND_CLIENT {
		t.Errorf("%v", call)
	}
	if at := attributes(c.find(traceID(1))[redisSpanned].GetAttributes()); at["perSecondPipeline length"] != "1" {
		t.Errorf("%v", at)
	}

	// An error reply that names the key: it holds a list.
	for _, key := range strings.Fields(strings.Trim(fmt.Sprint(first.Do(t, "KEYS", "*")), "[]")) {
		first.Do(t, "DEL", key)
		first.Do(t, "LPUSH", key, "x")
	}
	if err := s.call([]string{"ip"}, traceparent(3, "01")...); err == nil {
		t.Error("no error")
	}
	s.until("three more spans", func() bool { return len(c.find(traceID(3))) == 3 })
	chain(t, c.find(traceID(3)), grpcSpan, decisionSpan, redisSpanned)
	for name, found := range c.find(traceID(3)) {
		if st := found.GetStatus(); st.GetCode() != tracepb.Status_STATUS_CODE_ERROR ||
			strings.Contains(st.GetMessage(), "d_ip") || strings.Contains(st.GetMessage(), "WRONGTYPE") ||
			len(found.GetEvents()) > 0 {
			t.Errorf("%s: %v %v", name, st, found.GetEvents())
		}
	}
}

// The caller decides about sampling; if it does not, the rate decides.
func TestSampling(t *testing.T) {
	for _, tt := range []struct {
		rate    string
		headers []string
		spans   int
	}{
		{"0", nil, 0},
		{"0", traceparent(0, "01"), 2},
		{"1", traceparent(0, "00"), 0},
		{"1", []string{"b3", traceID(0) + "-" + callerID + "-0"}, 0},
		{"1", nil, 2},
	} {
		t.Run(fmt.Sprint(tt.rate, tt.headers), func(t *testing.T) {
			c := startCollector(t, "http")
			s := launch(t, oneRule, "TRACING_ENABLED=true", "TRACING_SAMPLING_RATE="+tt.rate)
			s.until("ready", s.healthy)
			if err := s.call([]string{"ip"}, tt.headers...); err != nil {
				t.Fatal(err)
			}
			s.signals <- syscall.SIGTERM // the last spans are sent now
			if err := s.wait(); err != nil {
				t.Error(err)
			}
			if got := c.count(); got != tt.spans {
				t.Errorf("got %d spans, want %d", got, tt.spans)
			}
		})
	}
}

// The last spans are sent at the end. Without tracing there are none.
func TestTracesAreFlushed(t *testing.T) {
	c := startCollector(t, "grpc")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
	for _, on := range []string{"false", "true"} {
		s := launch(t, oneRule, "TRACING_ENABLED="+on, "TRACING_EXPORTER_PROTOCOL=grpc")
		s.until("ready", s.healthy)
		for range 10 {
			s.ask("1")
		}
		if got := c.count(); got != 0 {
			t.Errorf("%s: %d spans", on, got)
		}
		s.signals <- syscall.SIGTERM
		if err := s.wait(); err != nil {
			t.Error(err)
		}
		if got, want := c.count(), map[string]int{"false": 0, "true": 20}[on]; got != want {
			t.Errorf("%s: %d spans, want %d", on, got, want)
		}
	}
}

// A collector that is unreachable or never answers delays no request.
func TestCollectorAway(t *testing.T) {
	silent := harness.Listen(t)
	defer func() { _ = silent.Close() }()
	away := harness.Listen(t)
	gone := away.Addr().String()
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, protocol, addr string
		signals              int
	}{
		{"silent", "grpc", silent.Addr().String(), 2},
		{"gone", "http", gone, 1},
	} {
		t.Run(tt.name+" "+tt.protocol, func(t *testing.T) {
			collectorAt(t, tt.addr)
			t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
			t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
			s := launch(t, strings.Replace(oneRule, "2}", "1000}", 1), "TRACING_ENABLED=true",
				"TRACING_EXPORTER_PROTOCOL="+tt.protocol)
			s.until("ready", s.healthy)
			begun := time.Now()
			for range 200 {
				if got := s.ask("1"); got != 200 {
					t.Fatalf("got %d", got)
				}
			}
			if took := time.Since(begun); took > 4*time.Second { // an export alone may take ten
				t.Errorf("200 requests took %v", took)
			}
			begun = time.Now()
			for range tt.signals {
				s.signals <- syscall.SIGTERM
			}
			if err := s.wait(); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("the end took %v", took)
			}
			if got := strings.Count(s.log.String(), "the collector did not take"); got == 0 || got > 2 {
				t.Errorf("%d warnings", got)
			}
		})
	}
}

// The log hides a password that a collector quotes in its refusal.
func TestCollectorRefuses(t *testing.T) {
	var asked atomic.Int64
	var quoted atomic.Pointer[string]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		sent := r.Header.Get("Authorization")
		quoted.Store(&sent)
		http.Error(w, "unknown token "+strings.TrimPrefix(sent, "Bearer ")+" in "+sent, http.StatusUnauthorized)
	}))
	defer srv.Close()
	collectorAt(t, srv.Listener.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret-t0ken,tenant=acme")
	s := launch(t, oneRule, "TRACING_ENABLED=true")
	s.until("ready", s.healthy)
	s.until("several refusals", func() bool { s.ask("1"); return asked.Load() > 5 })
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if sent := *quoted.Load(); sent != "Bearer s3cret-t0ken" {
		t.Errorf("the collector was sent %q", sent)
	}
	log := s.log.String()
	if strings.Contains(log, "s3cret") || strings.Contains(log, "acme") {
		t.Errorf("a secret is logged:\n%s", log)
	}
	if got := strings.Count(log, "the collector did not take"); got != 2 ||
		!strings.Contains(log, "401 Unauthorized (body: unknown token … in …") {
		t.Errorf("want the first refusal and a sum of the rest, got\n%s", log)
	}
}
