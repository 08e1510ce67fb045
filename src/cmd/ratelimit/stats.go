package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"ratelimit/src/metrics"
	"ratelimit/src/metrics/jsonlines"
	"ratelimit/src/metrics/prometheus"
	"ratelimit/src/metrics/statsd"
	"ratelimit/src/settings"
)

// statistics are on their way out of the process: to one sink, or to none.
type statistics struct {
	// run sends until its context ends, and then what is left; nil: nothing is
	// sent.
	run func(context.Context) error
	// scrapes answers Prometheus; nil with any other sink.
	scrapes *http.Server
}

// sink is what pushes figures: statsd, DogStatsD or lines of JSON.
type sink interface {
	Run(context.Context) error
	Timing(name string, d time.Duration)
}

// buildStatistics makes the sink that the settings choose.
func (s *server) buildStatistics() error {
	if s.standIn != nil {
		return s.buildDivvyStatistics()
	}
	var pushed sink
	var err error
	switch s.cfg.Sink {
	case settings.SinkNone:
		return nil
	case settings.SinkPrometheus:
		return s.buildPrometheus()
	case settings.SinkStatsd, settings.SinkDogStatsd:
		pushed, err = s.statsd()
	case settings.SinkLog:
		pushed, err = s.jsonLines()
	}
	if err != nil {
		return err
	}
	s.counters.OnTiming(pushed.Timing)
	s.statistics.run = pushed.Run
	return nil
}

func (s *server) jsonLines() (*jsonlines.Sink, error) {
	out, err := jsonlines.New(jsonlines.Config{
		Stats:    s.counters.Flush,
		Writer:   s.output.std.err,
		Tags:     s.cfg.ExtraTags,
		Interval: s.cfg.StatsFlushInterval,
	})
	if err != nil {
		return nil, err
	}
	s.counters.Source(droppedStat(out.Dropped))
	return out, nil
}

// droppedStat is how many lines a sink dropped.
func droppedStat(read func() uint64) func(func(metrics.Stat)) {
	return func(add func(metrics.Stat)) {
		add(metrics.Stat{Name: "ratelimit.stats.dropped", Kind: metrics.KindCounter, Value: int64(read())})
	}
}

func (s *server) statsd() (*statsd.Sink, error) {
	cfg := statsd.Config{
		Stats:    s.counters.Flush,
		Network:  s.cfg.StatsdProtocol,
		Addr:     net.JoinHostPort(s.cfg.StatsdHost, strconv.Itoa(s.cfg.StatsdPort)),
		Tags:     s.cfg.ExtraTags,
		Interval: s.cfg.StatsFlushInterval,
		OnState:  s.statsdState("USE_STATSD=false"),
	}
	if s.cfg.Sink == settings.SinkDogStatsd {
		cfg.Dialect, cfg.Network = statsd.DogStatsD, "udp"
		for _, m := range s.cfg.Mogrifiers {
			parsed, err := statsd.ParseMogrifier(m.ID, m.Pattern, m.Name, m.Tags)
			if err != nil {
				return nil, fmt.Errorf("DOG_STATSD_MOGRIFIER_%s: %w", m.ID, err)
			}
			cfg.Mogrifiers = append(cfg.Mogrifiers, parsed)
		}
	}
	out, err := statsd.New(cfg)
	if err != nil {
		return nil, err
	}
	s.counters.Source(droppedStat(func() uint64 { return out.Stats().Dropped }))
	return out, nil
}

// statsdState logs whether statsd can be reached. without is how to do without it.
func (s *server) statsdState(without string) func(error) {
	return func(err error) {
		if err != nil {
			s.log.Warnf("counters are not sent for now (%s if there is no statsd): %v", without, err)
		} else {
			s.log.Info("counters are sent again")
		}
	}
}

func (s *server) buildPrometheus() error {
	exporter, err := prometheus.New(prometheus.Config{
		Registry:                   s.counters,
		MappingFile:                s.cfg.PrometheusMapper,
		ResponseTimeAsMilliseconds: s.cfg.PrometheusMillisecond,
		Tags:                       s.cfg.ExtraTags,
		Version:                    version,
		Commit:                     revision(),
		OnWarn:                     func(err error) { s.log.Warn(err) },
		Sources:                    append(s.store.samples, s.certSamples, s.clientCertSamples, s.xdsSamples, s.bufferedSamples, s.health.samples, s.hangingSamples, s.output.logSamples),
	})
	if err != nil {
		return fmt.Errorf("PROMETHEUS_MAPPER_YAML: %w", err)
	}
	s.counters.OnTiming(exporter.Timing)
	mux := http.NewServeMux()
	mux.Handle(s.cfg.PrometheusPath, exporter.Handler())
	s.statistics.scrapes = s.boundedServer(mux)
	return nil
}
