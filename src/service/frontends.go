package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/operator"
	"ratelimit/src/operator/throttle"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/src/settings"
)

// frontends are the servers of all ports.
type frontends struct {
	grpc  *rls.Server
	divvy *divvyPort // divvy is nil if divvy's protocol is off.

	serverShutdowns      []func(context.Context) error // serverShutdowns stop servers. Running requests may finish until the context ends.
	operatorServerCloses []func() error                // operatorServerCloses close the ports for operators.
}

// stop stops all servers, those for operators when running requests have finished.
func (f *frontends) stop(ctx context.Context) error {
	var g errgroup.Group
	for _, drain := range f.serverShutdowns {
		g.Go(func() error { return drain(ctx) })
	}
	err := g.Wait()
	for _, end := range f.operatorServerCloses {
		err = errors.Join(err, end())
	}
	return err
}

func (s *Service) buildFrontends() error {
	if err := s.loadCertificates(); err != nil {
		return err
	}
	cfg := s.Settings
	failed := s.errorRecorder()
	service := rls.New(rls.Config{
		Limiter:         s.limiter,
		OnError:         failed,
		OnCalls:         s.callRecorder(),
		StartSpan:       s.tracing.Decision(),
		HeaderNames:     headerNames(cfg),
		MetadataEnabled: cfg.DynamicMetadata,

		LargeRequestMemoryBytes: cfg.MaxBuffered / 4,
		StoreIsRemote:           len(s.store.pools) > 0,
	})
	quotas := s.buildQuotas()
	s.frontends.grpc = rls.NewServer(service, rls.ServerConfig{
		Register:              quotas.Register,
		TLS:                   s.ports.grpc.tlsConfig,
		MaxMessageBytes:       cfg.GRPCMaxMessage,
		MaxCallsPerConnection: uint32(cfg.GRPCMaxStreams),
		MaxClientSilence:      cfg.GRPCKeepaliveTime,
		MinClientPingInterval: cfg.GRPCKeepaliveMin,
		MaxConnectionAge:      cfg.GRPCMaxConnectionAge,
		MaxConnectionAgeGrace: cfg.GRPCMaxConnectionAgeGrace,
		ReflectionEnabled:     cfg.GRPCReflection,
		MemoryBudget:          s.ports.budget,
		StatsHandler:          s.tracing.GRPC(pb.RateLimitService_ShouldRateLimit_FullMethodName),
		UseGRPCGo:             cfg.GRPCEngine == settings.EngineGRPCGo,
		OnProtocolError:       s.protocolErrorRecorder(),
	})
	s.counters.ShowFigures("guard", "", s.frontends.grpc.Stats)
	s.frontends.serverShutdowns = append(s.frontends.serverShutdowns, func(ctx context.Context) error { s.frontends.grpc.Shutdown(ctx); return nil })
	if l := s.ports.grpc.Listener; l != nil {
		s.runners = append(s.runners, func(context.Context) error { return s.frontends.grpc.Serve(l) })
	}
	requests := http.NewServeMux()
	requests.Handle("/json", s.early.hold(s.tracing.HTTP("/json", service.JSONHandler())))
	s.serveHTTP(s.ports.http, s.handleProbes(requests))
	attempts, err := newTokenAttempts()
	if err != nil {
		return err
	}
	s.serveHTTP(s.ports.debug, s.debugHandler(attempts))
	s.serveHTTP(s.ports.health, s.handleProbes(http.NewServeMux()))
	if err := s.buildRESP(failed, attempts); err != nil {
		return err
	}
	return s.buildDivvy(failed)
}

func headerNames(cfg *settings.Settings) *rls.HeaderNames {
	names := &rls.HeaderNames{Degraded: cfg.Failure.DegradedHeader}
	switch {
	case cfg.LimitHeaders && cfg.LimitHeadersFormat == settings.HeadersIETF:
		names.Policies = true
	case cfg.LimitHeaders:
		names.Limit, names.Remaining, names.Reset = cfg.LimitHeader, cfg.RemainingHeader, cfg.ResetHeader
	case names.Degraded == "":
		return nil
	}
	return names
}

// These timeouts and sizes bound what HTTP callers can make the process hold: silent connections,
// endless headers, replies that they do not read.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	headerBytes   = 64 << 10
)

