package main

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/settings"
	"ratelimit/src/tracing"
)

// startTracing returns nil if tracing is off.
func startTracing(ctx context.Context, cfg *settings.Settings, log *logrus.Logger) (*tracing.Provider, error) {
	if !cfg.Tracing.Enabled {
		return nil, nil
	}
	return tracing.New(ctx, tracing.Config{
		Protocol:     cfg.Tracing.Protocol,
		ServiceName:  cfg.Tracing.ServiceName,
		Namespace:    cfg.Tracing.Namespace,
		InstanceID:   cfg.Tracing.InstanceID,
		Version:      version,
		SamplingRate: float64(cfg.Tracing.SamplingRate),
		OnLoss: func(spans int, err error) {
			log.Warnf("the collector did not take %d spans: %v", spans, err)
		},
	})
}

// flushTimeout is how long the last spans may take, as upstream has it.
const flushTimeout = 5 * time.Second

func (s *server) endTracing(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := s.tracing.Shutdown(ctx); err != nil {
		s.log.Warnf("stopping: %v", err)
	}
}
