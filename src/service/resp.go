package service

import (
	"context"
	"errors"
	"net"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/frontend/resp"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
)

// buildRESP makes the server for clients of Redis if the settings ask for it. It calls failed for requests that the
// store did not answer. attempts bounds wrong passwords together with those on the debug port.
func (s *Service) buildRESP(failed func(error), attempts *admin.Attempts) error {
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
		TLS:             p.TLSConfig,
		Access: resp.Access{
			Password:       cfg.Password,
			OperatorToken:  s.Settings.DebugToken,
			AddAttempt:     func(client net.Addr) time.Duration { return attempts.Add(admin.ClientKey(client.String())) },
			ForgiveAttempt: func(client net.Addr) { attempts.Forgive(admin.ClientKey(client.String())) },
		},
		Operations:   resp.Operations{Reset: s.resetCounters},
		MaxPipelined: cfg.MaxPipelined,
		Limits: pipeline.Limits{
			MaxInputBytes:  int(cfg.MaxCommandBytes),
			MaxConnections: p.MaxConns,
			MemoryBudget:   s.servers.ports.Budget,
			IdleTimeout:    cfg.IdleTimeout,
		},
		Events: s.pipelineEvents("resp", failed, s.showLatency("resp").ObserveMany),
	})
	if err != nil {
		return err
	}
	s.counters.ShowFigures("resp", "", server.Stats)
	s.servers.onShutdown(server.Shutdown)
	s.run(func(context.Context) error { return server.Serve(p.Listener) })
	return nil
}

// resetCounters resets the counters of a descriptor on all replicas, as /api/counters does.
func (s *Service) resetCounters(ctx context.Context, domain string, entries []rules.Entry,
	client resp.Client,
) (counters int, err error) {
	c := operator.CounterChange{Action: operator.ActionReset, Domain: domain}
	for _, e := range entries {
		c.Descriptor = append(c.Descriptor, operator.CounterEntry{Key: string(e.Key), Value: string(e.Value)})
	}
	report, err := s.editor.ChangeDescriptor(ctx, &c, operator.Client{Addr: client.Addr, User: client.User})
	if refused := new(operator.CounterError); errors.As(err, &refused) {
		return 0, &resp.ClientError{Text: refused.Reason}
	}
	if err != nil {
		return 0, err
	}
	if report.Warning != "" {
		return 0, &resp.ClientError{Text: report.Warning}
	}
	return len(report.Counters), nil
}
