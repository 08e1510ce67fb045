package service

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/denials"
	"ratelimit/src/metrics/divvystats"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/metrics/push"
	"ratelimit/src/settings"
)

// statistics are the sinks of `ratelimit divvy`. The zero value has none.
type statistics struct {
	// divvy counts under divvy's names. Nil: SinkDivvy is not chosen.
	divvy *divvystats.Counts
	// hitTiming sends how long a HIT took to statsd. Nil: there is none.
	hitTiming func(time.Duration)
}

// buildStatistics makes the sink that the settings choose.
func (s *Service) buildStatistics() error {
	s.addFigures()
	switch s.Settings.Sink {
	case settings.SinkNone:
		return nil
	case settings.SinkDivvy:
		return s.divvySinks()
	case settings.SinkPrometheus:
		return s.buildPrometheus()
	default:
		return s.buildPush()
	}
}

// buildPush makes the sink that sends figures: statsd, DogStatsD or lines of JSON.
func (s *Service) buildPush() error {
	cfg := push.Config{
		Stats:    s.counters.Flush,
		Tags:     s.Settings.ExtraTags,
		Interval: s.Settings.StatsFlushInterval,
	}
	if s.Settings.Sink == settings.SinkLog {
		cfg.Format, cfg.Writer = push.JSONLines, s.Output.stderr
	} else {
		cfg.Network = s.Settings.StatsdProtocol
		cfg.Addr = hostPort(s.Settings.StatsdHost, s.Settings.StatsdPort)
		cfg.OnState = s.statsdState("USE_STATSD=false")
	}
	if s.Settings.Sink == settings.SinkDogStatsd {
		cfg.Format, cfg.Network = push.DogStatsD, "udp"
		for _, m := range s.Settings.Mogrifiers {
			cfg.Mogrifiers = append(cfg.Mogrifiers, push.Mogrifier(m))
		}
	}
	sink, err := push.New(cfg)
	if err != nil {
		return err
	}
	s.counters.Add(figures("statsd", "", func() any { return sink }))
	s.counters.OnTiming(sink.Timing)
	s.runs = append(s.runs, sink.Run) // it sends the last figures when its context ends
	return nil
}

// statsdState returns the function that logs whether statsd can be reached. without is the
// setting that turns statsd off.
func (s *Service) statsdState(without string) func(error) {
	return func(err error) {
		if err != nil {
			s.log.Warnf("counters are not sent for now (%s if there is no statsd): %v", without, err)
		} else {
			s.log.Info("counters are sent again")
		}
	}
}

func (s *Service) buildPrometheus() error {
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
		return fmt.Errorf("PROMETHEUS_MAPPER_YAML: %w", err)
	}
	s.counters.OnTiming(exporter.Timing)
	mux := http.NewServeMux()
	mux.Handle(s.Settings.PrometheusPath, exporter.Handler())
	s.serveHTTP(s.ports.prometheus, mux)
	return nil
}

// buildLimiter makes the limiter and the recorders of its decisions.
func (s *Service) buildLimiter() error {
	recorders := []limiter.Recorder{s.counters}
	if s.stats.divvy != nil {
		recorders = append(recorders, s.stats.divvy)
	}
	if n := s.Settings.LogDenials; n > 0 {
		recorders = append(recorders, denials.New(n, logDenial(s.log.denials)))
	}
	s.limiter = limiter.New(limiter.Config{
		Backend:      s.store.Backend,
		Recorders:    recorders,
		KeyPrefix:    s.Settings.CacheKeyPrefix,
		EscapeKeys:   s.Settings.CacheKeyFormat == "v2",
		DivvyKeys:    s.Settings.Divvy.Keys == "upstream",
		Shadow:       s.Settings.ShadowMode,
		Quota:        s.Settings.QuotaMode,
		AllOrNothing: s.Settings.StopIncrementWhenOver,

		MaxDescriptors: s.Settings.MaxDescriptors,
	})
	return nil
}

// divvySinks makes the sinks of `ratelimit divvy`: statsd, scrapes, both or none.
func (s *Service) divvySinks() error {
	own := s.Settings.StandIn
	counts := divvystats.New()
	s.stats.divvy = counts
	port := func() divvystats.Port { // called later: the server of the port is made after this
		st := s.front.divvy.server.Stats()
		return divvystats.Port{Connections: int(st.Open), Errors: st.Errors}
	}
	if own.HTTP {
		took := s.counters.Latency("divvy")
		pages := s.probes()
		scraped := func() []metrics.Figure { return counts.Figures("", port(), took) }
		pages[own.MetricsPath] = prometheus.Handler(scraped, func(err error) { s.log.Warn(err) })
		s.serveHTTP(s.ports.prometheus, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			page := pages["/"+strings.Trim(r.URL.Path, "/")] // with or without a slash at the end
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
		Stats:    func() []metrics.Stat { return metrics.Stats(counts.Figures(own.StatsdPrefix, port(), nil)) },
		Network:  "udp",
		Addr:     hostPort(own.StatsdHost, own.StatsdPort),
		Interval: s.Settings.StatsFlushInterval,
		OnState:  s.statsdState("remove STATSD_HOST"),
	}
	if own.StatsdTCP != "" {
		cfg.Network = "tcp"
	}
	out, err := push.New(cfg)
	if err != nil {
		return err
	}
	timer := own.StatsdPrefix + divvystats.Timer
	s.stats.hitTiming = func(took time.Duration) { out.Timing(timer, took) }
	s.runs = append(s.runs, out.Run)
	return nil
}
