// Package prometheus shows the figures to Prometheus: under the compatible names of
// envoyproxy/ratelimit, through a mapping of statsd_exporter, and under native names.
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

// Config says what is shown.
type Config struct {
	// Registry has the figures.
	Registry *metrics.Registry
	// MappingFile is the path of a statsd_exporter mapping. If it is empty or there is
	// no such file, the built-in mapping is used.
	MappingFile string
	// ResponseTimeAsMilliseconds has the built-in mapping leave response times in
	// milliseconds, although the name says seconds.
	ResponseTimeAsMilliseconds bool
	// Tags become labels of everything. A metric that has a label of that name keeps its
	// own.
	Tags map[string]string
	// Version and Commit are those of this program.
	Version, Commit string
	// OnWarn, if set, gets problems that do not stop the exporter: a mapping file that
	// is missing, a scrape that could not show everything.
	OnWarn func(error)
}

// Exporter answers scrapes.
type Exporter struct {
	cfg      Config
	tags     prometheus.Labels
	registry *prometheus.Registry
	handler  http.Handler
	mapped   mapped
	timings  timings
	dropped  atomic.Uint64 // timings
	mu       sync.Mutex    // held by a scrape
}

// New returns an exporter. A mapping file that exists and has a mistake is an error.
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

// maxScrapes is how many scrapes run at once; further ones are answered 503.
const maxScrapes = 4

func handler(registry *prometheus.Registry, onWarn func(error)) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            warner(onWarn),
		MaxRequestsInFlight: maxScrapes,
	})
}

// Handler returns a handler of scrapes that shows the native metrics of read and nothing
// else. onWarn gets the reason when a scrape could not show everything.
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

// collector is a prometheus.Collector of metrics that change from scrape to scrape.
type collector func(out chan<- prometheus.Metric)

// Describe sends nothing, which makes the collector an unchecked one.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) { c(out) }

// runtimeLabels are the tags, except those that metrics of Go and the process have as
// labels themselves.
func (e *Exporter) runtimeLabels() prometheus.Labels {
	labels := maps.Clone(e.tags)
	for _, own := range []string{"version", "quantile", "le", "code", "cause"} {
		delete(labels, own)
	}
	return labels
}

// warner is a log for promhttp.
type warner func(error)

// Println passes a warning on, unless a scraper left before it had its answer, which any
// client can do as often as it likes.
func (w warner) Println(v ...any) {
	for _, part := range v {
		err, _ := part.(error)
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "write" {
			return
		}
	}
	w(fmt.Errorf("prometheus: %s", strings.TrimSuffix(fmt.Sprintln(v...), "\n")))
}

// Handler answers scrapes on every path.
func (e *Exporter) Handler() http.Handler { return e.handler }

// Timing observes d, cut to whole milliseconds, under the metric that name is mapped to.
// It is safe for concurrent use.
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

func (e *Exporter) ownFigures() []metrics.Figure {
	return []metrics.Figure{
		metrics.Gauge("", 1).Native("ratelimit_build_info", "This program.", "version", e.cfg.Version, "commit", e.cfg.Commit, "go", runtime.Version()),
		metrics.Count("", e.dropped.Load()).Native("ratelimit_mapping_timings_dropped_total", "Timings with too many different names."),
	}
}

// collect reads all figures. Native metrics come first, so that they win where a mapping
// uses the same name.
func (e *Exporter) collect(out chan<- prometheus.Metric) {
	native := e.cfg.Registry.Native()
	e.mu.Lock() // two scrapes that overlap would add counters up in another order than they read them
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
