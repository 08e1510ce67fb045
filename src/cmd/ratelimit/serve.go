package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"ratelimit/src/files"
	"ratelimit/src/frontend/admin"
	"ratelimit/src/frontend/budget"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/divvy"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/src/settings"
	"ratelimit/src/tracing"
)

func serveCommand(std stdio) *cobra.Command {
	var opt serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve (also without any command)",
		Long: `serve answers rate limit requests until it gets SIGTERM or SIGINT; a second one
ends it at once. SIGHUP reads the rules again. Everything is configured by
environment variables:

` + settingsText(),
		Example: `  ratelimit serve --config examples/ratelimit/config
  RUNTIME_ROOT=examples RUNTIME_SUBDIRECTORY=ratelimit ratelimit serve
  PORT=0 GRPC_PORT=0 DEBUG_PORT=0 LOG_LEVEL=debug ratelimit serve`,
		Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals := make(chan os.Signal, 4)
			signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			defer signal.Stop(signals)
			gc := tuneGC(os.LookupEnv)
			defer gc.stop()
			return serving(std, func(o *outputs) error {
				ownProcess(o)
				opt.gc, opt.environ = gc, os.Environ()
				return serve(cmd.Context(), o, os.LookupEnv, signals, opt)
			})
		},
	}
	opt.flags(cmd.Flags())
	return cmd
}

// serveOptions are not settings.
type serveOptions struct {
	try    bool     // once ready, print a request to try
	config string   // a directory or file of rules, in place of the RUNTIME_ variables; empty: those
	gc     *gcTuner // is told of the counters in this process
	// redisSocket is where a Redis is used that no variable names. Defaults to
	// settings.RedisSocket.
	redisSocket string
	environ     []string // NAME=value, where mistyped names are looked for
}

// unknown warns of variables of the environment that are no settings of table.
func (opt *serveOptions) unknown(table []settings.Variable) []string {
	var names []string
	for _, v := range opt.environ {
		name, _, _ := strings.Cut(v, "=")
		names = append(names, name)
	}
	return settings.Unknown(names, table)
}

func (opt *serveOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&opt.config, "config", "", "directory or file with the rules, in place of RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY")
	f.BoolVar(&opt.try, "try", false, "once ready, print a request to try on the loaded rules")
}

// useConfig has the rules come from --config, if it is given. The warnings name
// variables that have no effect then.
func (opt *serveOptions) useConfig(cfg *settings.Settings, lookup func(string) (string, bool)) (warnings []string, err error) {
	if opt.config == "" {
		return nil, nil
	}
	if cfg.ConfigType == settings.ConfigXDS {
		return nil, errors.New("--config: CONFIG_TYPE=" + settings.ConfigXDS + " says that rules come from a management server; leave out one of them")
	}
	for _, name := range []string{"RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"} {
		if v, _ := lookup(name); v != "" {
			warnings = append(warnings, fmt.Sprintf("%s=%s has no effect: --config says where the rules are; remove one of the two", name, v))
		}
	}
	return warnings, nil
}

// server is one running service.
//
//	Envoy ──gRPC──> rls ──┐
//	curl ───/json─> rls ──┼──> limiter ──> store
//	HIT ────TCP──> divvy ─┘       │
//	operators ────> admin         │
//	files, xDS ───> source ───> Use     └──> metrics
type server struct {
	cfg    *settings.Settings
	output *outputs
	serveOptions
	log      *logrus.Logger // ordinary lines; see logs for the others
	audit    *logrus.Logger
	denials  *logrus.Logger
	announce *logrus.Logger
	caps     connCaps
	ports    ports
	buffered *budget.Budget // of the bytes that all callers together hold here
	store    *store
	counters *metrics.Registry
	limiter  *limiter.Limiter
	health   health
	ready    readiness
	source   source
	grpc     *rls.Server
	http     *http.Server
	debug    *http.Server
	probes   *http.Server  // of HEALTH_PORT
	divvy    *divvy.Server // nil: off
	standIn  *standIn      // nil: this is not `ratelimit divvy`
	late     chan struct{} // closed when divvy's port is needed; nil: it does not wait for that
	needed   bool          // it is closed; only the goroutine that loads rules uses this
	noRules  string        // why there may be none, for the log
	refused  chan error    // the first rules of `ratelimit divvy`; nil: this is not it
	certs    []portCerts
	// clientCertReads are those of scrapes, which wait for a second at most.
	clientCertReads files.Reads
	tls             struct{ http, debug *tls.Config } // nil: plain text

	statistics statistics
	tracing    *tracing.Provider // nil: off
}

