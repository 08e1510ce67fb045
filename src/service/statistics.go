package service

import (
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/metrics/divvystats"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/metrics/push"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/recording"
	"ratelimit/src/operator/unmatched"
	"ratelimit/src/settings"
)

// statistics has what the sinks show, besides the figures of the registry.
type statistics struct {
	// divvyCounts counts under divvy's names. It is nil unless SinkDivvy is chosen.
	divvyCounts *divvystats.Counts
	// latency has the times of decisions by protocol.
	latency struct{ grpc, json, divvy, resp metrics.Histogram }
	// sendTimings passes n equal durations to the sink. It does nothing if the sink takes none.
	sendTimings func(name string, n int, took time.Duration)
	// hitTimingName is the name of the times of HITs for sendTimings. Empty: they are not sent.
	hitTimingName string
}

func (s *Service) buildStatistics() error {
	s.addFigures()
	s.statistics.sendTimings = func(string, int, time.Duration) {}
	switch s.Settings.Sink {
	case settings.SinkNone:
		return nil
	case settings.SinkDivvy:
		return s.buildDivvySinks()
	case settings.SinkPrometheus:
		return s.buildPrometheus()
	default:
		return s.buildPush()
	}
}

// buildPush makes the sink that sends figures: statsd, DogStatsD or lines of JSON.
func (s *Service) buildPush() error {
	cfg := push.Config{ReadStats: s.counters.FlushStats, Tags: s.Settings.ExtraTags}
	if s.Settings.Sink == settings.SinkLog {
		cfg.Format, cfg.Writer = push.JSONLines, s.Output.stderr
	} else {
		cfg.Network = s.Settings.StatsdProtocol
		cfg.Addr = hostPort(s.Settings.StatsdHost, s.Settings.StatsdPort)
		cfg.OnState = s.logStatsdState("USE_STATSD=false")
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
func (s *Service) addSink(cfg push.Config) (*push.Sink, error) {
	cfg.Interval = s.Settings.StatsFlushInterval
	sink, err := push.New(cfg)
	if err != nil {
		return nil, err
	}
	s.statistics.sendTimings = sink.AddTimings
	s.runners = append(s.runners, sink.Run) // The sink sends the last figures when its context ends.
	return sink, nil
}

// logStatsdState returns the function that logs whether statsd can be reached. without is the setting that turns statsd off.
func (s *Service) logStatsdState(without string) func(error) {
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
		return err
	}
	s.statistics.sendTimings = exporter.ObserveTimings
	mux := http.NewServeMux()
	mux.Handle(s.Settings.PrometheusPath, exporter.Handler())
	s.serveHTTP(s.ports.prometheus, mux)
	return nil
}

func (s *Service) buildLimiter() error {
	recorders := []limiter.Recorder{s.counters}
	if s.statistics.divvyCounts != nil {
		recorders = append(recorders, s.statistics.divvyCounts)
	}
	if n := s.Settings.LogDenials; n > 0 {
		recorders = append(recorders, denials.New(denials.Config{MaxSamples: n, Interval: time.Second, OnSample: logDenial(s.log.deniedRequests)}))
	}
	if s.log.IsLevelEnabled(logrus.DebugLevel) {
		recorders = append(recorders, unmatched.New(unmatchedLinesPerSecond, logUnmatched(s.log.Logger)))
	}
	if s.ports.debug.Listener != nil {
		s.recorder = recording.New(rls.AppendJSONRequest)
		recorders = append(recorders, s.recorder)
	}
	recorders = append(recorders, s.observer.Recorders()...)
	var candidates limiter.CandidateRecorder // candidates is nil, and not a nil *candidate.Tracker, without candidate rules.
	if s.candidate != nil {
		candidates = s.candidate.differences
	}
	s.limiter = limiter.New(limiter.Config{
		Backend:            s.store.Backend,
		Recorders:          recorders,
		Candidates:         candidates,
		CandidateLoad:      float64(s.Settings.CandidateMaxLoad),
		HitTime:            hitTime(s.Settings.BackendType),
		SkipsFullCounters:  s.Settings.LocalCacheBytes > 0 && s.Settings.BackendType != "memory",
		KeyPrefix:          s.Settings.CacheKeyPrefix,
		EscapeKeys:         s.Settings.CacheKeyFormat == "v2",
		UseDivvyKeys:       s.Settings.Divvy.KeyFormat == "upstream",
		ShadowMode:         s.Settings.ShadowMode,
		QuotaMode:          s.Settings.QuotaMode,
		ChargeAllOrNothing: s.Settings.StopIncrementWhenOver,

		MaxDescriptors: s.Settings.MaxDescriptors,
	})
	return nil
}

// buildDivvySinks makes the sinks of `ratelimit divvy`: statsd, scrapes, both or none.
func (s *Service) buildDivvySinks() error {
	own := s.Settings.DivvyVariables
	counts := divvystats.New()
	s.statistics.divvyCounts = counts
	port := func() divvystats.PortFigures { // A sink calls port after divvy's server has been made.
		st := s.frontends.divvy.server.Stats()
		return divvystats.PortFigures{Connections: int(st.Open), Errors: st.ErrorReplies, Took: &s.statistics.latency.divvy}
	}
	if own.HTTP {
		pages := s.probes()
		scraped := func() []metrics.Figure { return counts.Figures("", port()) }
		pages[own.MetricsPath] = prometheus.FigureHandler(scraped, func(err error) { s.log.Warn(err) })
		s.serveHTTP(s.ports.prometheus, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		Addr:      hostPort(own.StatsdHost, own.StatsdPort),
		OnState:   s.logStatsdState("remove STATSD_HOST"),
	}
	if own.StatsdTCP != "" {
		cfg.Network = "tcp"
	}
	s.statistics.hitTimingName = own.StatsdPrefix + divvystats.HitTimer
	_, err := s.addSink(cfg)
	return err
}
