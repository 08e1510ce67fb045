package service

import (
	"context"
	"slices"

	"ratelimit/src/metrics"
)

// foundation is what all parts of a Service stand on. New makes it first.
type foundation struct {
	Config
	log      *logs
	counters *metrics.Registry
	health   *health
	// runners are started by Run, each in a goroutine. Servers return after servers.stop, all others when the context
	// ends.
	runners            []func(context.Context) error
	telemetryShutdowns []func(context.Context) error // send the last spans and metrics
	closers            []func() error                // give back what New opened, the newest first
}

// newFoundation opens the log, and warns of settings without effect.
func newFoundation(cfg Config) (*foundation, error) {
	log, err := newLogs(cfg.Settings, cfg.Output)
	if err != nil {
		return nil, err
	}
	for _, w := range cfg.SettingsWarnings {
		log.Warn(w)
	}
	f := &foundation{Config: cfg, log: log, health: newHealth(cfg.Settings)}
	f.counters = metrics.New(metrics.Config{
		NearRatio: cfg.Settings.NearLimitRatio, MaxSeries: cfg.Settings.StatsMaxSeries,
		SanitizeDots: cfg.Settings.SanitizeDots,
	})
	f.showProcess()
	return f, nil
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
