package service

import (
	"context"
	"runtime"
	"slices"
	"time"

	"ratelimit/src/frontend/access"
	"ratelimit/src/metrics"
	"ratelimit/src/operator/output"
	"ratelimit/src/operator/throttle"
	"ratelimit/src/service/health"
	"ratelimit/src/service/logging"
	"ratelimit/src/service/otlp"
	"ratelimit/src/service/store"
)

// foundation is what all parts of a Service stand on. New makes it first.
type foundation struct {
	Config
	log      *logging.Loggers
	counters *metrics.Registry
	health   *health.State
	warnings *health.Warnings
	// debugTokens and respPasswords are what clients of those ports must send; nil for nothing.
	debugTokens, respPasswords access.Secrets
	// runners are started by Run, each in a goroutine. Servers return after servers.stop, all others when the context
	// ends.
	runners            []func(context.Context) error
	telemetryShutdowns []func(context.Context) error // send the last spans and metrics
	closers            []func() error                // give back what New opened, the newest first
}

// newFoundation opens the log, and warns of settings without effect.
func newFoundation(cfg Config) (*foundation, error) {
	log, err := logging.NewLoggers(cfg.Settings.LogLevel, cfg.Settings.LogFormat, cfg.Output)
	if err != nil {
		return nil, err
	}
	for _, w := range cfg.SettingsWarnings {
		log.Warn(w)
	}
	f := &foundation{Config: cfg, log: log, health: health.New(health.Config{
		HealthyBeforeRules: cfg.Settings.ForceStartWithoutConfig, NeedsDomain: cfg.Settings.HealthyWithAtLeastOne,
	})}
	f.counters = metrics.New(metrics.Config{
		NearRatio: cfg.Settings.NearLimitRatio, MaxSeries: cfg.Settings.StatsMaxSeries,
		SanitizeDots: cfg.Settings.SanitizeDots,
	})
	f.warnings = health.NewWarnings(log, cfg.Output.Stats)
	f.health.AddRemarks(f.warnings.Components)
	f.run(f.warnings.Run)
	f.showProcess()
	if err := f.openSecrets(); err != nil {
		return nil, err
	}
	return f, nil
}

// openStore makes the store.
func (f *foundation) openStore(spans *otlp.Traces) (*store.Store, error) {
	s, err := store.Open(store.Config{
		Settings: f.Settings, Log: f.log, Figures: f.counters, Heap: f.Heap, Spans: spans.StoreCall,
		OnPing: f.health.Refresh,
	})
	if err != nil {
		return nil, err
	}
	f.onClose(s.Close)
	f.run(s.Runners...)
	f.health.WatchStore(s.State)
	return s, nil
}

// run has Run start what must run as long as the service.
func (f *foundation) run(list ...func(context.Context) error) { f.runners = append(f.runners, list...) }

// onClose has close call what gives back something that New opened.
func (f *foundation) onClose(end func() error) { f.closers = append(f.closers, end) }

// close gives back what New opened. Errors are logged.
func (f *foundation) close() {
	f.endTelemetry(context.Background())
	for _, end := range slices.Backward(f.closers) {
		if err := end(); err != nil {
			f.log.Warnf("stopping: %v", err)
		}
	}
}

// logInterval has at most one line about something that may concern every request.
const logInterval = 10 * time.Second

// warnSometimes returns a function that logs a warning at most once in an interval. The first argument of format is the
// number of calls since the last warning, as of things named what; the others are those of the call.
func (f *foundation) warnSometimes(interval time.Duration, what, format string) func(args ...any) {
	t := throttle.New(1, interval)
	return func(args ...any) {
		if skipped, ok := t.Pass(time.Now()); ok {
			f.log.Warnf(format, append([]any{output.Plural(skipped+1, what)}, args...)...)
		}
	}
}

type runtimeFigures struct {
	runtime.MemStats
	Goroutines, CPUPercent int
}

func readRuntime() (p runtimeFigures) {
	runtime.ReadMemStats(&p.MemStats)
	p.Goroutines, p.CPUPercent = runtime.NumGoroutine(), int(p.GCCPUFraction*100)
	return p
}

// showProcess shows the figures of the process and the log.
func (f *foundation) showProcess() {
	f.counters.ShowFigures("runtime", "", readRuntime)
	f.counters.ShowFigures("log", "", f.Output.Stats)
	f.counters.ShowFigures("health", "", f.health.Figures)
	f.counters.ShowFigures("config in force", "", f.health.RulesInForce)
}
