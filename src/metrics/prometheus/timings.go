package prometheus

import (
	"cmp"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/statsd_exporter/pkg/mapper"
)

// timings has the histograms and summaries of timings, under the names of the mapping.
type timings struct {
	mapping *mapping
	known   sync.Map // from a statsd name to its timing

	mu        sync.Mutex              // guards the fields below
	count     int                     // number of names in known
	families  map[string]timingFamily // by name of the metric
	observers map[string]observer     // by seriesKey
	collected []collected             // all observers, the oldest first
}

// timing is the target of the timings of one statsd name.
type timing struct {
	observer prometheus.Observer // nil if the mapping drops the name or its metric is not allowed
	scale    float64             // factor from milliseconds to the unit of the metric
}

// timingFamily has the kind and the help text that all timings of one metric share.
type timingFamily struct {
	kind kind
	help string
}

// observer is a histogram or a summary.
type observer interface {
	prometheus.Observer
	prometheus.Metric
}

// collected is an observer and the name of its metric.
type collected struct {
	name string
	observer
}

// maxTimings bounds the statsd names of timings. The program chooses these names.
const maxTimings = 1000

// find returns the target of a statsd name. It returns false if there are too many names.
func (t *timings) find(name string) (timing, bool) {
	if found, ok := t.known.Load(name); ok {
		return found.(timing), true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, ok := t.known.Load(name); ok {
		return found.(timing), true
	}
	if t.count >= maxTimings {
		return timing{}, false
	}
	name = strings.Clone(name)
	opened := t.open(name)
	t.known.Store(name, opened)
	t.count++
	return opened, true
}

// open maps a statsd name to its histogram or summary, and creates that if necessary. The
// caller holds mu.
func (t *timings) open(name string) timing {
	to := t.mapping.find(name, mapper.MetricTypeObserver)
	k := summary
	if cmp.Or(to.ObserverType, t.mapping.Defaults.ObserverType) == mapper.ObserverTypeHistogram {
		k = histogram
	}
	f, ok := t.families[to.name]
	if !ok {
		f = timingFamily{k, to.help}
	}
	if to.Action == mapper.ActionTypeDrop || to.name == "" || f.kind != k || !areAllowed(to.pairs, k) {
		return timing{}
	}
	t.families[to.name] = f
	key := seriesKey(to.name, to.pairs)
	o := t.observers[key]
	if o == nil {
		o = t.newObserver(to, k, f.help)
		t.observers[key] = o
		t.collected = append(t.collected, collected{to.name, o})
	}
	return timing{o, to.scale}
}

// newObserver returns a histogram or summary with the options of the mapping.
func (t *timings) newObserver(to target, k kind, help string) observer {
	for name, value := range to.labels {
		to.labels[name] = strings.ToValidUTF8(value, "\uFFFD")
	}
	if k == histogram {
		opts := prometheus.HistogramOpts{Name: to.name, Help: help, ConstLabels: to.labels, Buckets: t.mapping.Defaults.HistogramOptions.Buckets}
		if own := to.HistogramOptions; own != nil {
			if len(own.Buckets) > 0 {
				opts.Buckets = own.Buckets
			}
			opts.NativeHistogramBucketFactor = own.NativeHistogramBucketFactor
			opts.NativeHistogramMaxBucketNumber = own.NativeHistogramMaxBuckets
		}
		return prometheus.NewHistogram(opts)
	}
	from := cmp.Or(to.SummaryOptions, &t.mapping.Defaults.SummaryOptions)
	opts := prometheus.SummaryOpts{
		Name: to.name, Help: help, ConstLabels: to.labels,
		MaxAge: from.MaxAge, AgeBuckets: from.AgeBuckets, BufCap: from.BufCap,
		Objectives: make(map[float64]float64),
	}
	for _, q := range from.Quantiles {
		opts.Objectives[q.Quantile] = q.Error
	}
	return prometheus.NewSummary(opts)
}

// collect sends all histograms and summaries to out, except those whose name another metric has.
func (t *timings) collect(s *scrape, out chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.collected {
		f := t.families[c.name]
		if s.claim(c.name, f.help, f.kind, byTimings) == nil {
			s.skipped[skipName]++
			continue
		}
		out <- c.observer
	}
}
