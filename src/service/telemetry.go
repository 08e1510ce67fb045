package service

import (
	"context"
	"sync"
	"time"

	"ratelimit/src/service/otlp"
	"ratelimit/src/settings"
)

// collector says how spans or metrics reach an OpenTelemetry collector.
func (f *foundation) collector(protocol string, tags map[string]string, what string) otlp.Config {
	cfg := f.Settings.Tracing
	return otlp.Config{
		Protocol: protocol,
		Process: otlp.Process{
			ServiceName: cfg.ServiceName, Namespace: cfg.Namespace, InstanceID: cfg.InstanceID,
			Version: f.Version, Tags: tags,
		},
		OnLoss:    func(lost int, err error) { f.log.Warnf("the collector did not take %d %s: %v", lost, what, err) },
		OnMistake: func(err error) { f.log.Warn(err) },
	}
}

// startTracing makes what sends spans. Without tracing it is nil, whose methods do nothing.
func (f *foundation) startTracing() (*otlp.Traces, error) {
	cfg := f.Settings.Tracing
	if !cfg.Enabled {
		return nil, nil
	}
	traces, err := otlp.NewTraces(context.Background(), f.collector(cfg.Protocol, nil, "spans"), float64(cfg.SamplingRate))
	if err == nil {
		f.telemetryShutdowns = append(f.telemetryShutdowns, traces.Shutdown)
	}
	return traces, err
}

// startMetrics makes what sends metrics to an OpenTelemetry collector, if the settings ask for it.
func (f *foundation) startMetrics() error {
	cfg := f.Settings.OTLPMetrics
	if !cfg.On {
		return nil
	}
	sender, err := otlp.NewMetrics(context.Background(),
		f.collector(cfg.Protocol, f.Settings.ExtraTags, "exports of metrics"),
		otlp.MetricsConfig{
			ReadFigures: f.counters.Figures,
			Interval:    time.Duration(cfg.IntervalMilliseconds) * time.Millisecond,
			Timeout:     time.Duration(cfg.TimeoutMilliseconds) * time.Millisecond,
		})
	if err != nil {
		return err
	}
	if f.Settings.Sink != settings.SinkPrometheus { // The exporter of Prometheus shows it, too.
		f.counters.ShowBuild(f.Version, f.Commit)
	}
	f.telemetryShutdowns = append(f.telemetryShutdowns, sender.Shutdown)
	return nil
}

// telemetryTimeout bounds how long the last spans and metrics are sent, as in envoyproxy/ratelimit.
const telemetryTimeout = 5 * time.Second

// endTelemetry sends the last spans and metrics, both at the same time. Further calls do nothing.
func (f *foundation) endTelemetry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, telemetryTimeout)
	defer cancel()
	var ends sync.WaitGroup
	for _, shutdown := range f.telemetryShutdowns {
		ends.Go(func() {
			if err := shutdown(ctx); err != nil {
				f.log.Warnf("stopping: %v", err)
			}
		})
	}
	ends.Wait()
	f.telemetryShutdowns = nil
}
