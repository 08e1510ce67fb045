// Package otlpmetrics sends figures to an OpenTelemetry collector. It does not use the global state of the
// OpenTelemetry libraries.
//
// Each export reads the figures anew, so nothing waits in memory while the collector is away, and requests run no code
// of this package.
package otlpmetrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"

	"ratelimit/src/metrics"
	"ratelimit/src/service/otlp"
)

// Config is the configuration of a Sender. The exporters read the address, headers, certificates and timeouts from the
// environment variables OTEL_EXPORTER_OTLP_*.
type Config struct {
	ReadFigures func() []metrics.Figure // returns the figures to send. Required.
	Protocol    string                  // "http" or "grpc". Defaults to "http".
	Process     otlp.Process            // the resource of the metrics.
	Interval    time.Duration           // the time between two exports. Defaults to a minute.
	Timeout     time.Duration           // bounds one export. Defaults to 30 s.
	// OnLoss, if set, is called at most once a minute, and at the end, if exports failed. It gets the number of exports
	// that failed since the last call, and the last error, without the values of OTEL_EXPORTER_OTLP_HEADERS.
	OnLoss func(exports int, err error)
	// OnMistake, if set, gets the mistakes in these variables. A variable with a mistake is ignored.
	OnMistake otlp.OnMistake
}

// Sender sends figures while Run runs, and once more in Shutdown.
type Sender struct {
	cfg      Config
	process  *resource.Resource
	exporter exporter
	start    time.Time          // when all counters were 0.
	stopping context.Context    // ends when Shutdown is called.
	stop     context.CancelFunc // ends stopping.

	mu     sync.Mutex // guards the fields below, and is held during an export.
	losses *otlp.Losses
	closed bool
}

// exporter sends metrics over HTTP or gRPC.
type exporter interface {
	Export(context.Context, *metricdata.ResourceMetrics) error
	Shutdown(context.Context) error
}

// New returns a Sender. It does not connect before the first export.
func New(ctx context.Context, cfg Config) (*Sender, error) {
	cfg.Protocol = cmp.Or(cfg.Protocol, "http")
	cfg.Interval, cfg.Timeout = cmp.Or(cfg.Interval, time.Minute), cmp.Or(cfg.Timeout, 30*time.Second)
	otlp.Metrics.IgnoreMistakes(cfg.Protocol, cfg.OnMistake)
	otlp.IgnoreMistake("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", checkTemporality, cfg.OnMistake)
	s := &Sender{cfg: cfg, start: time.Now(), losses: otlp.NewLosses(otlp.Metrics, cfg.OnLoss)}
	s.stopping, s.stop = context.WithCancel(context.Background())
	var err error
	switch cfg.Protocol {
	case "http":
		s.exporter, err = otlpmetrichttp.New(ctx)
	case "grpc":
		s.exporter, err = otlpmetricgrpc.New(ctx)
	default:
		err = fmt.Errorf("protocol %q is not http or grpc", cfg.Protocol)
	}
	if err == nil {
		s.process, err = cfg.Process.WithEnvironment(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("metrics over OTLP: %w", err)
	}
	return s, nil
}

// checkTemporality refuses every temporality but that of counters since the start.
func checkTemporality(text string) error {
	if !strings.EqualFold(text, "cumulative") {
		return errors.New("write cumulative, or remove it: counters are sent as totals since the start. The collector's " +
			"processor cumulativetodelta makes increases of them")
	}
	return nil
}

// Run sends the figures once an interval, until ctx ends or Shutdown is called. It returns nil.
func (s *Sender) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	ticks := time.NewTicker(s.cfg.Interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
			s.mu.Lock()
			if ctx.Err() == nil { // else Shutdown sends the figures
				s.export(ctx)
			}
			s.mu.Unlock()
		}
	}
}

// export sends the figures. Callers hold mu. It is no loss if ctx ends, because Shutdown sends the same counters again.
func (s *Sender) export(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	s.losses.Export(limited, 1, func(limited context.Context) error {
		for _, batch := range batches(families(s.cfg.ReadFigures()), s.start, time.Now()) {
			err := s.exporter.Export(limited, &metricdata.ResourceMetrics{Resource: s.process, ScopeMetrics: batch})
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})
}

// Shutdown sends the figures once more until ctx ends. Further calls, and those of a nil Sender, do nothing.
func (s *Sender) Shutdown(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	// With ctx itself, an export that is cut off would be no loss.
	defer context.AfterFunc(ctx, s.losses.CancelExports)()
	s.export(context.WithoutCancel(ctx))
	s.losses.ReportRest()
	if err := s.exporter.Shutdown(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("metrics over OTLP: %w", err)
	}
	return nil
}
