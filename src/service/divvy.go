package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ratelimit/src/frontend/divvy"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// divvyPort serves divvy's line protocol, from the start or since a Set has rules of divvy.
type divvyPort struct {
	*port
	server *divvy.Server
	needed chan struct{} // closed when the port must be open
}

// buildDivvy makes the server of divvy's line protocol if the settings ask for it. It
// calls failed for requests that the store did not answer.
func (s *Service) buildDivvy(failed func(error)) error {
	d := s.Settings.Divvy
	if !d.On && !d.WhenNeeded {
		return nil
	}
	panics := s.counters.Counter("ratelimit.service.panics")
	cfg := divvy.Config{
		Limiter:   s.limiter,
		Domain:    d.Domain,
		OnlyList:  d.OnlyList,
		DomainKey: d.DomainKey,
		TLS:       s.ports.divvy.tlsConfig(),
		RoundUp:   d.Round == "up",
		Limits: divvy.Limits{
			MaxLine:      int(d.MaxLine),
			MaxConns:     s.ports.divvy.max,
			Budget:       s.ports.budget,
			MaxPipelined: d.MaxPipelined,
			Idle:         d.Idle,
		},
		Events: divvy.Events{
			OnHits: s.onHits(),
			OnFailure: func(err error) {
				if errors.Is(err, limiter.ErrStore) {
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
	if cfg.Idle == 0 {
		cfg.Idle = -1 * time.Second // never
	}
	server, err := divvy.New(cfg)
	if err != nil {
		return err
	}
	p := &divvyPort{port: s.ports.divvy, server: server, needed: make(chan struct{})}
	s.front.divvy = p
	s.front.drains = append(s.front.drains, func(ctx context.Context) error { server.Shutdown(ctx); return nil })
	s.runs = append(s.runs, s.runDivvy)
	if p.Listener != nil {
		close(p.needed)
		s.counters.Add(figures("divvy", "", server.Stats))
	}
	return nil
}

// onHits returns the function that records how long answered HITs took.
func (s *Service) onHits() func(n int, took time.Duration) {
	observe := s.counters.Latency("divvy").ObserveMany
	if s.stats.hitTiming == nil {
		return observe
	}
	return func(n int, took time.Duration) {
		observe(n, took)
		for range n {
			s.stats.hitTiming(took)
		}
	}
}

// openDivvyIfNeeded lets runDivvy open the port if set has rules of divvy.
func (s *Service) openDivvyIfNeeded(set *rules.Set) {
	d := s.front.divvy
	if d == nil || !slices.ContainsFunc(set.Domains(), func(d *rules.Domain) bool { return d.Divvy }) {
		return
	}
	select {
	case <-d.needed: // it is open, or being opened
	default: // only the goroutine that loads rules closes needed
		s.health.update(func(h *health) { h.divvy = errDivvyOpens })
		close(d.needed)
	}
}

// errDivvyOpens is the state before the first attempt to open the port.
var errDivvyOpens = errors.New("divvy's port is not open yet")

// divvyRetry is the time between two attempts to open divvy's port.
const divvyRetry = time.Second

// runDivvy serves divvy's port once it is needed. While another process has the port,
// this one is not ready, and its other ports go on.
func (s *Service) runDivvy(ctx context.Context) error {
	d := s.front.divvy
	select {
	case <-d.needed:
	case <-ctx.Done():
		return nil
	}
	if d.Listener != nil {
		return d.server.Serve(d.Listener)
	}
	s.counters.Add(figures("divvy", "", d.server.Stats))
	failed := s.counters.Counter("ratelimit.divvy.listen_failed")
	l, err := d.listen(ctx)
	for attempt := 1; err != nil; attempt++ {
		failed.Add(1)
		why := fmt.Errorf("%w (`off` does without it)", err)
		s.health.update(func(h *health) { h.divvy = why })
		if attempt == 1 {
			s.log.Errorf("rules of divvy are loaded, but %v", why)
		}
		select {
		case <-time.After(divvyRetry):
		case <-ctx.Done():
			return nil
		}
		l, err = d.listen(ctx)
	}
	s.log.announceListening(d.name, l.Addr())
	s.health.update(func(h *health) {
		h.divvy = nil
		h.lateDivvy = l.Addr()
	})
	return d.server.Serve(l)
}
