package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/src/settings"
	"ratelimit/src/tools/explain"
)

// frontends are the servers of all ports.
type frontends struct {
	grpc  *rls.Server
	divvy *divvyPort // nil: off

	drains []func(context.Context) error // stop servers; running requests may finish until the context ends
	closes []func() error                // close the ports for operators
}

// stop stops all servers, those for operators when running requests have finished.
func (f *frontends) stop(ctx context.Context) error {
	var g errgroup.Group
	for _, drain := range f.drains {
		g.Go(func() error { return drain(ctx) })
	}
	err := g.Wait()
	for _, end := range f.closes {
		err = errors.Join(err, end())
	}
	return err
}

// buildFrontends makes the servers of all ports.
func (s *Service) buildFrontends() error {
	if err := s.loadCertificates(); err != nil {
		return err
	}
	cfg := s.Settings
	failed := s.onError()
	service := rls.New(rls.Config{
		Limiter:  s.limiter,
		OnError:  failed,
		OnCall:   s.onCall(),
		Span:     s.tracing.Decision(),
		Headers:  headerNames(cfg),
		Metadata: cfg.DynamicMetadata,

		MaxDecisions: cfg.MaxBuffered / 4,
		Remote:       len(s.store.pools) > 0,
	})
	s.front.grpc = rls.NewServer(service, rls.ServerConfig{
		TLS:                   s.ports.grpc.tlsConfig(),
		MaxMessage:            cfg.GRPCMaxMessage,
		MaxStreams:            uint32(cfg.GRPCMaxStreams),
		KeepaliveTime:         cfg.GRPCKeepaliveTime,
		KeepaliveMin:          cfg.GRPCKeepaliveMin,
		MaxConnectionAge:      cfg.GRPCMaxConnectionAge,
		MaxConnectionAgeGrace: cfg.GRPCMaxConnectionAgeGrace,
		Reflection:            cfg.GRPCReflection,
		Budget:                s.ports.budget,
		Stats:                 s.tracing.GRPC(pb.RateLimitService_ShouldRateLimit_FullMethodName),
	})
	s.front.drains = append(s.front.drains, func(ctx context.Context) error { s.front.grpc.Shutdown(ctx); return nil })
	if l := s.ports.grpc.Listener; l != nil {
		s.runs = append(s.runs, func(context.Context) error { return s.front.grpc.Serve(l) })
	}
	requests := http.NewServeMux()
	requests.Handle("/json", s.tracing.HTTP("/json", service.JSON()))
	s.serveHTTP(s.ports.http, s.handleProbes(requests))
	s.serveHTTP(s.ports.debug, s.debugHandler())
	s.serveHTTP(s.ports.health, s.handleProbes(http.NewServeMux()))
	return s.buildDivvy(failed)
}

func headerNames(cfg *settings.Settings) *rls.HeaderNames {
	names := &rls.HeaderNames{Degraded: cfg.Failure.Header}
	switch {
	case cfg.LimitHeaders:
		names.Limit, names.Remaining, names.Reset = cfg.LimitHeader, cfg.RemainingHeader, cfg.ResetHeader
	case names.Degraded == "":
		return nil
	}
	return names
}

// Limits on what HTTP callers can make the process hold: silent connections, endless
// headers, replies that they do not read.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	headerBytes   = 64 << 10
)

