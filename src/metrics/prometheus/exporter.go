// Package prometheus answers scrapes of Prometheus. It shows figures under their native names,
// and under the names that a mapping of statsd_exporter gives to their compatible names.
package prometheus

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"ratelimit/src/metrics"
)

// Config is the configuration of an Exporter.
type Config struct {
	Registry *metrics.Registry // has the figures. Required.
	// MappingFile is the path of a statsd_exporter mapping. If it is empty or the file does
	// not exist, the built-in mapping is used.
	MappingFile string
	// ResponseTimeAsMilliseconds makes the built-in mapping show response times in
	// milliseconds, although their names end in seconds.
	ResponseTimeAsMilliseconds bool
	// Tags become labels of all metrics. If a metric has a label of the same name, its own value is shown.
	Tags            map[string]string
	Version, Commit string // of this program, as labels of ratelimit_build_info.
	// OnWarn, if set, gets problems that do not stop the exporter, such as a mapping file
	// that cannot be used or a scrape that could not show all figures.
	OnWarn func(error)
}

// Exporter answers scrapes with the figures of a Registry.
type Exporter struct {
	cfg           Config
	tags          prometheus.Labels
	gatherer      prometheus.Gatherer
	scrapeHandler http.Handler
	mappedTimings mappedTimings
	scrapeMu      sync.Mutex // guards mappedNumbers.
	mappedNumbers mappedNumbers
}

// New returns an Exporter.
func New(cfg Config) (*Exporter, error) {
	if cfg.Registry == nil {
		return nil, errors.New("prometheus: Registry is nil: set Config.Registry")
	}
	if cfg.OnWarn == nil {
		cfg.OnWarn = func(error) {}
	}
	m, err := loadMapping(cfg.MappingFile, cfg.ResponseTimeAsMilliseconds, cfg.OnWarn)
	if err != nil {
		return nil, err
	}
	e := &Exporter{cfg: cfg, tags: make(prometheus.Labels)}
	for key, value := range cfg.Tags {
		name := labelName(key)
		if name == "" || name == "le" || name == "quantile" {
			return nil, fmt.Errorf("prometheus: tag %q cannot be a label: Prometheus uses it itself; choose another name", key)
		}
		e.tags[name] = value
	}
	mapping := &taggedMapping{MetricMapper: m, tags: e.tags}
	e.mappedNumbers = mappedNumbers{mapping: mapping, seriesByKey: make(map[string]*mappedSeries)}
	e.mappedTimings = mappedTimings{mapping: mapping, metricsByKey: make(map[string]*observedMetric)}

	registry := prometheus.NewRegistry()
	process := prometheus.WrapRegistererWith(e.runtimeLabels(), registry)
	err = errors.Join(
		process.Register(collectors.NewGoCollector()),
		process.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	e.gatherer = prometheus.Gatherers{registry, prometheus.GathererFunc(e.gatherMetrics)}
	e.scrapeHandler = promhttp.InstrumentMetricHandler(process, scrapeHandler(e.gatherer, cfg.OnWarn))
	cfg.Registry.ShowBuild(cfg.Version, cfg.Commit)
	cfg.Registry.ShowFigures("exporter", "", &e.mappedTimings)
	return e, nil
}

// maxConcurrentScrapes bounds concurrent scrapes. Further ones are answered with status 503.
const maxConcurrentScrapes = 4

// scrapeHandler answers scrapes with the metrics of g.
func scrapeHandler(g prometheus.Gatherer, onWarn func(error)) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            warningLogger(onWarn),
		MaxRequestsInFlight: maxConcurrentScrapes,
	})
}

// FigureHandler returns a handler that answers scrapes with the native metrics of read only. onWarn
// gets the error of a scrape that could not show all of them.
func FigureHandler(read func() []metrics.Figure, onWarn func(error)) http.Handler {
	gather := func() ([]*dto.MetricFamily, error) {
		s := newScrapeResult(nil)
		s.addNative(read())
		return s.metricFamilies(), nil
	}
	return scrapeHandler(prometheus.Gatherers{prometheus.GathererFunc(gather)}, onWarn)
}

// runtimeLabels returns the tags without those that Go's and the process's metrics use as labels.
func (e *Exporter) runtimeLabels() prometheus.Labels {
	labels := maps.Clone(e.tags)
	for _, own := range []string{"version", "quantile", "le", "code", "cause"} {
		delete(labels, own)
	}
	return labels
}

// warningLogger passes the log of promhttp to a function.
type warningLogger func(error)

// Println calls w, except if a write to the scraper failed: a client that closes connections must not fill the log.
func (w warningLogger) Println(v ...any) {
	for _, part := range v {
		err, _ := part.(error)
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "write" {
			return
		}
	}
	w(fmt.Errorf("prometheus: %s", strings.TrimSuffix(fmt.Sprintln(v...), "\n")))
}

// Handler returns the handler of scrapes. It ignores the path.
func (e *Exporter) Handler() http.Handler { return e.scrapeHandler }

// ObserveTimings adds n times d, cut to whole milliseconds, to the histogram or summary to which the mapping
// maps name. It is safe for concurrent use.
func (e *Exporter) ObserveTimings(name string, n int, d time.Duration) {
	t, ok := e.mappedTimings.findTarget(name)
	if !ok {
		e.mappedTimings.DroppedTimings.Add(uint64(n))
	}
	if t.observer == nil {
		return
	}
	value := float64(d.Milliseconds()) * t.valueScale
	for range n {
		t.observer.Observe(value)
	}
}

const (
	skippedName = "ratelimit_mapping_skipped"
	skippedHelp = "Figures that cannot be shown, because another metric has the name or a label is not allowed."
)

// gatherMetrics returns the metrics of one scrape. Native metrics come first: if a mapping
// gives the same name to other figures, these are skipped.
func (e *Exporter) gatherMetrics() ([]*dto.MetricFamily, error) {
	figures := e.cfg.Registry.Figures()
	e.scrapeMu.Lock() // The lock includes Flush, so that scrapes add up counters in the order in which they read them.
	defer e.scrapeMu.Unlock()
	s := newScrapeResult(e.tags)
	s.addNative(figures)
	s.claimFamily(skippedName, skippedHelp, gauge, true)
	e.mappedTimings.addMetricsTo(s)
	e.mappedNumbers.addMetricsTo(e.cfg.Registry.FlushStats(), s)
	for reason, n := range s.skippedFigures {
		s.addFigure(&metrics.Figure{
			MetricName: skippedName, Help: skippedHelp, Labels: []string{"reason", skipReasonNames[reason]},
			Kind: metrics.KindGauge, Value: int64(n),
		})
	}
	return s.metricFamilies(), nil
}