// serve runs the service until a signal ends it. lookup is the environment.
func serve(ctx context.Context, o *outputs, lookup func(string) (string, bool), signals <-chan os.Signal, opt serveOptions) error {
	lookup, warnings := settings.WithRedisSocket(cmp.Or(opt.redisSocket, settings.RedisSocket), lookup)
	cfg, more, err := settings.Read(lookup)
	if err != nil {
		return fmt.Errorf("settings:\n%w", err)
	}
	warnings = append(append(warnings, more...), opt.unknown(settings.Table())...)
	idle, err := opt.useConfig(cfg, lookup)
	if err != nil {
		return err
	}
	warnings = append(warnings, idle...)
	return (&server{cfg: cfg, output: o, serveOptions: opt}).start(ctx, warnings, signals)
}

// start builds the service and runs it. warnings are those of the settings.
func (s *server) start(ctx context.Context, warnings []string, signals <-chan os.Signal) (err error) {
	cfg := s.cfg
	l, err := loggers(cfg, s.output)
	if err != nil {
		return err
	}
	s.log, s.audit, s.announce, s.denials = l.main, l.audit, l.announce, l.denials
	for _, w := range warnings {
		s.log.Warn(w)
	}
	if err := s.checkStandIn(ctx); err != nil {
		return err
	}
	s.buffered = budget.New(cfg.MaxBuffered)
	var lowered string
	if s.caps, lowered = fitConnCaps(cfg, resources{openFiles(), cfg.MemoryLimit}); lowered != "" {
		s.logLoweredCaps(lowered)
	}
	if s.ports, err = listen(ctx, cfg, s.caps, s.buffered); err != nil {
		return err
	}
	defer s.ports.close()
	s.warnOpenDebug()
	if s.tracing, err = startTracing(ctx, cfg, s.log); err != nil {
		return err
	}
	defer s.endTracing(ctx) // where nothing was served; else it has ended before
	if err := s.build(); err != nil {
		return err
	}
	s.ports.announce(s.announce)
	return s.run(ctx, signals)
}

