package tracing

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"ratelimit/src/service/otlp"
)

// lossReporter is a SpanExporter that reports the spans that another one could not send. The SDK makes one call of it
// at a time.
type lossReporter struct {
	sdktrace.SpanExporter
	*otlp.Losses
}

// ExportSpans sends one batch. It reports errors and always returns nil.
func (c lossReporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	c.Export(ctx, len(spans), func(ctx context.Context) error { return c.SpanExporter.ExportSpans(ctx, spans) })
	return nil
}

// Shutdown reports the remaining lost spans. The SDK calls it once, after the last batch.
func (c lossReporter) Shutdown(ctx context.Context) error {
	c.ReportRest()
	return c.SpanExporter.Shutdown(ctx)
}
