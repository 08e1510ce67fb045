// Package tracing sends spans of requests to an OpenTelemetry collector. It does not use
// the global state of the OpenTelemetry libraries.
package tracing

import (
	"cmp"
	"context"
	"fmt"

	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"ratelimit/src/service/otlp"
)

// Config is the configuration of a Provider. The exporters read the address, headers, certificates and timeouts from
// the environment variables OTEL_EXPORTER_OTLP_*. The SDK reads OTEL_BSP_*.
type Config struct {
	Protocol string       // "http" or "grpc". Defaults to "http".
	Process  otlp.Process // the resource of the spans.
	// SamplingRate is the share of traced requests, from 0 (none) to 1 (all). It does not
	// apply if the caller sent a sampling decision.
	SamplingRate float64
	// OnLoss, if set, is called at most once a minute, and at the end, if spans were lost. It gets their number since the
	// last call, and the last error, without the values of OTEL_EXPORTER_OTLP_HEADERS.
	OnLoss func(spans int, err error)
	// OnMistake, if set, gets the mistakes in these variables. A variable with a mistake is ignored.
	OnMistake otlp.OnMistake
}

// Provider makes spans and sends them. The methods of a nil Provider return nil, or the handler
// that they got, so that there are no spans.
type Provider struct {
	sdk        *sdktrace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	losses     *otlp.Losses
}

// New returns a Provider. It does not connect before the first spans are sent. The SDK starts a goroutine, which
// Shutdown stops.
func New(ctx context.Context, cfg Config) (*Provider, error) {
	cfg.Protocol = cmp.Or(cfg.Protocol, "http")
	otlp.Traces.IgnoreMistakes(cfg.Protocol, cfg.OnMistake)
	for _, name := range []string{"MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE", "SCHEDULE_DELAY"} {
		otlp.IgnoreMistake("OTEL_BSP_"+name, otlp.WholeNumberFrom(1), cfg.OnMistake)
	}
	process, err := cfg.Process.Resource(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	var exporter sdktrace.SpanExporter
	switch cfg.Protocol {
	case "http":
		exporter, err = otlptracehttp.New(ctx)
	case "grpc":
		exporter, err = otlptracegrpc.New(ctx)
	default:
		err = fmt.Errorf("protocol %q is not http or grpc", cfg.Protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	p := &Provider{
		losses: otlp.NewLosses(otlp.Traces, cfg.OnLoss),
		// Of several headers the last propagator applies, so W3C takes precedence over B3.
		propagator: propagation.NewCompositeTextMapPropagator(b3.New(), propagation.TraceContext{}, propagation.Baggage{}),
	}
	p.sdk = sdktrace.NewTracerProvider(
		sdktrace.WithResource(process),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SamplingRate))),
		sdktrace.WithBatcher(lossReporter{exporter, p.losses}),
	)
	p.tracer = p.sdk.Tracer("ratelimit")
	return p, nil
}

// Shutdown sends the waiting spans until ctx ends. Spans that are not sent by then, or that end
// later, are lost. Further calls do nothing.
func (p *Provider) Shutdown(ctx context.Context) error {
	if p == nil {
		return nil
	}
	// With ctx itself, the SDK would return before its goroutine has stopped.
	defer context.AfterFunc(ctx, p.losses.CancelExports)()
	if err := p.sdk.Shutdown(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}