// build makes the pieces, from the store up to the ports.
func (s *server) build() error {
	var err error
	if s.store, err = buildStore(s.cfg, s.tracing, s.log); err != nil {
		return err
	}
	s.gc.watch(s.store.bytes, s.cfg.MemoryMaxBytes)
	s.counters = metrics.New(metrics.Config{NearRatio: s.cfg.NearLimitRatio, MaxSeries: s.cfg.StatsMaxSeries})
	s.counters.Source(metrics.GoRuntime)
	s.counters.Source(s.certStats)
	s.clientCertReads.Timeout = time.Second
	s.counters.Source(s.hangingStats)
	s.counters.Source(s.ports.stats)
	s.counters.Source(s.output.logStats)
	s.counters.Source(s.bufferedStats)
	for _, read := range s.store.stats {
		s.counters.Source(read)
	}
	if err := s.buildStatistics(); err != nil {
		return err
	}
	s.limiter = limiter.New(limiter.Config{
		Backend:      s.store,
		Recorder:     s.recorder(),
		KeyPrefix:    s.cfg.CacheKeyPrefix,
		EscapeKeys:   s.cfg.CacheKeyFormat == "v2",
		DivvyKeys:    s.cfg.Divvy.Keys == "upstream",
		Shadow:       s.cfg.ShadowMode,
		Quota:        s.cfg.QuotaMode,
		AllOrNothing: s.cfg.StopIncrementWhenOver,

		MaxDescriptors: s.cfg.MaxDescriptors,
	})
	if err := s.buildSource(); err != nil {
		return err
	}
	failed := s.failed()
	service := rls.New(rls.Config{
		Limiter:  s.limiter,
		Fallback: failed,
		OnCall:   s.called(),
		Span:     s.tracing.Decision(),
		Headers:  headerNames(s.cfg),
		Metadata: s.cfg.DynamicMetadata,

		MaxDecisions: s.cfg.MaxBuffered / 4,
		Remote:       len(s.store.pools) > 0,
	})
	grpcTLS, err := s.serverTLS("grpc", s.cfg.GRPCTLS, "h2")
	if err != nil {
		return fmt.Errorf("GRPC_SERVER_TLS_CERT: %w", err)
	}
	s.grpc = rls.NewServer(service, rls.ServerConfig{
		TLS:                   grpcTLS,
		MaxMessage:            s.cfg.GRPCMaxMessage,
		MaxStreams:            uint32(s.cfg.GRPCMaxStreams),
		KeepaliveTime:         s.cfg.GRPCKeepaliveTime,
		KeepaliveMin:          s.cfg.GRPCKeepaliveMin,
		MaxConnectionAge:      s.cfg.GRPCMaxConnectionAge,
		MaxConnectionAgeGrace: s.cfg.GRPCMaxConnectionAgeGrace,
		Reflection:            s.cfg.GRPCReflection,
		Budget:                s.buffered,
		Stats:                 s.tracing.GRPC(pb.RateLimitService_ShouldRateLimit_FullMethodName),
	})
	if err := s.httpTLS(); err != nil {
		return err
	}
	if err := s.buildDivvy(failed); err != nil {
		return err
	}
	s.health = health{
		startEmpty: s.cfg.ForceStartWithoutConfig,
		needDomain: s.cfg.HealthyWithAtLeastOne,
		onChange:   s.grpc.SetServing,
		note:       s.store.note,
	}
	s.health.storeless = s.storeless(nil)
	s.ready = readiness{silent: len(s.store.pools), storeless: s.health.storeless, say: s.announceReady}
	if len(s.store.pools) == 0 {
		s.health.stores = []storeHealth{{name: "memory"}}
	}
	for _, p := range s.store.pools {
		s.health.stores = append(s.health.stores, storeHealth{p.name, p.what, p.note, errStoreUnknown})
	}
	s.health.update(func(*health) {})
	s.http = s.httpServer(service)
	s.debug = s.debugServer()
	s.probes = s.boundedServer(s.handleProbes(http.NewServeMux()))
	return nil
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

// Limits on what HTTP callers may make us keep: connections that say nothing,
// headers without end, answers that nobody reads.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	headerBytes   = 64 << 10
)

func (s *server) httpServer(service *rls.Service) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("/json", s.tracing.HTTP("/json", service.JSON()))
	return s.boundedServer(s.handleProbes(mux))
}

// handleProbes has mux answer probes.
func (s *server) handleProbes(mux *http.ServeMux) *http.ServeMux {
	mux.Handle("/healthcheck", admin.Healthcheck(func() string { return s.health.reason(callers) }))
	mux.Handle("/livez", admin.Live())
	mux.Handle("/readyz", admin.Ready(func() []admin.Component { return s.health.components(callers) }))
	return mux
}

// boundedServer serves h within the limits above.
func (s *server) boundedServer(h http.Handler) *http.Server {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          httpLog(s.log),
	}
	connlimit.HTTP(srv)
	return srv
}

