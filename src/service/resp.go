package service

import (
	"context"
	"runtime"

	"ratelimit/src/frontend/access"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/frontend/resp"
)

// buildRESP makes the server for clients of Redis if the settings ask for it. It calls failed for requests that the
// store did not answer. attempts bounds wrong passwords together with those on the debug port.
func (s *Service) buildRESP(failed func(error), attempts *access.Attempts) error {
	p, cfg := s.servers.ports.RESP, &s.Settings.RESP
	if p.Listener == nil {
		return nil
	}
	throttleRefusal := ""
	if s.Settings.BackendType == "memcache" {
		throttleRefusal = "CL.THROTTLE needs counters in memory or in Redis; they are in Memcached"
	}
	pollers, _ := maxPollers(runtime.GOMAXPROCS(0), s.store.IsShared(), true)
	server, err := resp.New(resp.Config{
		Limiter:         s.limiter,
		ThrottleRefusal: throttleRefusal,
		Version:         s.Version,
		Access:          resp.Access{Passwords: s.respPasswords, OperatorTokens: s.debugTokens, Attempts: attempts},
		Reset:           s.editor.ChangeDescriptor,
		Config: pipeline.Config{
			TLS:            p.TLSConfig,
			MaxInputBytes:  int(cfg.MaxCommandBytes),
			MaxPollers:     pollers,
			MaxPipelined:   cfg.MaxPipelined,
			MaxConnections: p.MaxConns,
			MemoryBudget:   s.servers.ports.Budget,
			IdleTimeout:    cfg.IdleTimeout,
			Events:         s.pipelineEvents("resp", failed, s.showLatency("resp").ObserveMany),
		},
	})
	if err != nil {
		return err
	}
	s.counters.ShowFigures("resp", "", server.Stats)
	s.warnings.WatchPort(p, func() connlimit.Stats { return server.Stats().Stats })
	s.servers.onShutdown(server.Shutdown)
	s.run(func(context.Context) error { return server.Serve(p.Listener) })
	return nil
}

// maxPollers returns how many pollers the ports of RESP and divvy have: half of the cores for one of the ports, because
// a busy poller takes a core. There are none with a store that is a server: answers wait for it.
func maxPollers(cores int, storeIsShared, hasRESP bool) (forRESP, forDivvy int) {
	switch {
	case storeIsShared:
		return 0, 0
	case hasRESP:
		return cores / 2, 0
	}
	return 0, cores / 2
}
