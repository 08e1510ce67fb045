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
func (s *Service) process(tags map[string]string) otlp.Process {
	cfg := s.Settings.Tracing
	return otlp.Process{ServiceName: cfg.ServiceName, Namespace: cfg.Namespace, InstanceID: cfg.InstanceID, Version: s.Version, Tags: tags}
}

func (s *Service) startTracing() (*tracing.Provider, error) {
	cfg := s.Settings.Tracing
	if !cfg.Enabled {
		return nil, nil
	}
	return tracing.New(context.Background(), tracing.Config{
		Protocol:     cfg.Protocol,
		Process:      s.process(nil),
		SamplingRate: float64(cfg.SamplingRate),
		OnLoss: func(spans int, err error) {
			s.log.Warnf("the collector did not take %d spans: %v", spans, err)
		},
		OnMistake: func(err error) { s.log.Warn(err) },
	})
}

// buildOTLP makes the part that sends metrics to an OpenTelemetry collector, if the settings ask for it.
func (s *Service) buildOTLP() (err error) {
	cfg := s.Settings.OTLPMetrics
	if !cfg.On {
		return nil
	}
	s.otlp, err = otlpmetrics.New(context.Background(), otlpmetrics.Config{
		ReadFigures: s.counters.Figures,
		Protocol:    cfg.Protocol,
		Process:     s.process(s.Settings.ExtraTags),
		Interval:    time.Duration(cfg.IntervalMilliseconds) * time.Millisecond,
		Timeout:     time.Duration(cfg.TimeoutMilliseconds) * time.Millisecond,
		OnLoss: func(exports int, err error) {
			s.log.Warnf("the collector did not take %d exports of metrics: %v", exports, err)
		},
		OnMistake: func(err error) { s.log.Warn(err) },
	})
	if s.Settings.Sink != settings.SinkPrometheus { // The exporter of Prometheus shows it, too.
		s.counters.ShowBuild(s.Version, s.Commit)
	}
	if err == nil {
		s.runners = append(s.runners, s.otlp.Run)
	}
	return err
}

// telemetryTimeout bounds how long the last spans and metrics are sent, as in envoyproxy/ratelimit.
const telemetryTimeout = 5 * time.Second

// endTelemetry sends the last spans and metrics, both at the same time. Further calls do nothing.
func (s *Service) endTelemetry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, telemetryTimeout)
	defer cancel()
	var ends sync.WaitGroup
	for _, shutdown := range []func(context.Context) error{s.tracing.Shutdown, s.otlp.Shutdown} {
		ends.Go(func() {
			if err := shutdown(ctx); err != nil {
				s.log.Warnf("stopping: %v", err)
			}
		})
	}
	ends.Wait()
}
