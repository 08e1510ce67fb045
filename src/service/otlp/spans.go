package otlp

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"
)

// maxClientText bounds each text of a client in a span, in bytes.
const maxClientText = 4096

// GRPC returns a handler that makes a server span of each call of methods, such as
// "/package.Service/Method". Other calls, such as health checks, have no span.
func (t *Traces) GRPC(methods ...string) stats.Handler {
	if t == nil {
		return nil
	}
	return otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.sdk),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()), // Without this option the library would use the global meter.
		otelgrpc.WithPropagators(t.propagator),
		otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool { return slices.Contains(methods, info.FullMethodName) }),
	)
}

// HTTP returns a handler that makes a server span of each request and calls next. route is the path of next, such as
// /json.
func (t *Traces) HTTP(route string, next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := knownMethod(r.Method)
		ctx := t.propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, method+" "+route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route), semconv.URLPath(route)))
		defer span.End()
		answer := &statusRecorder{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(answer, r.WithContext(ctx))
		span.SetAttributes(semconv.HTTPResponseStatusCode(answer.code))
		if answer.code >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
	})
}

// knownMethod returns m if it is a standard HTTP method, and else "_OTHER", so that clients cannot choose the names of
// spans.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return m
	}
	return "_OTHER"
}

// statusRecorder is a ResponseWriter that records the status code.
type statusRecorder struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (a *statusRecorder) WriteHeader(code int) {
	a.code = code
	a.ResponseWriter.WriteHeader(code)
}

// Decision returns the function for rls.Config.StartSpan, which makes a span of each decision. It
// calls request.String only if the span is sampled.
func (t *Traces) Decision() func(
	ctx context.Context, domain string, request fmt.Stringer,
) (context.Context, func(problem string)) {
	if t == nil {
		return nil
	}
	return func(ctx context.Context, domain string, request fmt.Stringer) (context.Context, func(string)) {
		ctx, span := t.tracer.Start(ctx, "ShouldRateLimit Execution")
		if span.IsRecording() {
			span.SetAttributes(
				attribute.String("domain", clipText(domain, maxClientText)),
				attribute.String("request string", clipText(request.String(), maxClientText)),
			)
		}
		return ctx, func(problem string) {
			if problem != "" {
				span.SetStatus(codes.Error, problem)
			}
			span.End()
		}
	}
}

// StoreCall returns a function that makes a span of each call of a store that a request caused, or nil if t is nil. The
// attribute db.system of the span is system, the attribute hits is n.
func (t *Traces) StoreCall(name, system, hits string) func(ctx context.Context, n int) (end func(error)) {
	if t == nil {
		return nil
	}
	return func(ctx context.Context, n int) func(error) {
		if !trace.SpanContextFromContext(ctx).IsValid() {
			return func(error) {} // No request caused the call.
		}
		_, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient))
		if span.IsRecording() {
			span.SetAttributes(attribute.String("db.system", system), attribute.Int(hits, n))
		}
		return func(err error) {
			if err != nil {
				span.SetStatus(codes.Error, "the call failed") // The error is left out because it may name keys.
			}
			span.End()
		}
	}
}