// serveHTTP adds a server of h on p if p is open, within the limits above.
func (s *Service) serveHTTP(p *port, h http.Handler) {
	if p.Listener == nil {
		return
	}
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          httpLog(s.log.Logger),
	}
	connlimit.HTTP(srv)
	s.runs = append(s.runs, func(context.Context) error {
		l := p.Listener
		if cfg := p.tlsConfig(); cfg != nil {
			l = tls.NewListener(l, cfg)
		}
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	if p != s.ports.http {
		s.front.closes = append(s.front.closes, srv.Close)
		return
	}
	s.front.drains = append(s.front.drains, func(ctx context.Context) error {
		if srv.Shutdown(ctx) != nil {
			return srv.Close()
		}
		return nil
	})
}

// handleProbes makes mux answer probes.
func (s *Service) handleProbes(mux *http.ServeMux) *http.ServeMux {
	for path, h := range s.probes() {
		mux.Handle(path, h)
	}
	return mux
}

// probes are the pages that say whether this process should receive traffic.
func (s *Service) probes() map[string]http.Handler {
	return map[string]http.Handler{
		"/healthcheck": admin.Healthcheck(func() string { return s.health.reason(callers) }),
		"/livez":       admin.Live(),
		"/readyz":      admin.Ready(func() []admin.Component { return s.health.components(callers) }),
	}
}

// debugHandler answers on the debug port.
func (s *Service) debugHandler() http.Handler {
	withRules := func(write func(io.Writer, *rules.Set) error) func(io.Writer) error {
		return func(w io.Writer) error {
			set := s.limiter.Rules()
			if err := s.health.noteRefused(w); set == nil || err != nil {
				return err
			}
			return write(w, set)
		}
	}
	debug := admin.Debug{
		Pprof:   s.Settings.DebugPprof,
		Ready:   func() []admin.Component { return s.health.components(operators) },
		Explain: explain.Handler(s.limiter),
		Rules: withRules(func(w io.Writer, set *rules.Set) (err error) {
			for _, r := range set.Rules() {
				if _, err = fmt.Fprintln(w, r); err != nil {
					break
				}
			}
			return err
		}),
		RulesYAML: withRules(yamlrules.Write),
		Stats: func(yield func(string, int64) bool) {
			for _, st := range s.counters.Stats() {
				if !yield(st.Name, st.Value) {
					return
				}
			}
		},
	}
	// net/http/pprof extends the write timeout by the length of a profile.
	return admin.Hosts(s.Settings.DebugAllowedHosts, admin.Token(s.Settings.DebugToken, debug.Handler()))
}

// onCall returns the function that counts calls and their latency. gRPC calls are also
// counted under the names of envoyproxy/ratelimit.
func (s *Service) onCall() func(protocol, method string, took time.Duration) {
	type stats struct {
		total  *metrics.Counter
		timing string
	}
	byMethod := make(map[string]stats)
	for _, method := range []string{"ShouldRateLimit", "Check"} {
		byMethod[method] = stats{s.counters.Counter("ratelimit_server." + method + ".total_requests"), "ratelimit_server." + method + ".response_time"}
	}
	latency := map[string]*metrics.Histogram{"grpc": s.counters.Latency("grpc"), "json": s.counters.Latency("json")}
	return func(protocol, method string, took time.Duration) {
		if method == "ShouldRateLimit" {
			latency[protocol].Observe(took)
		}
		if m, known := byMethod[method]; known && protocol == "grpc" {
			m.total.Add(1)
			s.counters.Timing(m.timing, took)
		}
	}
}

// onError returns the function that counts requests without an answer and logs panics.
func (s *Service) onError() func(error) {
	failures := s.counters.Counter("ratelimit.service.call.should_rate_limit.service_error")
	panics := s.counters.Counter("ratelimit.service.panics")
	storeFailures := new(rareLog)
	return func(err error) {
		var p *rls.PanicError
		switch {
		case errors.As(err, &p):
			panics.Add(1)
			s.log.WithField("stack", string(p.Stack)).Error(err)
		case errors.Is(err, limiter.ErrStore): // counted as redis_error with the decision
			s.log.Debugf("request failed: %v", err)
			if n := storeFailures.add(time.Now()); n > 0 {
				s.log.Warnf("%d requests could not be decided since this was last said; the last one: %v", n, err)
			}
		default:
			failures.Add(1)
			s.log.Debugf("request failed: %v", err)
		}
	}
}

// rareLog bounds how often a message that may concern every request is logged.
type rareLog struct{ count, last atomic.Int64 }

// rareLogInterval is the shortest time between two such messages.
const rareLogInterval = 10 * time.Second

// add counts one event. When it is time to log, it returns the number of events since
// the last message, else 0.
func (r *rareLog) add(now time.Time) int64 {
	r.count.Add(1)
	last := r.last.Load()
	if now.UnixNano()-last < int64(rareLogInterval) || !r.last.CompareAndSwap(last, now.UnixNano()) {
		return 0
	}
	return r.count.Swap(0)
}
