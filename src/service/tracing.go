package service

import (
	"context"
	"time"

	"ratelimit/src/tracing"
)

// startTracing returns nil if tracing is off.
func (s *Service) startTracing() (*tracing.Provider, error) {
	cfg := s.Settings.Tracing
	if !cfg.Enabled {
		return nil, nil
	}
	return tracing.New(context.Background(), tracing.Config{
		Protocol:     cfg.Protocol,
		ServiceName:  cfg.ServiceName,
		Namespace:    cfg.Namespace,
		InstanceID:   cfg.InstanceID,
		Version:      s.Version,
		SamplingRate: float64(cfg.SamplingRate),
		OnLoss: func(spans int, err error) {
			s.log.Warnf("the collector did not take %d spans: %v", spans, err)
		},
	})
}

// flushTimeout is how long the last spans may take, as in envoyproxy/ratelimit.
const flushTimeout = 5 * time.Second

func (s *Service) endTracing(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := s.tracing.Shutdown(ctx); err != nil {
		s.log.Warnf("stopping: %v", err)
	}
}
