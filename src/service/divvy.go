package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ratelimit/src/frontend/divvy"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// divvyPort serves divvy's line protocol, from the start or since a Set has rules of divvy.
type divvyPort struct {
	*port
	server        *divvy.Server
	openRequested chan struct{} // openRequested is closed when the port must be open.
}

// buildDivvy makes the server of divvy's line protocol if the settings ask for it. It
// calls failed for requests that the store did not answer.
func (s *Service) buildDivvy(failed func(error)) error {
	d := s.Settings.Divvy
	if !d.OpensAtStart && !d.OpensWhenNeeded {
		return nil
	}
	panics := s.counters.Counter("ratelimit.service.panics")
	cfg := divvy.Config{
		Limiter:            s.limiter,
		Domain:             d.Domain,
		DomainFromOnlyList: d.UseOnlyList,
		DomainKey:          d.DomainKey,
		TLS:                s.ports.divvy.tlsConfig,
		RoundSecondsUp:     d.Rounding == "up",
		MaxLineBytes:       int(d.MaxLineBytes),
		MaxPipelined:       d.MaxPipelined,
		Limits: pipeline.Limits{
			MaxConnections: s.ports.divvy.maxConns,
			MemoryBudget:   s.ports.budget,
			IdleTimeout:    d.IdleTimeout,
		},
		Events: pipeline.Events{
			OnDecisions: s.hitsRecorder(),
			OnFailure: func(err error) {
				if errors.Is(err, limiter.ErrStoreFailed) {
					failed(err)
					return
				}
				s.log.Debugf("divvy: a request failed: %v", err)
			},
			OnPanic: func(value any, stack []byte) {
				panics.Add(1)
				s.log.WithField("stack", string(stack)).Errorf("divvy: panic: %v", value)
			},
		},
	}
	server, err := divvy.New(cfg)
	if err != nil {
		return err
	}
	p := &divvyPort{port: s.ports.divvy, server: server, openRequested: make(chan struct{})}
	s.frontends.divvy = p
	s.frontends.serverShutdowns = append(s.frontends.serverShutdowns, func(ctx context.Context) error { server.Shutdown(ctx); return nil })
	s.runners = append(s.runners, s.runDivvy)
	if p.Listener != nil {
		close(p.openRequested)
		s.counters.ShowFigures("divvy", "", server.Stats)
	}
	return nil
}

// hitsRecorder returns the function that records how long answered HITs took.
func (s *Service) hitsRecorder() func(n int, took time.Duration) {
	s.counters.ShowFigures("latency", "divvy", &s.statistics.latency.divvy)
	observe := s.statistics.latency.divvy.ObserveMany
	if s.statistics.hitTimingName == "" {
		return observe
	}
	return func(n int, took time.Duration) {
		observe(n, took)
		s.statistics.sendTimings(s.statistics.hitTimingName, n, took)
	}
}

// openDivvyIfNeeded lets runDivvy open the port if set has rules of divvy.
func (s *Service) openDivvyIfNeeded(set *rules.Set) {
	d := s.frontends.divvy
	if d == nil || !slices.ContainsFunc(set.Domains(), func(d *rules.Domain) bool { return d.FromDivvyFile }) {
		return
	}
	select {
	case <-d.openRequested: // Divvy's port is open, or runDivvy is opening it.
	default: // Only the goroutine that loads rules closes openRequested.
		s.health.update(func(h *health) { h.divvy.portErr = errors.New("divvy's port is not open yet") })
		close(d.openRequested)
	}
}

// divvyListenRetryPause is the time between two attempts to open divvy's port.
const divvyListenRetryPause = time.Second

// runDivvy serves divvy's port once it is needed. While another process has the port,
// this one is not ready, and its other ports go on.
func (s *Service) runDivvy(ctx context.Context) error {
	d := s.frontends.divvy
	select {
	case <-d.openRequested:
	case <-ctx.Done():
		return nil
	}
	if d.Listener != nil {
		return d.server.Serve(d.Listener)
	}
	s.counters.ShowFigures("divvy", "", d.server.Stats)
	failed := s.counters.Counter("ratelimit.divvy.listen_failed")
	for attempt := 1; ; attempt++ {
		l, err := d.listen(ctx)
		if err == nil {
			s.log.logListening(d.name, l.Addr())
			s.health.update(func(h *health) { h.divvy.portErr, h.divvy.lateAddr = nil, l.Addr() })
			return d.server.Serve(l)
		}
		failed.Add(1)
		why := fmt.Errorf("%w (`off` does without it)", err)
		s.health.update(func(h *health) { h.divvy.portErr = why })
		if attempt == 1 {
			s.log.Errorf("rules of divvy are loaded, but %v", why)
		}
		select {
		case <-time.After(divvyListenRetryPause):
		case <-ctx.Done():
			return nil
		}
	}
}
