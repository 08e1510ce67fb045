// Package prometheus shows the figures to Prometheus: under the names that
// envoyproxy/ratelimit has, through a mapping of statsd_exporter, and beside
// them under names of their own.
package prometheus

import (
	"errors"
	"fmt"
	"net"
	"net/http"
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
	// MappingFile is the path of a statsd_exporter mapping. Empty, or if there is
	// no such file: the built-in one.
	MappingFile string
	// ResponseTimeAsMilliseconds has the built-in mapping leave response times
	// as milliseconds, whatever the name says.
	ResponseTimeAsMilliseconds bool
	// Tags become labels of everything. Where a metric has a label of that name
	// itself, that one stays.
	Tags map[string]string
	// Sources are read at each scrape, for figures that are kept elsewhere: of
	// stores, caches, breakers.
	Sources []func(add func(Sample))
	// Version and Commit are those of this program.
	Version, Commit string
	// OnWarn, if set, is told of what does not stop the work: a mapping file
	// that is not there, a scrape that could not show everything.
	OnWarn func(error)
}

// Exporter answers scrapes.
type Exporter struct {
	cfg      Config
	tags     []label
	registry *prometheus.Registry
	handler  http.Handler
	mapping  *mapping
	mapped   mapped
	timings  timings
	dropped  atomic.Uint64 // timings
	mu       sync.Mutex    // held by a scrape
}

// New returns an exporter. A mapping file that is there but wrong is an error.
func New(cfg Config) (*Exporter, error) {
	if cfg.Registry == nil {
		return nil, errors.New("prometheus: Registry is nil: give it one")
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
	e := &Exporter{cfg: cfg, registry: prometheus.NewRegistry()}
	for key, value := range cfg.Tags {
		name := labelName(key)
		if name == "" || name == "le" || name == "quantile" {
			return nil, fmt.Errorf("prometheus: tag %q cannot be a label: Prometheus uses it itself; choose another name", key)
		}
		e.tags = append(e.tags, label{name, value})
	}
	e.tags = sortLabels(e.tags)
	e.mapping = &mapping{MetricMapper: m, tags: e.tags}
	e.mapped.mapping, e.timings.mapping = e.mapping, e.mapping

	runtime := prometheus.WrapRegistererWith(e.runtimeLabels(), e.registry)
	err = errors.Join(
		e.registry.Register(e),
		runtime.Register(collectors.NewGoCollector()),
		runtime.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	e.handler = promhttp.InstrumentMetricHandler(runtime, promhttp.HandlerFor(e.registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            warner(cfg.OnWarn),
		MaxRequestsInFlight: maxScrapes,
	}))
	return e, nil
}

// maxScrapes bounds how many scrapes run at once; others are answered 503.
const maxScrapes = 4

// runtimeLabels are the tags, but for those that Go's and the process' metrics
// have as labels themselves.
func (e *Exporter) runtimeLabels() prometheus.Labels {
	labels := make(prometheus.Labels)
	for _, t := range e.tags {
		switch t.name {
		case "version", "quantile", "le", "code", "cause":
		default:
			labels[t.name] = t.value
		}
	}
	return labels
}

// warner is a log for promhttp.
type warner func(error)

// Println passes a warning on, unless it is about a scraper that did not wait for
// its answer. Anybody can be that, as often as they like.
func (w warner) Println(v ...any) {
	for _, part := range v {
		err, _ := part.(error)
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "write" {
			return
		}
	}
	w(fmt.Errorf("prometheus: %s", strings.TrimSuffix(fmt.Sprintln(v...), "\n")))
}

// Handler answers scrapes, whatever the path.
func (e *Exporter) Handler() http.Handler { return e.handler }

// Timing observes d, cut to whole milliseconds, under what name is mapped to.
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

// Describe says nothing: what there is changes.
func (*Exporter) Describe(chan<- *prometheus.Desc) {}

const (
	skippedName = "ratelimit_mapping_skipped"
	skippedHelp = "Figures that cannot be shown, because another metric has the name or a label is not allowed."
)

// Collect reads all figures. Native ones come first: where two metrics claim
// one name, those lose that a mapping made.
func (e *Exporter) Collect(out chan<- prometheus.Metric) {
	var more []Sample
	for _, read := range e.cfg.Sources {
		read(func(s Sample) { more = append(more, s) })
	}
	s, observers := e.scrape(more)
	for i := range s.figures {
		out <- &s.figures[i]
	}
	for _, o := range observers {
		out <- o
	}
}

// scrape reads all figures but those of Sources. It is alone: two that overlap would
// read counters in one order and add them up in the other.
func (e *Exporter) scrape(more []Sample) (*scrape, []prometheus.Metric) {
	e.mu.Lock()
	defer e.mu.Unlock()
	stats := e.cfg.Registry.Flush()
	s := newScrape(e.tags)
	e.native(stats, s.add)
	for _, m := range more {
		s.add(m)
	}
	s.claim(skippedName, skippedHelp, gauge, ofUs)
	observers := e.timings.collect(s)
	e.mapped.collect(stats, s)
	for reason, n := range s.skipped {
		s.add(Sample{
			Name: skippedName, Help: skippedHelp, Kind: metrics.KindGauge, Value: float64(n),
			Labels: []string{"reason", skipNames[reason]},
		})
	}
	return s, observers
}