func (s *server) debugServer() *http.Server {
	debug := admin.Debug{
		Pprof:   s.cfg.DebugPprof,
		Ready:   func() []admin.Component { return s.health.components(operators) },
		Explain: explainHandler(s.limiter),
		Rules: func(w io.Writer) error {
			set := s.limiter.Rules()
			if err := s.health.noteRefused(w); set == nil || err != nil {
				return err
			}
			for _, r := range set.Rules() {
				if _, err := fmt.Fprintln(w, r); err != nil {
					return err
				}
			}
			return nil
		},
		RulesYAML: func(w io.Writer) error {
			set := s.limiter.Rules()
			if err := s.health.noteRefused(w); set == nil || err != nil {
				return err
			}
			return yamlrules.Write(w, set)
		},
		Stats: func(yield func(string, int64) bool) {
			for _, st := range s.counters.Stats() {
				if !yield(st.Name, st.Value) {
					return
				}
			}
		},
	}
	// A profile may take longer than the limits say: net/http/pprof adds its time.
	return s.boundedServer(admin.Hosts(s.cfg.DebugAllowedHosts, admin.Token(s.cfg.DebugToken, debug.Handler())))
}

// errNoRules ends the process when CONFIG_INITIAL_TIMEOUT passes.
var errNoRules = errors.New("CONFIG_INITIAL_TIMEOUT has passed and no good rules were loaded")

// run serves until a signal or a failure ends it, then stops in order.
func (s *server) run(ctx context.Context, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	stopped := make(chan struct{})
	for _, run := range s.store.runs {
		g.Go(func() error { return run(ctx) })
	}
	for i, p := range s.store.pools {
		g.Go(func() error { return s.watchPool(ctx, i, p) })
	}
	g.Go(func() error { return s.source.Run(ctx) })
	if s.ports.grpc != nil {
		g.Go(func() error { return s.grpc.Serve(s.ports.grpc) })
	}
	for _, c := range s.certs {
		g.Go(func() error { return c.Run(ctx) })
	}
	if s.ports.http != nil {
		g.Go(func() error { return serveHTTP(s.http, overTLS(s.ports.http, s.tls.http)) })
	}
	if s.ports.debug != nil {
		g.Go(func() error { return serveHTTP(s.debug, overTLS(s.ports.debug, s.tls.debug)) })
	}
	if s.ports.health != nil {
		g.Go(func() error { return serveHTTP(s.probes, s.ports.health) })
	}
	switch {
	case s.ports.divvy != nil:
		g.Go(func() error { return s.divvy.Serve(s.ports.divvy) })
	case s.late != nil:
		g.Go(func() error { return s.serveDivvyLate(ctx) })
	}
	if s.statistics.scrapes != nil {
		g.Go(func() error { return serveHTTP(s.statistics.scrapes, s.ports.prometheus) })
	}
	if s.statistics.run != nil {
		g.Go(func() error { return s.statistics.run(ctx) }) // ends last: what is left is sent then
	}
	g.Go(func() error {
		defer close(stopped)
		defer cancel()
		err := s.wait(ctx, signals)
		s.stop(signals)
		return err
	})
	done := make(chan error, 1)
	go func() { done <- g.Wait() }()
	select {
	case err := <-done:
		return err
	case <-stopped:
		s.output.deadline = time.Now().Add(lastWords)
	}
	select {
	case err := <-done:
		return err
	case <-time.After(leaveBehind): // rules of 50 MB are not worth waiting for
		s.audit.Warn("stopped in the middle of a load of the rules")
		return nil
	}
}

// leaveBehind is how long the last counters, which have a second, and a load of
// the rules may take when everything else has stopped.
const leaveBehind = 1500 * time.Millisecond

func serveHTTP(srv *http.Server, l net.Listener) error {
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// wait returns when it is time to stop.
func (s *server) wait(ctx context.Context, signals <-chan os.Signal) error {
	var deadline <-chan time.Time
	if d := s.cfg.ConfigInitialTimeout; d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		deadline = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-deadline:
			if s.limiter.Rules() == nil {
				return fmt.Errorf("%w: %s", errNoRules, s.health.reason(operators))
			}
		case err := <-s.refused:
			return err
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				s.source.Reload()
				continue
			}
			s.audit.Infof("got %v, stopping", sig)
			return nil
		}
	}
}

