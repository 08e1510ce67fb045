package service

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/src/frontend/access"
	"ratelimit/src/frontend/admin"
	"ratelimit/src/frontend/h2"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/src/service/health"
	"ratelimit/src/settings"
)

// buildFrontends makes the servers of all ports but those of sinks.
func (s *Service) buildFrontends() error {
	cfg := s.Settings
	failed := s.errorRecorder()
	service := rls.New(rls.Config{
		Limiter:         s.limiter,
		OnError:         failed,
		OnCalls:         s.callRecorder(),
		StartSpan:       s.spans.Decision(),
		HeaderNames:     headerNames(cfg),
		MetadataEnabled: cfg.DynamicMetadata,

		LargeRequestMemoryBytes: cfg.MaxBuffered / 4,
		StoreIsRemote:           s.store.IsShared(),
	})
	quotas := s.buildQuotas()
	s.grpc = rls.NewServer(service, rls.ServerConfig{
		Register:          quotas.Register,
		ReflectionEnabled: cfg.GRPCReflection,
		MemoryBudget:      s.servers.ports.Budget,
		StatsHandler:      s.spans.GRPC(pb.RateLimitService_ShouldRateLimit_FullMethodName),
		UseGRPCGo:         cfg.GRPCEngine == settings.EngineGRPCGo,
		ConnConfig: h2.ConnConfig{
			OnProtocolError:       s.protocolErrorRecorder(),
			TLS:                   s.servers.ports.GRPC.TLSConfig,
			MaxMessageBytes:       cfg.GRPCMaxMessage,
			MaxStreams:            uint32(cfg.GRPCMaxStreams),
			MaxClientSilence:      cfg.GRPCKeepaliveTime,
			MinClientPingInterval: cfg.GRPCKeepaliveMin,
			MaxConnectionAge:      cfg.GRPCMaxConnectionAge,
			MaxConnectionAgeGrace: cfg.GRPCMaxConnectionAgeGrace,
		},
	})
	s.counters.ShowFigures("guard", "", s.grpc.Stats)
	s.servers.onShutdown(s.grpc.Shutdown)
	if l := s.servers.ports.GRPC.Listener; l != nil {
		s.run(func(context.Context) error { return s.grpc.Serve(l) })
	}
	requests := http.NewServeMux()
	requests.Handle("/json", answerInTime(s.servers.holdEarly(s.spans.HTTP("/json", service.JSONHandler()))))
	s.servers.serveHTTP(s.servers.ports.HTTP, s.health.AddProbes(requests))
	attempts, err := access.NewAttempts()
	if err != nil {
		return err
	}
	figures := s.observers.Figures(s.divider, s.state, s.candidates.Report)
	sum, err := s.sumFigures(figures, s.servers.ports.Debug)
	if err != nil {
		return err
	}
	s.servers.serveHTTP(s.servers.ports.Debug, s.debugHandler(attempts, figures, sum))
	s.servers.serveHTTP(s.servers.ports.Health, s.health.AddProbes(http.NewServeMux()))
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

func (s *Service) debugHandler(attempts *access.Attempts, figures *operator.Figures, sum *operator.SumFigures,
) http.Handler {
	withRules := func(write func(io.Writer, *rules.Set) error) func(io.Writer) error {
		return func(w io.Writer) error {
			set := s.limiter.Rules()
			if _, err := io.WriteString(w, s.health.RefusalNotes()); set == nil || err != nil {
				return err
			}
			return write(w, set)
		}
	}
	debug := admin.DebugPages{
		PprofEnabled:   s.Settings.DebugPprof,
		Limiter:        s.limiter.Limiter,
		ChangeCounters: s.editor.Change,
		Limits:         s.limits,
		Record:         s.record,
		Figures:        figures,
		SumFigures:     sum,
		HasToken:       s.debugTokens != nil,
		Components:     func() []operator.Component { return s.health.Components(health.Operators) },
		WriteRules:     withRules(rules.WriteLines),
		WriteRulesYAML: withRules(yamlrules.Write),
		SortedFigures: func(yield func(string, int64) bool) {
			for _, st := range s.counters.Stats() {
				if !yield(st.Name, st.Value) {
					return
				}
			}
		},
	}
	debug.MetricsAddr, debug.MetricsPath = s.Addr("prometheus"), s.Settings.PrometheusPath
	if own := s.Settings.DivvyVariables; own != nil {
		debug.MetricsPath = own.MetricsPath
	}
	// net/http/pprof extends the write timeout by the length of a profile.
	hosts := s.Settings.DebugAllowedHosts
	if own, err := os.Hostname(); err == nil { // In a pod this is its name.
		hosts = append(slices.Clone(hosts), strings.ToLower(own))
	}
	return admin.AllowHosts(hosts, admin.RequireToken(s.debugTokens, attempts, debug.Handler()))
}

// callRecorder returns the function that counts calls and their latency. gRPC calls are also counted under the names of
// envoyproxy/ratelimit.
func (s *Service) callRecorder() func(protocol, method string, calls int, took time.Duration) {
	latency := map[string]*metrics.Histogram{"grpc": s.showLatency("grpc"), "json": s.showLatency("json")}
	totals := make(map[string]*metrics.Counter)
	for _, method := range []string{"ShouldRateLimit", "Check"} {
		totals[method] = s.counters.Counter("ratelimit_server." + method + ".total_requests")
	}
	return func(protocol, method string, calls int, took time.Duration) {
		if method == "ShouldRateLimit" {
			latency[protocol].ObserveMany(calls, took)
		}
		if total := totals[method]; total != nil && protocol == "grpc" {
			total.Add(uint64(calls))
			s.statistics.sendTimings("ratelimit_server."+method+".response_time", calls, took)
		}
	}
}

// showLatency shows the times of decisions of a protocol, which the caller observes.
func (s *Service) showLatency(protocol string) *metrics.Histogram {
	h := new(metrics.Histogram)
	s.counters.ShowFigures("latency", protocol, h)
	return h
}

// pipelineEvents returns what a server of a protocol over TCP reports. It calls failed for requests that the store did
// not answer.
func (s *Service) pipelineEvents(protocol string, failed func(error),
	onDecisions func(n int, took time.Duration),
) pipeline.Events {
	panics := s.counters.Counter(panicCounter)
	return pipeline.Events{
		OnDecisions: onDecisions,
		OnFailure: func(err error) {
			if errors.Is(err, limiter.ErrStoreFailed) {
				failed(err)
				return
			}
			s.log.Debugf("%s: a request failed: %v", protocol, err)
		},
		OnPanic: func(value any, stack []byte) {
			panics.Add(1)
			s.log.WithField("stack", string(stack)).Errorf("%s: panic: %v", protocol, value)
		},
	}
}

const panicCounter = "ratelimit.service.panics"

// protocolErrorRecorder returns the function that logs why gRPC connections were closed.
func (s *Service) protocolErrorRecorder() func(client net.Addr, err error) {
	warn := s.warnSometimes(time.Minute, "connection",
		"the gRPC port could not answer %s since this was last said; the last one is from %v: %v")
	return func(client net.Addr, err error) {
		if rls.IsWrongProtocol(err) {
			warn(client, err)
		} else {
			s.log.Debugf("the gRPC connection from %v was closed: %v", client, err)
		}
	}
}

// errorRecorder returns the function that counts requests without an answer and logs panics.
func (s *Service) errorRecorder() func(error) {
	failures := s.counters.Counter("ratelimit.service.call.should_rate_limit.service_error")
	panics := s.counters.Counter(panicCounter)
	warn := s.warnSometimes(logInterval, "request",
		"%s could not be decided since this was last said; the last one: %v")
	return func(err error) {
		var p *rls.PanicError
		switch {
		case errors.As(err, &p):
			panics.Add(1)
			s.log.WithField("stack", string(p.Stack)).Error(err)
		case errors.Is(err, limiter.ErrStoreFailed): // The registry counts an error of the store as redis_error.
			s.log.Debugf("request failed: %v", err)
			warn(err)
		case errors.Is(err, limiter.ErrCallerLeft): // Nobody waits for the answer, so nothing failed.
			s.log.Debugf("request failed: %v", err)
		default:
			failures.Add(1)
			s.log.Debugf("request failed: %v", err)
		}
	}
}
