package main

import (
	"errors"
	"fmt"
	"time"

	"ratelimit/src/frontend/divvy"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
)

// buildDivvy makes the server of divvy's line protocol, if there is to be one.
// failed is told of trouble with the store.
func (s *server) buildDivvy(failed func(error)) error {
	d := s.cfg.Divvy
	if !d.On {
		return nil
	}
	cfg := divvy.Config{
		Limiter:      s.limiter,
		Domain:       d.Domain,
		DomainKey:    d.DomainKey,
		MaxLine:      int(d.MaxLine),
		MaxConns:     d.MaxConns,
		MaxPipelined: d.MaxPipelined,
		Idle:         d.Idle,
		RoundUp:      d.Round == "up",
		OnHits:       s.counters.Latency("divvy").ObserveMany,
		OnFailure: func(err error) {
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
	s.counters.Source(divvyStats(s.divvy))
	return nil
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
		count("hits", st.Hits)
		for code, n := range st.Errors {
			count("error."+code, n)
		}
	}
}