// stop takes the service down: unhealthy at once, the drain delay, then no new
// calls while running ones finish, and their last spans are sent. Another signal
// cuts all waiting short.
func (s *server) stop(signals <-chan os.Signal) {
	s.health.update(func(h *health) { h.stopping = true })
	patience, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for {
			select {
			case sig := <-signals:
				if sig != syscall.SIGHUP {
					s.audit.Warnf("got %v again, stopping at once", sig)
					cancel()
				}
			case <-patience.Done():
				return
			}
		}
	}()
	select {
	case <-time.After(s.cfg.ShutdownDrain):
	case <-patience.Done():
	}
	ctx, cancelTimeout := context.WithTimeout(patience, s.cfg.ShutdownTimeout)
	defer cancelTimeout()
	var g errgroup.Group
	g.Go(func() error { s.grpc.Shutdown(ctx); return nil })
	if s.divvy != nil {
		g.Go(func() error { s.divvy.Shutdown(ctx); return nil })
	}
	g.Go(func() error {
		if s.http.Shutdown(ctx) != nil {
			return s.http.Close()
		}
		return nil
	})
	err := errors.Join(g.Wait(), s.debug.Close(), s.probes.Close())
	if s.statistics.scrapes != nil {
		err = errors.Join(err, s.statistics.scrapes.Close())
	}
	if err != nil {
		s.audit.Warnf("stopping: %v", err)
	}
	s.endTracing(patience)
}

// loaded is told of each load of the rules, good or refused.
func (s *server) loaded(l load) {
	s.standIn.judge(&l)
	s.logWarnings(l.warnings)
	if l.err != nil {
		s.counters.ConfigRefused()
		s.logProblems(l)
		s.health.update(func(h *health) { h.refused, h.refusedAt = l.err, l.at })
		if s.refused != nil && s.limiter.Rules() == nil {
			select {
			case s.refused <- errors.New(firstProblem(l.err)):
			default: // it is ending already
			}
		}
		if l.set == nil {
			return
		}
	}
	s.logRules(l.set)
	s.standIn.use(l.set, s.log)
	s.counters.ConfigLoaded(metrics.ConfigInfo{Hash: l.hash, Version: l.version, Loaded: l.at, Partial: l.err != nil})
	s.counters.Use(l.set) // before the limiter, so that no decision finds it behind
	if f := s.store.fallback; f != nil {
		f.UseLocal(countsLocally(l.set))
	}
	before := s.limiter.Rules()
	s.limiter.Use(l.set)
	s.needDivvy(l.set)
	domains, storeless := len(l.set.Domains()), s.storeless(l.set)
	var recovered bool
	s.ready.update(func(r *readiness) { r.storeless = storeless })
	s.health.update(func(h *health) {
		h.storeless = storeless
		recovered = h.loaded && h.refused != nil && l.err == nil
		h.loaded, h.domains, h.version, h.refused = true, domains, l.version, l.err
	})
	facts := logrus.Fields{"domains": domains, "rules": len(l.set.Rules()), "hash": l.hash}
	maps.Copy(facts, l.facts)
	switch {
	case before == nil:
		if domains == 0 {
			s.audit.WithFields(facts).Warnf("there are no rules, so everything passes: %s", s.noRules)
		}
		s.ready.update(func(r *readiness) { r.facts = facts })
	case domains == 0:
		s.audit.WithFields(facts).Warnf("rules reloaded: there are none, so everything passes: %s", s.noRules)
	case l.err != nil:
		s.audit.WithFields(facts).Warn("rules reloaded in part: files and resources with problems stay as they were")
	case recovered:
		s.audit.WithFields(facts).Warn("rules reloaded, the problems are mended")
	default:
		s.audit.WithFields(facts).Info("rules reloaded")
	}
}

