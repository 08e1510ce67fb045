package service

import (
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/divvystats"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/metrics/push"
	"ratelimit/src/rules"
	"ratelimit/src/service/ports"
	"ratelimit/src/settings"
)

// statistics has what the sinks show, besides the figures of the registry.
type statistics struct {
	*foundation
	servers *servers
	divvy   *divvyPort
	// recorders and useRules are those of sinks that count for themselves.
	recorders []limiter.Recorder
	useRules  func(*rules.Set)
	hitTimes  metrics.Histogram // of divvy's HITs.
	// sendTimings passes n equal durations to the sink. It does nothing if the sink takes none.
	sendTimings func(name string, n int, took time.Duration)
	// hitTimingName is the name of the times of HITs for sendTimings. Empty: they are not sent.
	hitTimingName string
}

// openSinks makes the sinks that the settings choose. Scrapes are answered by servers, and divvy's names have figures
// of divvy.
func openSinks(f *foundation, servers *servers, divvy *divvyPort) (*statistics, error) {
	s := &statistics{foundation: f, servers: servers, divvy: divvy}
	s.useRules, s.sendTimings = func(*rules.Set) {}, func(string, int, time.Duration) {}
	switch f.Settings.Sink {
	case settings.SinkNone:
		return s, nil
	case settings.SinkDivvy:
		return s, s.buildDivvySinks()
	case settings.SinkPrometheus:
		return s, s.buildPrometheus()
	default:
		return s, s.buildPush()
	}
}

// buildPush makes the sink that sends figures: statsd, DogStatsD or lines of JSON.
func (s *statistics) buildPush() error {
	cfg := push.Config{ReadStats: s.counters.FlushStats, Tags: s.Settings.ExtraTags}
	if s.Settings.Sink == settings.SinkLog {
		cfg.Format, cfg.Writer = push.JSONLines, io.Discard // Even then, flushes remove the series that are no longer used.
		if level := s.Settings.LogLevel; level == "debug" || level == "trace" {
			cfg.Writer = s.Output.Stderr
		}
	} else {
		cfg.Network = s.Settings.StatsdProtocol
		cfg.Addr = ports.HostPort(s.Settings.StatsdHost, s.Settings.StatsdPort)
		cfg.OnState = s.logStatsdState("USE_STATSD=false", s.Settings.StatsdByDefault)
	}
	if s.Settings.Sink == settings.SinkDogStatsd {
		cfg.Format, cfg.Network = push.DogStatsD, "udp"
		for _, m := range s.Settings.Mogrifiers {
			cfg.Mogrifiers = append(cfg.Mogrifiers, push.Mogrifier(m))
		}
	}
	sink, err := s.addSink(cfg)
	if err == nil {
		s.counters.ShowFigures("statsd", "", sink)
	}
	return err
}

// addSink makes a sink that sends figures until the service stops.
func (s *statistics) addSink(cfg push.Config) (*push.Sink, error) {
	cfg.Interval = s.Settings.StatsFlushInterval
	sink, err := push.New(cfg)
	if err != nil {
		return nil, err
	}
	s.sendTimings = sink.AddTimings
	s.run(sink.Run) // The sink sends the last figures when its context ends.
	return sink, nil
}

// logStatsdState returns the function that logs whether statsd can be reached. without is the setting that turns statsd
// off. If no setting asks for statsd, it is no warning that there is none, until it was there once.
func (s *statistics) logStatsdState(without string, isByDefault bool) func(error) {
	level := logrus.WarnLevel
	if isByDefault {
		level = logrus.InfoLevel
	}
	return func(err error) {
		if err != nil {
			s.log.Logf(level, "counters are not sent for now (%s if there is no statsd): %v", without, err)
		} else {
			level = logrus.WarnLevel
			s.log.Info("counters are sent to statsd")
		}
	}
}

func (s *statistics) buildPrometheus() error {
	exporter, err := prometheus.New(prometheus.Config{
		Registry:                   s.counters,
		MappingFile:                s.Settings.PrometheusMapper,
		ResponseTimeAsMilliseconds: s.Settings.PrometheusMillisecond,
		Tags:                       s.Settings.ExtraTags,
		Version:                    s.Version,
		Commit:                     s.Commit,
		OnWarn:                     func(err error) { s.log.Warn(err) },
	})
	if err != nil {
		return err
	}
	s.sendTimings = exporter.ObserveTimings
	mux := http.NewServeMux()
	mux.Handle(s.Settings.PrometheusPath, exporter.Handler())
	s.servers.serveHTTP(s.servers.ports.Prometheus, mux)
	return nil
}

// buildDivvySinks makes the sinks of `ratelimit divvy`: statsd, scrapes, both or none.
func (s *statistics) buildDivvySinks() error {
	own := s.Settings.DivvyVariables
	counts := divvystats.New()
	s.recorders, s.useRules = []limiter.Recorder{counts}, counts.UseRules
	port := func() divvystats.PortFigures { // A sink calls port after divvy's server has been made.
		st := s.divvy.server.Stats()
		return divvystats.PortFigures{Connections: int(st.Open), Errors: st.ErrorReplies, Took: &s.hitTimes}
	}
	if own.HTTP {
		pages := s.health.Probes()
		scraped := func() []metrics.Figure { return counts.Figures("", port()) }
		pages[own.MetricsPath] = prometheus.FigureHandler(scraped, func(err error) { s.log.Warn(err) })
		s.servers.serveHTTP(s.servers.ports.Prometheus, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			page := pages["/"+strings.Trim(r.URL.Path, "/")] // The path of a page may end with a slash.
			if page == nil {
				page = http.NotFoundHandler()
			}
			page.ServeHTTP(w, r)
		}))
	}
	if !own.Statsd {
		return nil
	}
	cfg := push.Config{
		ReadStats: func() []metrics.Stat { return metrics.Stats(counts.Figures(own.StatsdPrefix, port())) },
		Network:   "udp",
		Addr:      ports.HostPort(own.StatsdHost, own.StatsdPort),
		OnState:   s.logStatsdState("remove STATSD_HOST", false),
	}
	if own.StatsdTCP != "" {
		cfg.Network = "tcp"
	}
	s.hitTimingName = own.StatsdPrefix + divvystats.HitTimer
	_, err := s.addSink(cfg)
	return err
}
