package service

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/divvy"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/rules"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/service/health"
	"ratelimit/src/service/ports"
)

// divvyPort serves divvy's line protocol, from the start or since a Set has rules of divvy.
type divvyPort struct {
	*ports.Port
	health        *health.State
	server        *divvy.Server // nil if the protocol is off
	openRequested chan struct{} // closed when the port must be open
}

func newDivvyPort(p *ports.Port, h *health.State) *divvyPort {
	return &divvyPort{Port: p, health: h, openRequested: make(chan struct{})}
}

// buildDivvy makes the server of divvy's line protocol if the settings ask for it. It
// calls failed for requests that the store did not answer.
func (s *Service) buildDivvy(failed func(error)) error {
	d := s.Settings.Divvy
	if !d.OpensAtStart && !d.OpensWhenNeeded {
		return nil
	}
	_, pollers := maxPollers(runtime.GOMAXPROCS(0), s.store.IsShared(), s.servers.ports.RESP.Listener != nil)
	server, err := divvy.New(divvy.Config{
		Limiter:            s.limiter,
		Domain:             d.Domain,
		DomainFromOnlyList: d.UseOnlyList,
		DomainKey:          d.DomainKey,
		RoundSecondsUp:     d.Rounding == "up",
		MaxLineBytes:       int(d.MaxLineBytes),
		Config: pipeline.Config{
			TLS:            s.servers.ports.Divvy.TLSConfig,
			MaxPollers:     pollers,
			MaxPipelined:   d.MaxPipelined,
			MaxConnections: s.servers.ports.Divvy.MaxConns,
			MemoryBudget:   s.servers.ports.Budget,
			IdleTimeout:    d.IdleTimeout,
			Events:         s.pipelineEvents("divvy", failed, s.hitsRecorder()),
		},
	})
	if err != nil {
		return err
	}
	p := s.divvy
	p.server = server
	s.warnings.WatchPort(p.Port, func() connlimit.Stats { return server.Stats().Stats })
	s.servers.onShutdown(server.Shutdown)
	s.run(func(ctx context.Context) error { return s.divvy.serve(ctx, s.foundation) })
	if p.Listener != nil {
		close(p.openRequested)
		s.counters.ShowFigures("divvy", "", server.Stats)
	}
	return nil
}

// hitsRecorder returns the function that records how long answered HITs took.
func (s *Service) hitsRecorder() func(n int, took time.Duration) {
	latency := &s.statistics.hitTimes
	s.counters.ShowFigures("latency", "divvy", latency)
	if s.statistics.hitTimingName == "" {
		return latency.ObserveMany
	}
	return func(n int, took time.Duration) {
		latency.ObserveMany(n, took)
		s.statistics.sendTimings(s.statistics.hitTimingName, n, took)
	}
}

// openIfNeeded lets serve open the port if set has rules of divvy.
func (d *divvyPort) openIfNeeded(set *rules.Set) {
	isDivvy := func(d *rules.Domain) bool { return d.Origin == divvyrules.Origin }
	if d.server == nil || !slices.ContainsFunc(set.Domains(), isDivvy) {
		return
	}
	select {
	case <-d.openRequested: // Divvy's port is open, or serve is opening it.
	default: // Only the goroutine that loads rules closes openRequested.
		d.health.LatePortNeeded(errors.New("divvy's port is not open yet"))
		close(d.openRequested)
	}
}

// divvyListenRetryPause is the time between two attempts to open divvy's port.
const divvyListenRetryPause = time.Second

// serve serves divvy's port once it is needed. While another process has the port,
// this one is not ready, and its other ports go on.
func (d *divvyPort) serve(ctx context.Context, s *foundation) error {
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
		l, err := d.Listen(ctx)
		if err == nil {
			s.logListening(d.Name, l.Addr())
			s.health.LatePortOpened(l.Addr())
			return d.server.Serve(l)
		}
		failed.Add(1)
		why := fmt.Errorf("%w (`off` does without it)", err)
		s.health.LatePortNeeded(why)
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
