package otlp

import (
	"context"
	"fmt"

	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Traces makes spans and sends them. The methods of nil return nil, or the handler that they got, so that there are no
// spans.
type Traces struct {
	sdk        *sdktrace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	losses     *losses
}

// NewTraces returns Traces of a share of the requests, from 0 (none) to 1 (all); a sampling decision of the caller
// takes precedence. It does not connect before the first spans are sent. The SDK reads OTEL_BSP_*, and starts a
// goroutine, which Shutdown stops.
func NewTraces(ctx context.Context, cfg Config, sampledShare float64) (*Traces, error) {
	cfg.ignoreMistakes("TRACES")
	for _, name := range []string{"MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE", "SCHEDULE_DELAY"} {
		cfg.ignoreMistake("OTEL_BSP_"+name, wholeNumberFrom(1))
	}
	process, err := cfg.Process.resource(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	var exporter sdktrace.SpanExporter
	if cfg.Protocol == "grpc" {
		exporter, err = otlptracegrpc.New(ctx)
	} else {
		exporter, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	t := &Traces{
		losses: newLosses("TRACES", cfg.OnLoss),
		// Of several headers the last propagator applies, so W3C takes precedence over B3.
		propagator: propagation.NewCompositeTextMapPropagator(b3.New(), propagation.TraceContext{}, propagation.Baggage{}),
	}
	t.sdk = sdktrace.NewTracerProvider(
		sdktrace.WithResource(process),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(sampledShare))),
		sdktrace.WithBatcher(spanExporter{exporter, t.losses}),
	)
	t.tracer = t.sdk.Tracer("ratelimit")
	return t, nil
}

// Shutdown sends the waiting spans until ctx ends. Spans that are not sent by then, or that end later, are lost.
func (t *Traces) Shutdown(ctx context.Context) error {
	if err := t.losses.untilEnd(ctx, t.sdk.Shutdown); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}

// spanExporter reports the spans that the embedded one could not send. The SDK makes one call of it at a time.
type spanExporter struct {
	sdktrace.SpanExporter
	losses *losses
}

// ExportSpans sends one batch. It reports errors and always returns nil.
func (e spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	e.losses.export(ctx, len(spans), func(ctx context.Context) error { return e.SpanExporter.ExportSpans(ctx, spans) })
	return nil
}

// Shutdown reports the remaining lost spans. The SDK calls it once, after the last batch.
func (e spanExporter) Shutdown(ctx context.Context) error {
	e.losses.reportRest()
	return e.SpanExporter.Shutdown(ctx)
}
