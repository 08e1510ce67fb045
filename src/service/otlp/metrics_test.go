package otlp

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"ratelimit/src/metrics"
)

// sizes are the numbers of data points of the messages that it exported.
type sizes struct {
	metric.Exporter
	list []int
}

func (s *sizes) Export(_ context.Context, m *metricdata.ResourceMetrics) error {
	n := 0
	for _, scope := range m.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				n += len(data.DataPoints)
			case metricdata.Gauge[int64]:
				n += len(data.DataPoints)
			}
		}
	}
	s.list = append(s.list, n)
	return nil
}

func (s *sizes) Shutdown(context.Context) error { return nil }

// 4,500 series of one metric and one of another are three messages of at most 2,000 data points.
func TestBatches(t *testing.T) {
	t.Parallel()
	figures := []metrics.Figure{{MetricName: "ratelimit_ready", Help: "r.", Kind: metrics.KindGauge}}
	for i := range 4500 {
		figures = append(figures, metrics.Figure{
			MetricName: "ratelimit_decisions_total", Help: "d.",
			Labels: []string{"rule", fmt.Sprint(i)},
		})
	}
	sent := new(sizes)
	reader := newReader(sent, MetricsConfig{
		ReadFigures: func() []metrics.Figure { return figures }, Interval: time.Hour,
	})
	if err := metric.NewMeterProvider(metric.WithReader(reader)).Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(sent.list, []int{2000, 2000, 501}) {
		t.Errorf("%d data points", sent.list)
	}
}
