package service

import (
	"context"
	"sync"
	"time"

	"ratelimit/src/service/otlp"
	"ratelimit/src/service/otlpmetrics"
	"ratelimit/src/service/tracing"
	"ratelimit/src/settings"
)

// process describes this process to an OpenTelemetry collector.
func (f *foundation) process(tags map[string]string) otlp.Process {
	cfg := f.Settings.Tracing
	return otlp.Process{
		ServiceName: cfg.ServiceName, Namespace: cfg.Namespace, InstanceID: cfg.InstanceID,
		Version: f.Version, Tags: tags,
	}
}

// startTracing makes what sends spans. Without tracing it is nil, whose methods do nothing.
func (f *foundation) startTracing() (*tracing.Provider, error) {
	cfg := f.Settings.Tracing
	if !cfg.Enabled {
		return nil, nil
	}
	p, err := tracing.New(context.Background(), tracing.Config{
		Protocol:     cfg.Protocol,
		Process:      f.process(nil),
		SamplingRate: float64(cfg.SamplingRate),
		OnLoss: func(spans int, err error) {
			f.log.Warnf("the collector did not take %d spans: %v", spans, err)
		},
		OnMistake: func(err error) { f.log.Warn(err) },
	})
	if err != nil {
		return nil, err
	}
	f.telemetryShutdowns = append(f.telemetryShutdowns, p.Shutdown)
	return p, nil
}

// startOTLP makes the part that sends metrics to an OpenTelemetry collector, if the settings ask for it.
func (f *foundation) startOTLP() error {
	cfg := f.Settings.OTLPMetrics
	if !cfg.On {
		return nil
	}
	sender, err := otlpmetrics.New(context.Background(), otlpmetrics.Config{
		ReadFigures: f.counters.Figures,
		Protocol:    cfg.Protocol,
		Process:     f.process(f.Settings.ExtraTags),
		Interval:    time.Duration(cfg.IntervalMilliseconds) * time.Millisecond,
		Timeout:     time.Duration(cfg.TimeoutMilliseconds) * time.Millisecond,
		OnLoss: func(exports int, err error) {
			f.log.Warnf("the collector did not take %d exports of metrics: %v", exports, err)
		},
		OnMistake: func(err error) { f.log.Warn(err) },
	})
	if err != nil {
		return err
	}
	if f.Settings.Sink != settings.SinkPrometheus { // The exporter of Prometheus shows it, too.
		f.counters.ShowBuild(f.Version, f.Commit)
	}
	f.telemetryShutdowns = append(f.telemetryShutdowns, sender.Shutdown)
	f.run(sender.Run)
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
}
