package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/operator"
	"ratelimit/src/operator/recording"
	"ratelimit/src/quota"
	"ratelimit/src/service/otlpmetrics"
	"ratelimit/src/service/tracing"
)

// Service is one rate limit service.
type Service struct {
	Config
	log        *logs
	ports      *ports
	tracing    *tracing.Provider   // tracing is nil if it is off.
	otlp       *otlpmetrics.Sender // otlp is nil unless metrics are sent over OTLP.
	store      store
	counters   *metrics.Registry
	limiter    *limiter.Limiter
	rules      ruleSources
	frontends  frontends
	early      earlyRequests
	health     health
	statistics statistics
	divider    *quota.Divider // divider is nil if no quotas are served.
	observer   *operator.Observer
	editor     *operator.Editor
	candidate  *candidateSource    // candidate is nil unless RUNTIME_CANDIDATE_SUBDIRECTORY is set.
	recorder   *recording.Recorder // recorder is nil without a debug port.
	// runners are started by Run, each in a goroutine. Servers return after frontends.stop, all others when the context ends.
	runners []func(context.Context) error
}

// New opens the ports that the settings ask for and builds all parts. Call Run next: it answers requests, and closes what New opened.
// The ports of callers refuse connections until rules are in force, so that no caller meets a service that cannot decide.
func New(cfg Config) (_ *Service, err error) {
	s := &Service{Config: cfg, early: newEarlyRequests()}
	s.rules.firstLoadFailed = make(chan error, 1)
	if s.log, err = newLogs(cfg.Settings, cfg.Output); err != nil {
		return nil, err
	}
	for _, w := range cfg.SettingsWarnings {
		s.log.Warn(w)
	}
	if err := s.requireOrderedList(); err != nil {
		return nil, err
	}
	s.ports = newPorts(cfg.Settings)
	if lowered := s.ports.lowerConnCaps(cfg.Settings, processLimits{openFiles(), cfg.Settings.MemoryLimit}); lowered != "" {
		s.ports.logLoweredCaps(s.log.Logger, cfg.Settings.MaxConnsSet, lowered)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.Heap.AwaitRules()
	if err := s.ports.open(func(err error) { s.log.alwaysShown.Error(err) }); err != nil {
		return nil, err
	}
	s.warnOpenDebug()
	if s.tracing, err = s.startTracing(); err != nil {
		return nil, err
	}
	s.counters = metrics.New(metrics.Config{NearRatio: cfg.Settings.NearLimitRatio, MaxSeries: cfg.Settings.StatsMaxSeries, SanitizeDots: cfg.Settings.SanitizeDots})
	for _, build := range []func() error{s.buildStore, s.buildStatistics, s.buildOTLP, s.buildObserver, s.buildCandidate, s.buildLimiter, s.buildEditor, s.buildSources, s.buildFrontends} {
		if err := build(); err != nil {
			return nil, err
		}
	}
	s.Heap.Watch(s.store.counterBytes, cfg.Settings.MemoryMaxBytes)
	s.runners = append(s.runners, s.Heap.Run)
	s.buildHealth()
	return s, nil
}

// Addr returns the address of an open port: http, grpc, debug, health, prometheus, divvy
// or resp. It returns nil if that port is not open.
func (s *Service) Addr(name string) net.Addr {
	for _, p := range s.ports.opened() {
		if p.name == name {
			return p.Addr()
		}
	}
	return nil
}

func (s *Service) close() {
	s.ports.close()
	s.endTelemetry(context.Background())
	if f := s.store.snapshot; f != nil {
		if err := f.Close(); err != nil {
			s.log.Warnf("stopping: %v", err)
		}
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
	for _, p := range s.ports.opened() {
		if p.late == nil {
			s.log.logListening(p.name, p.Addr())
		}
	}
	if s.Settings.ForceStartWithoutConfig {
		if err := s.admitCallers(); err != nil {
			return err
		}
	}
	defer time.AfterFunc(earlyRequestPatience, s.early.release).Stop()
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
		case err := <-s.rules.firstLoadFailed:
			return err
		case sig := <-s.Signals:
			if sig == syscall.SIGHUP {
				s.rules.Reload()
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
	s.early.release()
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
	if err := s.frontends.stop(ctx); err != nil {
		s.log.important.Warnf("stopping: %v", err)
	}
	s.writeLastSnapshot(patient)
	s.endTelemetry(patient)
}
