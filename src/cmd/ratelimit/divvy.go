package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/divvy"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
)

// buildDivvy makes the server of divvy's line protocol, if there is to be one.
// failed is told of trouble with the store.
func (s *server) buildDivvy(failed func(error)) error {
	d := s.cfg.Divvy
	if !d.On && !d.WhenNeeded {
		return nil
	}
	cfg := divvy.Config{
		Limiter:      s.limiter,
		Domain:       d.Domain,
		OnlyList:     d.OnlyList,
		DomainKey:    d.DomainKey,
		MaxLine:      int(d.MaxLine),
		MaxConns:     s.caps.divvy,
		Budget:       s.buffered,
		MaxPipelined: d.MaxPipelined,
		Idle:         d.Idle,
		RoundUp:      d.Round == "up",
		OnHits:       s.onHits(),
		Fallback: func(err error) {
			if errors.Is(err, limiter.ErrStore) {
				failed(err)
				return
			}
			s.log.Debugf("divvy: a request failed: %v", err)
		},
	}
	if cfg.Idle == 0 {
		cfg.Idle = -1 * time.Second // never
	}
	panics := s.counters.Counter("ratelimit.service.panics")
	cfg.OnPanic = func(value any, stack []byte) {
		panics.Add(1)
		s.log.WithField("stack", string(stack)).Errorf("divvy: panic: %v", value)
	}
	var err error
	if cfg.TLS, err = s.serverTLS("divvy", d.TLS); err != nil {
		return fmt.Errorf("DIVVY_TLS_CERT: %w", err)
	}
	if s.divvy, err = divvy.New(cfg); err != nil {
		return err
	}
	if d.WhenNeeded {
		s.late = make(chan struct{})
		return nil
	}
	s.counters.Source(divvyStats(s.divvy))
	return nil
}

// onHits is told how long HITs took that were answered.
func (s *server) onHits() func(n int, took time.Duration) {
	observe := s.counters.Latency("divvy").ObserveMany
	if s.standIn == nil || s.standIn.timing == nil {
		return observe
	}
	return func(n int, took time.Duration) {
		observe(n, took)
		for range n {
			s.standIn.timing(took)
		}
	}
}

// needDivvy has divvy's port opened, if that waits for rules like those in set.
func (s *server) needDivvy(set *rules.Set) {
	if s.late == nil || s.needed || !slices.ContainsFunc(set.Domains(), func(d *rules.Domain) bool { return d.Divvy }) {
		return
	}
	s.needed = true
	s.health.update(func(h *health) { h.divvy = errDivvyOpens })
	s.ready.update(func(r *readiness) { r.missing++ })
	close(s.late)
}

// errDivvyOpens is the state before it was tried.
var errDivvyOpens = errors.New("divvy's port is not open yet")

// divvyRetry is the time between two attempts to open divvy's port.
const divvyRetry = time.Second

// serveDivvyLate opens divvy's port once it is needed, and serves it. While it is
// taken this process is not ready; what it serves besides goes on.
func (s *server) serveDivvyLate(ctx context.Context) error {
	select {
	case <-s.late:
	case <-ctx.Done():
		return nil
	}
	s.counters.Source(divvyStats(s.divvy))
	failed := s.counters.Counter("ratelimit.divvy.listen_failed")
	var l net.Listener
	for said := false; l == nil; said = true {
		var err error
		if l, err = listenDivvy(ctx, s.cfg); err == nil {
			break
		}
		failed.Add(1)
		err = fmt.Errorf("%w (`off` does without it)", err)
		s.health.update(func(h *health) { h.divvy = err })
		if !said {
			s.log.Errorf("rules of divvy are loaded, but %v", err)
		}
		select {
		case <-time.After(divvyRetry):
		case <-ctx.Done():
			return nil
		}
	}
	port := namedPort{"divvy", l}
	port.announce(s.announce)
	s.health.update(func(h *health) { h.divvy = nil })
	s.ready.update(func(r *readiness) {
		r.missing--
		r.late = logrus.Fields{port.name: l.Addr().String()}
	})
	return s.divvy.Serve(l)
}

// divvyStats are the figures of divvy's port.
func divvyStats(d *divvy.Server) func(func(metrics.Stat)) {
	return func(add func(metrics.Stat)) {
		st := d.Stats()
		count := func(name string, value uint64) {
			add(metrics.Stat{Name: "ratelimit.divvy." + name, Kind: metrics.KindCounter, Value: int64(value)})
		}
		add(metrics.Stat{Name: "ratelimit.divvy.cx_active", Kind: metrics.KindGauge, Value: int64(st.Open)})
		count("cx_total", st.Accepted)
		count("cx_refused", st.Refused)
		count("cx_evicted", st.Evicted)
		count("cx_over_budget", st.OverBudget)
		count("hits", st.Hits)
		for code, n := range st.Errors {
			count("error."+code, n)
		}
	}
}
