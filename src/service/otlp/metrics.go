package otlp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"ratelimit/src/metrics"
)

// MetricsConfig says which figures are sent, and how often.
type MetricsConfig struct {
	ReadFigures func() []metrics.Figure
	Interval    time.Duration // the time between two exports. 0 means a minute.
	Timeout     time.Duration // bounds the export of a message. 0 means 30 s.
}

// Metrics sends figures once an interval. Each export reads them again, so nothing waits in memory while the collector
// is away, and requests run no code of this package.
type Metrics struct {
	sdk    *metric.MeterProvider
	losses *losses
}

// maxBatch is the most data points in one message. 4 MiB, the largest message that collectors accept over gRPC, leave
// 2 KB for each.
const maxBatch = 2000

// NewMetrics returns Metrics. The SDK starts a goroutine, which Shutdown stops.
func NewMetrics(ctx context.Context, cfg Config, m MetricsConfig) (*Metrics, error) {
	cfg.ignoreMistakes("METRICS")
	cfg.ignoreMistake("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", checkTemporality)
	process, err := cfg.Process.resource(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics over OTLP: %w", err)
	}
	var exporter metric.Exporter
	if cfg.Protocol == "grpc" {
		exporter, err = otlpmetricgrpc.New(ctx)
	} else {
		exporter, err = otlpmetrichttp.New(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("metrics over OTLP: %w", err)
	}
	losses := newLosses("METRICS", cfg.OnLoss)
	reader := newReader(metricExporter{exporter, losses}, m)
	return &Metrics{metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(process)), losses}, nil
}

func newReader(to metric.Exporter, m MetricsConfig) metric.Reader {
	return metric.NewPeriodicReader(to, metric.WithInterval(m.Interval), metric.WithTimeout(m.Timeout),
		metric.WithMaxExportBatchSize(maxBatch), metric.WithProducer(producer{m.ReadFigures, time.Now()}))
}

// checkTemporality refuses every temporality but that of counters since the start.
func checkTemporality(text string) error {
	if !strings.EqualFold(text, "cumulative") {
		return errors.New("write cumulative, or remove it: counters are sent as totals since the start. The collector's " +
			"processor cumulativetodelta makes increases of them")
	}
	return nil
}

// Shutdown sends the figures once more until ctx ends.
func (m *Metrics) Shutdown(ctx context.Context) error {
	if err := m.losses.untilEnd(ctx, m.sdk.Shutdown); err != nil {
		return fmt.Errorf("metrics over OTLP: %w", err)
	}
	return nil
}

// producer gives figures to the SDK.
type producer struct {
	readFigures func() []metrics.Figure
	start       time.Time // when all counters were 0.
}

// Produce returns the metrics of all figures.
func (p producer) Produce(context.Context) ([]metricdata.ScopeMetrics, error) {
	all := metricsOf(p.readFigures(), p.start, time.Now())
	return []metricdata.ScopeMetrics{{Scope: instrumentation.Scope{Name: "ratelimit"}, Metrics: all}}, nil
}

// metricExporter reports the messages that the embedded one could not send. The SDK makes one call of it at a time.
type metricExporter struct {
	metric.Exporter
	losses *losses
}

// Export sends one message. It reports errors and always returns nil. It is no loss if the SDK ends ctx, because it
// does so in Shutdown, and then sends the same counters again.
func (e metricExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	e.losses.export(ctx, 1, func(limited context.Context) error {
		if err := e.Exporter.Export(limited, m); !errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
		return nil
	})
	return nil
}

// Shutdown reports the remaining lost messages. The SDK calls it once, after the last export.
func (e metricExporter) Shutdown(ctx context.Context) error {
	e.losses.reportRest()
	return e.Exporter.Shutdown(ctx)
}