// announceReady prints the one line that says that requests are answered. facts are
// those of the first rules, late those of a port that was opened after the others.
func (s *server) announceReady(facts, late logrus.Fields) {
	s.announce.WithFields(facts).WithFields(s.ports.addresses()).WithFields(late).WithField("store", s.cfg.BackendType).Info("ready")
	out := s.output.out.Important()
	s.standIn.announce(out, s.ports.divvy)
	if s.try {
		suggest(out, isTerminal(s.output.std.out), s.limiter.Rules(), s.ports.http.Addr())
	}
}

// maxDescriptorsLogged bounds how many descriptors of one load are logged.
const maxDescriptorsLogged = 10_000

// logRules logs each domain and each descriptor, at debug level.
func (s *server) logRules(set *rules.Set) {
	if !s.log.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	limits := make(map[string]*rules.Rule)
	for _, r := range set.Rules() {
		limits[r.Key] = r
	}
	left := maxDescriptorsLogged
	for _, d := range set.Domains() {
		s.log.Debugf("loading domain: %s", d.Name)
		for _, key := range d.Descriptors() {
			if left--; left < 0 {
				s.log.Debugf("loading more than %d descriptors; /rlconfig on the debug port shows all", maxDescriptorsLogged)
				return
			}
			if r := limits[key]; r != nil {
				s.log.Debugf("loading descriptor: %v", r)
			} else {
				s.log.Debugf("loading descriptor: %s: no limit", key)
			}
		}
	}
}

func (s *server) logWarnings(warnings rules.Problems) {
	for i, w := range warnings {
		if i == maxLogged {
			s.log.Warnf("and %d more warnings; `ratelimit check` shows all", len(warnings)-i)
			return
		}
		s.log.Warn(w)
	}
}

// logProblems logs what is wrong with the rules, a line for each problem.
func (s *server) logProblems(l load) {
	state := "none are in force yet"
	if l.set != nil {
		state = "domains that they do not touch take effect"
	} else if s.limiter != nil && s.limiter.Rules() != nil {
		state = "the old ones stay in force"
	}
	s.audit.WithFields(l.facts).Errorf("rules refused, %s", state)
	var problems rules.Problems
	if !errors.As(l.err, &problems) {
		s.audit.Error(l.err)
		return
	}
	for i, p := range problems {
		if i == maxLogged {
			s.audit.Errorf("and %d more problems; `ratelimit check` shows all", len(problems)-i)
			return
		}
		s.audit.Error(p)
	}
}

// maxLogged bounds how many problems of one load are logged.
const maxLogged = 100

// called counts calls, and gRPC calls also under the names that
// envoyproxy/ratelimit has for them.
func (s *server) called() func(protocol, method string, took time.Duration) {
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

// failed counts requests that got no answer, and logs panics.
func (s *server) failed() func(error) {
	failures := s.counters.Counter("ratelimit.service.call.should_rate_limit.service_error")
	panics := s.counters.Counter("ratelimit.service.panics")
	trouble := new(seldom)
	return func(err error) {
		var p *rls.PanicError
		switch {
		case errors.As(err, &p):
			panics.Add(1)
			s.log.WithField("stack", string(p.Stack)).Error(err)
		case errors.Is(err, limiter.ErrStore): // counted as redis_error with the decision
			s.log.Debugf("request failed: %v", err)
			if n := trouble.add(time.Now()); n > 0 {
				s.log.Warnf("%d requests could not be decided since this was last said; the last one: %v", n, err)
			}
		default:
			failures.Add(1)
			s.log.Debugf("request failed: %v", err)
		}
	}
}

// seldom keeps what happens to every request in bad times from filling the log.
type seldom struct{ count, said atomic.Int64 }

// seldomEvery is how often it is said at most.
const seldomEvery = 10 * time.Second

// add counts one more. When it is time to speak of them, it returns how many
// there have been since the last time, else 0.
func (s *seldom) add(now time.Time) int64 {
	s.count.Add(1)
	said := s.said.Load()
	if now.UnixNano()-said < int64(seldomEvery) || !s.said.CompareAndSwap(said, now.UnixNano()) {
		return 0
	}
	return s.count.Swap(0)
}