// serveHTTP adds a server of h on p if p is open.
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
	connlimit.TrackHTTPServer(srv)
	s.runners = append(s.runners, func(context.Context) error {
		l := p.Listener
		if p.tlsConfig != nil {
			l = tls.NewListener(l, p.tlsConfig)
		}
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	if p != s.ports.http {
		s.frontends.operatorServerCloses = append(s.frontends.operatorServerCloses, srv.Close)
		return
	}
	s.frontends.serverShutdowns = append(s.frontends.serverShutdowns, func(ctx context.Context) error {
		if srv.Shutdown(ctx) != nil {
			return srv.Close()
		}
		return nil
	})
}

func (s *Service) handleProbes(mux *http.ServeMux) *http.ServeMux {
	for path, h := range s.probes() {
		mux.Handle(path, h)
	}
	return mux
}

// probes are the pages that say whether this process should receive traffic.
func (s *Service) probes() map[string]http.Handler {
	return map[string]http.Handler{
		"/healthcheck": admin.HealthcheckHandler(func() string { return s.health.unhealthyReason(callers) }),
		"/livez":       admin.LiveHandler(),
		"/readyz":      admin.ReadyHandler(func() []operator.Component { return s.health.components(callers) }),
	}
}

func (s *Service) debugHandler(attempts admin.Attempts) http.Handler {
	withRules := func(write func(io.Writer, *rules.Set) error) func(io.Writer) error {
		return func(w io.Writer) error {
			set := s.limiter.Rules()
			if err := s.health.writeRefusal(w); set == nil || err != nil {
				return err
			}
			return write(w, set)
		}
	}
	debug := admin.DebugPages{
		PprofEnabled:   s.Settings.DebugPprof,
		Limiter:        s.limiter,
		ChangeCounters: s.editor.Change,
		Record:         s.record,
		HasToken:       s.Settings.DebugToken != "",
		Components:     func() []operator.Component { return s.health.components(operators) },
		WriteRules:     withRules(writeRuleLines),
		WriteRulesYAML: withRules(yamlrules.Write),
		WriteCandidateRules: func(w io.Writer) error {
			if set := s.limiter.Candidate(); set != nil {
				return writeRuleLines(w, set)
			}
			return nil
		},
		SortedFigures: func(yield func(string, int64) bool) {
			for _, st := range s.counters.Stats() {
				if !yield(st.Name, st.Value) {
					return
				}
			}
		},
	}
	if s.ports.debug.Listener != nil {
		debug.Figures = &operator.Figures{Observer: s.observer, Divider: s.divider, Service: s.stateForOperators, CandidateRules: s.candidate.report}
	}
	// net/http/pprof extends the write timeout by the length of a profile.
	hosts := s.Settings.DebugAllowedHosts
	if own, err := os.Hostname(); err == nil { // In a pod this is its name.
		hosts = append(slices.Clone(hosts), strings.ToLower(own))
	}
	return admin.AllowHosts(hosts, admin.RequireToken(s.Settings.DebugToken, attempts, debug.Handler()))
}

// writeRuleLines writes one line for each rule.
func writeRuleLines(w io.Writer, set *rules.Set) error {
	for _, r := range set.Rules() {
		if _, err := fmt.Fprintln(w, r); err != nil {
			return err
		}
	}
	return nil
}

// callRecorder returns the function that counts calls and their latency. gRPC calls are also
// counted under the names of envoyproxy/ratelimit.
func (s *Service) callRecorder() func(protocol, method string, calls int, took time.Duration) {
	type stats struct {
		total  *metrics.Counter
		timing string
	}
	byMethod := make(map[string]stats)
	for _, method := range []string{"ShouldRateLimit", "Check"} {
		byMethod[method] = stats{s.counters.Counter("ratelimit_server." + method + ".total_requests"), "ratelimit_server." + method + ".response_time"}
	}
	latency := map[string]*metrics.Histogram{"grpc": &s.statistics.latency.grpc, "json": &s.statistics.latency.json}
	for protocol, h := range latency {
		s.counters.ShowFigures("latency", protocol, h)
	}
	return func(protocol, method string, calls int, took time.Duration) {
		if method == "ShouldRateLimit" {
			latency[protocol].ObserveMany(calls, took)
		}
		if m, known := byMethod[method]; known && protocol == "grpc" {
			m.total.Add(uint64(calls))
			s.statistics.sendTimings(m.timing, calls, took)
		}
	}
}

// protocolErrorRecorder returns the function that logs why gRPC connections were closed.
func (s *Service) protocolErrorRecorder() func(client net.Addr, err error) {
	wrong := throttle.New(1, time.Minute)
	return func(client net.Addr, err error) {
		if !rls.IsWrongProtocol(err) {
			s.log.Debugf("the gRPC connection from %v was closed: %v", client, err)
		} else if skipped, ok := wrong.Pass(time.Now()); ok {
			s.log.Warnf("the gRPC port cannot answer %d connections since this was last said; the last one is from %v: %v",
				skipped+1, client, err)
		}
	}
}

// errorRecorder returns the function that counts requests without an answer and logs panics.
func (s *Service) errorRecorder() func(error) {
	failures := s.counters.Counter("ratelimit.service.call.should_rate_limit.service_error")
	panics := s.counters.Counter("ratelimit.service.panics")
	storeFailures := throttle.New(1, logInterval)
	return func(err error) {
		var p *rls.PanicError
		switch {
		case errors.As(err, &p):
			panics.Add(1)
			s.log.WithField("stack", string(p.Stack)).Error(err)
		case errors.Is(err, limiter.ErrStoreFailed): // The registry counts an error of the store as redis_error.
			s.log.Debugf("request failed: %v", err)
			if skipped, ok := storeFailures.Pass(time.Now()); ok {
				s.log.Warnf("%d requests could not be decided since this was last said; the last one: %v", skipped+1, err)
			}
		default:
			failures.Add(1)
			s.log.Debugf("request failed: %v", err)
		}
	}
}
