package service

import (
	"context"

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
	server, err := resp.New(resp.Config{
		Limiter:         s.limiter,
		ThrottleRefusal: throttleRefusal,
		Version:         s.Version,
		Access:          resp.Access{Passwords: s.respPasswords, OperatorTokens: s.debugTokens, Attempts: attempts},
		Reset:           s.editor.ChangeDescriptor,
		Config: pipeline.Config{
			TLS:            p.TLSConfig,
			MaxInputBytes:  int(cfg.MaxCommandBytes),
			AnswersWait:    s.store.IsShared(),
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
