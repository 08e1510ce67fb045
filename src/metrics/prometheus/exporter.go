// Package prometheus answers scrapes of Prometheus. It shows figures under their native names,
// and under the names that a mapping of statsd_exporter gives to their compatible names.
package prometheus

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ratelimit/src/metrics"
)

// Config is the configuration of an Exporter.
type Config struct {
	// Registry has the figures. Required.
	Registry *metrics.Registry
	// MappingFile is the path of a statsd_exporter mapping. If it is empty or the file does
	// not exist, the built-in mapping is used.
	MappingFile string
	// ResponseTimeAsMilliseconds makes the built-in mapping show response times in
	// milliseconds, although their names end in seconds.
	ResponseTimeAsMilliseconds bool
	// Tags become labels of all metrics. If a metric has a label of the same name, its own
	// value is shown.
	Tags map[string]string
	// Version and Commit of this program are labels of ratelimit_build_info.
	Version, Commit string
	// OnWarn, if set, gets problems that do not stop the exporter, such as a missing mapping
	// file or a scrape that could not show all figures.
	OnWarn func(error)
}

// Exporter answers scrapes with the figures of a Registry.
type Exporter struct {
	cfg      Config
	tags     prometheus.Labels
	registry *prometheus.Registry
	handler  http.Handler
	mapped   mapped
	timings  timings
	dropped  atomic.Uint64 // dropped timings
	mu       sync.Mutex    // one scrape at a time; guards mapped
}

// New returns an Exporter. It returns an error if the mapping file is not valid.
func New(cfg Config) (*Exporter, error) {
	if cfg.Registry == nil {
		return nil, errors.New("prometheus: Registry is nil: set Config.Registry")
	}
	if cfg.OnWarn == nil {
		cfg.OnWarn = func(error) {}
	}
	m, err := loadMapping(cfg.MappingFile, cfg.ResponseTimeAsMilliseconds)
	switch {
	case m == nil:
		return nil, err
	case err != nil:
		cfg.OnWarn(err)
	}
	e := &Exporter{cfg: cfg, tags: make(prometheus.Labels), registry: prometheus.NewRegistry()}
	for key, value := range cfg.Tags {
		name := labelName(key)
		if name == "" || name == "le" || name == "quantile" {
			return nil, fmt.Errorf("prometheus: tag %q cannot be a label: Prometheus uses it itself; choose another name", key)
		}
		e.tags[name] = value
	}
	mapping := &mapping{MetricMapper: m, tags: e.tags}
	e.mapped = mapped{mapping: mapping, series: make(map[string]*series)}
	e.timings = timings{mapping: mapping, families: make(map[string]timingFamily), observers: make(map[string]observer)}

	process := prometheus.WrapRegistererWith(e.runtimeLabels(), e.registry)
	err = errors.Join(
		e.registry.Register(collector(e.collect)),
		process.Register(collectors.NewGoCollector()),
		process.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	e.handler = promhttp.InstrumentMetricHandler(process, handler(e.registry, cfg.OnWarn))
	cfg.Registry.AddNative(e.ownFigures)
	return e, nil
}

// maxScrapes bounds concurrent scrapes. Further ones are answered with status 503.
const maxScrapes = 4

// handler answers scrapes with the metrics of registry.
func handler(registry *prometheus.Registry, onWarn func(error)) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            warner(onWarn),
		MaxRequestsInFlight: maxScrapes,
	})
}

// Handler returns a handler that answers scrapes with the native metrics of read only. onWarn
// gets the error of a scrape that could not show all of them.
func Handler(read func() []metrics.Figure, onWarn func(error)) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(func(out chan<- prometheus.Metric) {
		s := newScrape(nil)
		for _, f := range read() {
			if f.Metric != "" {
				s.add(&f)
			}
		}
		s.send(out)
	}))
	return handler(registry, onWarn)
}

// collector is a prometheus.Collector whose metrics may differ in each scrape.
type collector func(out chan<- prometheus.Metric)

// Describe sends nothing, so that the client library does not expect fixed metrics.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics of one scrape.
func (c collector) Collect(out chan<- prometheus.Metric) { c(out) }

// runtimeLabels returns the tags without those that Go's and the process's metrics use as
// labels.
func (e *Exporter) runtimeLabels() prometheus.Labels {
	labels := maps.Clone(e.tags)
	for _, own := range []string{"version", "quantile", "le", "code", "cause"} {
		delete(labels, own)
	}
	return labels
}

// warner passes the log of promhttp to a function.
type warner func(error)

// Println calls w, except if a write to the scraper failed: a client that closes connections
// must not fill the log.
func (w warner) Println(v ...any) {
	for _, part := range v {
		err, _ := part.(error)
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "write" {
			return
		}
	}
	w(fmt.Errorf("prometheus: %s", strings.TrimSuffix(fmt.Sprintln(v...), "\n")))
}

// Handler returns the handler of scrapes. It ignores the path.
func (e *Exporter) Handler() http.Handler { return e.handler }

// Timing adds d, cut to whole milliseconds, to the histogram or summary to which the mapping
// maps name. It is safe for concurrent use.
func (e *Exporter) Timing(name string, d time.Duration) {
	t, ok := e.timings.find(name)
	if !ok {
		e.dropped.Add(1)
		return
	}
	if t.observer != nil {
		t.observer.Observe(float64(d.Milliseconds()) * t.scale)
	}
}

const (
	skippedName = "ratelimit_mapping_skipped"
	skippedHelp = "Figures that cannot be shown, because another metric has the name or a label is not allowed."
)

// ownFigures returns the version of the program and the number of dropped timings.
func (e *Exporter) ownFigures() []metrics.Figure {
	return []metrics.Figure{
		metrics.Gauge("", 1).Native("ratelimit_build_info", "This program.", "version", e.cfg.Version, "commit", e.cfg.Commit, "go", runtime.Version()),
		metrics.Count("", e.dropped.Load()).Native("ratelimit_mapping_timings_dropped_total", "Timings with too many different names."),
	}
}

// collect sends the metrics of one scrape to out. Native metrics come first: if a mapping
// gives the same name to other figures, these are skipped.
func (e *Exporter) collect(out chan<- prometheus.Metric) {
	native := e.cfg.Registry.Native()
	e.mu.Lock() // before Flush, so that scrapes add up counters in the order in which they read them
	defer e.mu.Unlock()
	s := newScrape(e.tags)
	for i := range native {
		s.add(&native[i])
	}
	s.claim(skippedName, skippedHelp, gauge, byProgram)
	e.timings.collect(s, out)
	e.mapped.collect(e.cfg.Registry.Flush(), s)
	for reason, n := range s.skipped {
		f := metrics.Gauge("", n).Native(skippedName, skippedHelp, "reason", skipNames[reason])
		s.add(&f)
	}
	s.send(out)
}
