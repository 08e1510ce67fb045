package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"ratelimit/src/candidate"
	"ratelimit/src/estimates"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
	"ratelimit/src/service/candidates"
	"ratelimit/src/service/health"
	"ratelimit/src/service/otlp"
	"ratelimit/src/service/store"
)

// Service is one rate limit service: the parts that New makes, in its order.
type Service struct {
	*foundation
	servers    *servers
	spans      *otlp.Traces
	store      *store.Store
	divvy      *divvyPort
	statistics *statistics
	observers  *observers
	limiter    *candidate.Judge
	candidates *candidates.Source
	editor     *operator.Editor
	limits     *operator.LimitEditor
	sources    *ruleSources
	divider    *quota.Divider
	grpc       *rls.Server
}

// New opens the ports that the settings ask for and builds all parts, each from those before it. Call Run next: it
// answers requests, and closes what New opened. The ports of callers refuse connections until rules are in force, so
// that no caller meets a service that cannot decide.
func New(cfg Config) (_ *Service, err error) {
	f, err := newFoundation(cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if err := f.requireOrderedList(); err != nil {
		return nil, err
	}
	ports, err := f.openPorts()
	if err != nil {
		return nil, err
	}
	spans, err := f.startTracing()
	if err != nil {
		return nil, err
	}
	store, err := f.openStore(spans)
	if err != nil {
		return nil, err
	}
	servers, divvy := newServers(f, ports), newDivvyPort(ports.Divvy, f.health)
	sinks, err := openSinks(f, servers, divvy)
	if err != nil {
		return nil, err
	}
	if err := f.startMetrics(); err != nil {
		return nil, err
	}
	observers := newObservers(f, store, ports.Debug.Listener != nil)
	differences := candidates.NewTracker(f.Settings)
	changed, err := newChangedLimits(f, store)
	if err != nil {
		return nil, err
	}
	notifier, err := newNotifier(f, store)
	if err != nil {
		return nil, err
	}
	learned := estimates.New()
	limiter := newLimiter(f, store, learned, differences,
		slices.Concat([]limiter.Recorder{f.counters, changed, notifier}, sinks.recorders, observers.recorders)...)
	candidates := newCandidates(f, differences, limiter, changed)
	editor := newEditor(f, store, limiter.Limiter)
	useRules := func(set *rules.Set) { // Each part must know the rules before those below it decide by them.
		f.warnUntold(notifier, set)
		set = changed.over(set)
		f.counters.UseRules(set)
		sinks.useRules(set)
		observers.UseRules(set)
		store.UseRules(set)
		learned.UseRules(set)
		candidates.UseLive(set)
		limiter.UseRules(set)
		divvy.openIfNeeded(set)
	}
	sources, err := newRuleSources(servers, candidates, limiter.Limiter, useRules)
	if err != nil {
		return nil, err
	}
	s := &Service{
		foundation: f, servers: servers, spans: spans, store: store, divvy: divvy, statistics: sinks, observers: observers,
		limiter: limiter, candidates: candidates, editor: editor, limits: changed.editor(editor),
		sources: sources,
	}
	if err := s.buildFrontends(); err != nil {
		return nil, err
	}
	f.run(f.Heap.Run)
	f.health.Report(health.Events{OnChange: s.grpc.SetServing, OnReady: s.announceReady})
	return s, nil
}

// Addr returns the address of an open port: http, grpc, debug, health, prometheus, divvy
// or resp. It returns nil if that port is not open.
func (s *Service) Addr(name string) net.Addr {
	for _, p := range s.servers.ports.Opened() {
		if p.Name == name {
			return p.Addr()
		}
	}
	return nil
}

// announceReady logs the one line that says that requests are answered. first are facts about the first rules.
func (s *Service) announceReady(first map[string]any, lateDivvy net.Addr) {
	line := s.log.AlwaysShown.WithFields(first).WithFields(s.servers.ports.Addresses()).WithField("store",
		s.Settings.BackendType)
	if lateDivvy != nil {
		line = line.WithField("divvy", lateDivvy.String())
	}
	line.Info("ready")
	if s.OnReady != nil {
		s.OnReady(Ready{
			Stdout: s.Output.Stdout(), Rules: s.limiter.Rules(), HTTPAddr: s.Addr("http"),
			DebugAddr: s.Addr("debug"), DivvyAddr: s.Addr("divvy"),
		})
	}
}

// errNoRulesInTime ends the process when CONFIG_INITIAL_TIMEOUT passes.
var errNoRulesInTime = errors.New("CONFIG_INITIAL_TIMEOUT has passed and no good rules were loaded")

// afterServersTimeout bounds how long Run waits after all servers have stopped. A sink has 1 s
// to send the last counters; a load of rules may still run.
const afterServersTimeout = 1500 * time.Millisecond

// Run answers requests until ctx ends, a signal arrives or a part fails. Then it stops all
// parts in order: the service is unhealthy for SHUTDOWN_DRAIN, running requests finish
// within SHUTDOWN_TIMEOUT, and what remains is closed. It returns the first failure.
func (s *Service) Run(ctx context.Context) error {
	defer s.close()
	for _, p := range s.servers.ports.Opened() {
		if !p.IsLate() {
			s.logListening(p.Name, p.Addr())
		}
	}
	if s.Settings.ForceStartWithoutConfig {
		if err := s.servers.admitCallers(); err != nil {
			return err
		}
	}
	defer time.AfterFunc(earlyRequestPatience, s.servers.releaseEarly).Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range s.runners {
		g.Go(func() error { return run(ctx) })
	}
	stopped := make(chan struct{})
	g.Go(func() error {
		defer close(stopped)
		defer cancel()
		err := s.awaitStop(ctx)
		s.stop()
		return err
	})
	done := make(chan error, 1)
	go func() { done <- g.Wait() }()
	select {
	case err := <-done:
		return err
	case <-stopped:
		s.Output.StartFlush()
	}
	select {
	case err := <-done:
		return err
	case <-time.After(afterServersTimeout): // A load of large rule files may still run.
		s.log.Important.Warn("stopped in the middle of a load of the rules")
		return nil
	}
}

// awaitStop returns when it is time to stop: with an error if the service cannot go on.
func (s *Service) awaitStop(ctx context.Context) error {
	var deadline <-chan time.Time
	if d := s.Settings.ConfigInitialTimeout; d > 0 {
		deadline = time.After(d)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-deadline:
			if !s.health.HasAllRules() {
				return fmt.Errorf("%w: %s", errNoRulesInTime, s.health.UnhealthyReason(health.Operators))
			}
		case err := <-s.sources.firstLoadFailed:
			return err
		case sig := <-s.Signals:
			if sig == syscall.SIGHUP {
				s.sources.reload()
				s.candidates.Reload()
				continue
			}
			s.log.AlwaysShown.WithField("signal", sig.String()).Info("stopping")
			return nil
		}
	}
}

// stop makes the service unhealthy at once, waits for the drain delay, refuses new calls
// while running ones finish, writes the last snapshot, and sends spans and metrics. Another signal ends all waiting.
func (s *Service) stop() {
	s.health.Stop()
	s.servers.releaseEarly()
	patient, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for {
			select {
			case sig := <-s.Signals:
				if sig != syscall.SIGHUP {
					s.log.Important.Warnf("got %v again, stopping at once", sig)
					cancel()
				}
			case <-patient.Done():
				return
			}
		}
	}()
	select {
	case <-time.After(s.Settings.ShutdownDrain):
	case <-patient.Done():
	}
	ctx, cancelTimeout := context.WithTimeout(patient, s.Settings.ShutdownTimeout)
	defer cancelTimeout()
	if err := s.servers.stop(ctx); err != nil {
		s.log.Important.Warnf("stopping: %v", err)
	}
	s.store.Finish(patient)
	s.endTelemetry(patient)
}
