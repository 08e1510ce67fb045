package otlp

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// recorder returns Traces whose spans stay here.
func recorder(t *testing.T) (*Traces, *tracetest.SpanRecorder) {
	t.Helper()
	p, err := NewTraces(t.Context(), Config{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	kept := tracetest.NewSpanRecorder()
	p.sdk.RegisterSpanProcessor(kept)
	t.Cleanup(func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		if err := p.Shutdown(gone); err != nil {
			t.Error(err)
		}
	})
	return p, kept
}

func valueOf(s sdktrace.ReadOnlySpan, name string) string {
	for _, kv := range s.Attributes() {
		if string(kv.Key) == name {
			return kv.Value.String()
		}
	}
	return ""
}

// What is not there costs nothing, and what is sets nothing for others.
func TestOff(t *testing.T) {
	var p *Traces
	handler := http.NewServeMux()
	if p.GRPC("m") != nil || p.Decision() != nil || p.StoreCall("a", "b", "c") != nil ||
		p.HTTP("/", handler) != http.Handler(handler) {
		t.Error("nil does something")
	}
	tracers, propagator := otel.GetTracerProvider(), otel.GetTextMapPropagator()
	recorder(t)
	if otel.GetTracerProvider() != tracers || len(propagator.Fields()) > 0 {
		t.Error("global state was set")
	}
}

func TestHTTP(t *testing.T) {
	p, kept := recorder(t)
	h := p.HTTP("/json", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, end := p.Decision()(r.Context(), strings.Repeat("é", maxClientText), text(strings.Repeat("x", maxClientText+1)))
		defer end("")
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
		if r.ContentLength > 0 {
			http.Error(w, "no", http.StatusServiceUnavailable)
		}
	}))
	for i, tt := range []struct {
		method, body, span, code string
		status                   codes.Code
	}{
		{"POST", "", "POST /json", "200", codes.Unset},
		{"PUT", "", "PUT /json", "405", codes.Unset},
		{"BREW\xff", "", "_OTHER /json", "405", codes.Unset},
		{"POST", "x", "POST /json", "503", codes.Error},
	} {
		h.ServeHTTP(httptest.NewRecorder(),
			&http.Request{Method: tt.method, ContentLength: int64(len(tt.body)), Header: http.Header{}})
		decision, server := kept.Ended()[2*i], kept.Ended()[2*i+1]
		if server.Name() != tt.span || valueOf(server, "http.response.status_code") != tt.code ||
			server.Status().Code != tt.status || server.Parent().IsValid() {
			t.Errorf("%+v: %s %v %v", tt, server.Name(), server.Attributes(), server.Status())
		}
		if decision.Parent().SpanID() != server.SpanContext().SpanID() {
			t.Error("the decision is not below its request")
		}
		for _, name := range []string{"domain", "request string"} {
			if size := len(valueOf(decision, name)); size < maxClientText || size > maxClientText+3 {
				t.Errorf("%s has %d bytes", name, size)
			}
		}
	}
}

type text string

func (s text) String() string { return string(s) }

