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

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Service is one rate limit service.
type Service struct {
	*foundation
	servers   *servers
	store     *store
	sources   *ruleSources
	candidate *candidateSource
	rules     func() *rules.Set // the rules in force; nil before the first
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
	store, err := openStore(f, spans)
	if err != nil {
		return nil, err
	}
	servers, divvy := newServers(f, ports), newDivvyPort(ports.Divvy, f.health)
	sinks, err := openSinks(f, servers, divvy)
	if err != nil {
		return nil, err
	}
	if err := f.startOTLP(); err != nil {
		return nil, err
	}
	observers := newObservers(f, ports.Debug.Listener != nil)
	candidate := newCandidate(f)
	limiter := newLimiter(f, store, candidate,
		slices.Concat([]limiter.Recorder{f.counters}, sinks.recorders, observers.recorders)...)
	candidate.useJudge(limiter)
	editor := newEditor(f, store, limiter.Limiter)
	inForce := slices.Concat([]func(*rules.Set){f.counters.UseRules}, sinks.ruleUsers,
		[]func(*rules.Set){
			observers.UseRules, store.prepareLocalFallback, candidate.useLive, limiter.UseRules,
			divvy.openIfNeeded,
		})
	sources, err := newRuleSources(servers, store, candidate, limiter.Limiter, inForce...)
	if err != nil {
		return nil, err
	}
	fronts := &frontends{
		foundation: f, servers: servers, spans: spans, store: store, statistics: sinks, observers: observers,
		limiter:   limiter,
		candidate: candidate, editor: editor, sources: sources, divvy: divvy,
	}
	if err := fronts.build(); err != nil {
		return nil, err
	}
	f.run(f.Heap.Run)
	s := &Service{
		foundation: f, servers: servers, store: store, sources: sources, candidate: candidate,
		rules: limiter.Rules,
	}
	f.health.report(fronts.grpc.SetServing, s.announceReady)
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
			s.log.logListening(p.Name, p.Addr())
		}
	}
	if s.Settings.ForceStartWithoutConfig {
		if err := s.servers.admitCallers(); err != nil {
			return err
		}
	}
	defer time.AfterFunc(earlyRequestPatience, s.servers.early.release).Stop()
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
		s.Output.flushDeadline = time.Now().Add(logFlushTimeout)
	}
	select {
	case err := <-done:
		return err
	case <-time.After(afterServersTimeout): // A load of large rule files may still run.
		s.log.important.Warn("stopped in the middle of a load of the rules")
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
			if !s.health.hasAllRules() {
				return fmt.Errorf("%w: %s", errNoRulesInTime, s.health.unhealthyReason(operators))
			}
		case err := <-s.sources.firstLoadFailed:
			return err
		case sig := <-s.Signals:
			if sig == syscall.SIGHUP {
				s.sources.Reload()
				s.candidate.reload()
				continue
			}
			s.log.important.Infof("got %v, stopping", sig)
			return nil
		}
	}
}

// stop makes the service unhealthy at once, waits for the drain delay, refuses new calls
// while running ones finish, writes the last snapshot, and sends spans and metrics. Another signal ends all waiting.
func (s *Service) stop() {
	s.health.update(func(h *health) { h.isStopping = true })
	s.servers.early.release()
	patient, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for {
			select {
			case sig := <-s.Signals:
				if sig != syscall.SIGHUP {
					s.log.important.Warnf("got %v again, stopping at once", sig)
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
		s.log.important.Warnf("stopping: %v", err)
	}
	s.store.writeLast(patient)
	s.endTelemetry(patient)
}