// A request that is not traced is not put into words.
func TestUnsampled(t *testing.T) {
	p, err := NewTraces(t.Context(), Config{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Shutdown(t.Context()) }()
	_, end := p.Decision()(t.Context(), "d", dear{t})
	end("")
	p.StoreCall("Redis Pipeline Execution", "redis", "n")(t.Context(), 1)(nil)
}

type dear struct{ t *testing.T }

func (d dear) String() string {
	d.t.Error("asked for its text")
	return ""
}

func TestRedis(t *testing.T) {
	p, kept := recorder(t)
	ctx, end := p.Decision()(t.Context(), "d", text("r"))
	p.StoreCall("Redis Pipeline Execution", "redis", "pipeline length")(ctx, 3)(nil)
	p.StoreCall("Redis Pipeline Execution", "redis", "pipeline length")(ctx, 3)(errors.New("WRONGTYPE d_ip_10.0.0.7_"))
	end("the store did not answer")
	good, bad, decision := kept.Ended()[0], kept.Ended()[1], kept.Ended()[2]
	if valueOf(good, "pipeline length") != "3" || good.Status().Code != codes.Unset ||
		good.Parent().SpanID() != decision.SpanContext().SpanID() {
		t.Errorf("%v %v", good.Attributes(), good.Status())
	}
	if bad.Status() != (sdktrace.Status{Code: codes.Error, Description: "the call failed"}) || len(bad.Events()) > 0 {
		t.Errorf("%v %v", bad.Status(), bad.Events())
	}
	if decision.Status() != (sdktrace.Status{Code: codes.Error, Description: "the store did not answer"}) {
		t.Errorf("%v", decision.Status())
	}
}

// A call that no request caused, such as a poll, has no span.
func TestPoll(t *testing.T) {
	p, kept := recorder(t)
	p.StoreCall("Memcached Fetch Execution", "memcached", "keysToGet length")(t.Context(), 1)(nil)
	if n := len(kept.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

func TestVariables(t *testing.T) {
	pem := filepath.Join(t.TempDir(), "no.pem")
	testfiles.Write(t, pem, "s3cret")
	for _, tt := range []struct {
		protocol, name, value string
		want                  string // empty: it is fine
	}{
		{"http", "OTEL_EXPORTER_OTLP_ENDPOINT", " http://collector:4318/base ", ""},
		{"http", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1", "write a URL such as http://collector:4318"},
		{"http", "OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "write a URL such as http://collector:4318"},
		{"http", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "10.0.0.1:4318", "write a URL such as http://collector:4318"},
		{"grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317", ""},
		{"grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "dns:///collector:4317", ""},
		{"grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", ""}, // a gRPC target
		{"grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "http:collector", "write a URL such as http://collector:4317"},
		{"grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "10.0.0.1:4317", "write a URL such as http://collector:4317"},
		{"http", "OTEL_EXPORTER_OTLP_HEADERS", "a=s3cret%20x, b-c=s3cret=", ""},
		{"http", "OTEL_EXPORTER_OTLP_HEADERS", "a=1,s3cret", "header 2: write name=value"},
		{"http", "OTEL_EXPORTER_OTLP_HEADERS", "a=s3cret%zz", "header 1: write name=value"},
		{"http", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "s3cret key=1", "header 1: write name=value"},
		{"http", "OTEL_EXPORTER_OTLP_TIMEOUT", "500", ""},
		{"http", "OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "write a whole number, 0 or more"},
		{"http", "OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem", "no such file"},
		{"http", "OTEL_EXPORTER_OTLP_CERTIFICATE", pem, "no certificate in PEM form"},
		{
			"http", "OTEL_EXPORTER_OTLP_CLIENT_KEY", pem,
			"set it and OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, or neither; it is ignored",
		},
		{"http", "OTEL_BSP_MAX_QUEUE_SIZE", "-1", "write a whole number, 1 or more"}, // the SDK would panic
		{"http", "OTEL_BSP_SCHEDULE_DELAY", "0", "write a whole number, 1 or more"},  // it would never rest
	} {
		t.Run(tt.protocol+" "+tt.name+"="+tt.value, func(t *testing.T) {
			t.Setenv(tt.name, tt.value)
			var mistake error
			p, err := NewTraces(t.Context(), Config{Protocol: tt.protocol, OnMistake: func(err error) { mistake = err }}, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = p.Shutdown(t.Context()) }()
			if tt.want == "" && mistake != nil ||
				tt.want != "" && (mistake == nil || !strings.Contains(mistake.Error(), tt.want)) {
				t.Errorf("got %v, want %s", mistake, tt.want)
			}
			if mistake != nil && (strings.Contains(mistake.Error(), "s3cret") || os.Getenv(tt.name) != "") {
				t.Errorf("a secret is shown, or the SDK still reads the variable: %v", mistake)
			}
		})
	}
}

// A batch that a silent collector holds does not outlive the context.
func TestShutdownIsBounded(t *testing.T) {
	silent := harness.Listen(t)
	defer func() { _ = silent.Close() }()
	for _, protocol := range []string{"http", "grpc"} {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+silent.Addr().String())
		var lost atomic.Int64
		p, err := NewTraces(t.Context(), Config{
			Protocol: protocol, OnLoss: func(spans int, _ error) { lost.Add(int64(spans)) },
		}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for range 1200 { // three batches, the first of which leaves at once
			_, end := p.Decision()(t.Context(), "d", text("r"))
			end("")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begun := time.Now()
		if err := p.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("%s: it took %v", protocol, took)
		}
		if got := lost.Load(); got != 1200 {
			t.Errorf("%s: told of %d lost spans", protocol, got)
		}
		cancel()
	}
}
