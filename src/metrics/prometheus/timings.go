package prometheus

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"ratelimit/src/metrics"
)

// mappedTimings has the histograms and summaries of timings, under the names of the mapping.
type mappedTimings struct {
	mapping        *taggedMapping
	DroppedTimings metrics.Counter // counts timings of too many names.
	targetsByName  sync.Map        // maps a statsd name to a timingTarget.

	mu              sync.Mutex                 // guards the fields below.
	nameCount       int                        // the number of names in targetsByName.
	metricsByKey    map[string]*observedMetric // seriesKey as key.
	observedMetrics []*observedMetric          // the oldest one first.
}

// timingTarget is the target of the timings of one statsd name.
type timingTarget struct {
	observer   prometheus.Observer // nil if the mapping drops the name or its metric is not allowed.
	valueScale float64             // converts milliseconds to the unit of the metric.
}

// observedMetric is a histogram or a summary.
type observedMetric struct {
	mappedTarget
	kind     dto.MetricType
	observer interface {
		prometheus.Observer
		prometheus.Metric
	}
}

// maxTimingNames bounds the statsd names of timings. The program chooses these names.
const maxTimingNames = 1000

// findTarget returns the target of a statsd name. It returns false if there are too many names.
func (t *mappedTimings) findTarget(name string) (timingTarget, bool) {
	if found, ok := t.targetsByName.Load(name); ok {
		return found.(timingTarget), true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, ok := t.targetsByName.Load(name); ok {
		return found.(timingTarget), true
	}
	if t.nameCount >= maxTimingNames {
		return timingTarget{}, false
	}
	name = strings.Clone(name)
	opened := t.openTarget(name)
	t.targetsByName.Store(name, opened)
	t.nameCount++
	return opened, true
}

// openTarget maps a statsd name to its histogram or summary, and creates that if necessary. The caller holds mu.
func (t *mappedTimings) openTarget(name string) timingTarget {
	o := &observedMetric{mappedTarget: t.mapping.findTarget(name, mapper.MetricTypeObserver), kind: summary}
	if cmp.Or(o.ObserverType, t.mapping.Defaults.ObserverType) == mapper.ObserverTypeHistogram {
		o.kind = histogram
	}
	hasOtherKind := func(other *observedMetric) bool { return other.name == o.name && other.kind != o.kind }
	if o.Action == mapper.ActionTypeDrop || o.name == "" || !areLabelsAllowed(o.labels, o.kind) ||
		slices.ContainsFunc(t.observedMetrics, hasOtherKind) {
		return timingTarget{}
	}
	if known := t.metricsByKey[seriesKey(o.name, o.labels)]; known != nil {
		return timingTarget{known.observer, o.valueScale}
	}
	if o.kind == histogram {
		o.observer = prometheus.NewHistogram(t.histogramOptions(o.HistogramOptions))
	} else {
		o.observer = prometheus.NewSummary(t.summaryOptions(o.SummaryOptions))
	}
	t.metricsByKey[seriesKey(o.name, o.labels)] = o
	t.observedMetrics = append(t.observedMetrics, o)
	return timingTarget{o.observer, o.valueScale}
}

// histogramOptions returns the options of a histogram. own are those of its rule in the mapping, or nil.
func (t *mappedTimings) histogramOptions(own *mapper.HistogramOptions) prometheus.HistogramOpts {
	opts := prometheus.HistogramOpts{Buckets: t.mapping.Defaults.HistogramOptions.Buckets}
	if own != nil {
		if len(own.Buckets) > 0 {
			opts.Buckets = own.Buckets
		}
		opts.NativeHistogramBucketFactor = own.NativeHistogramBucketFactor
		opts.NativeHistogramMaxBucketNumber = own.NativeHistogramMaxBuckets
	}
	return opts
}

// summaryOptions returns the options of a summary. own are those of its rule in the mapping, or nil.
func (t *mappedTimings) summaryOptions(own *mapper.SummaryOptions) prometheus.SummaryOpts {
	from := cmp.Or(own, &t.mapping.Defaults.SummaryOptions)
	opts := prometheus.SummaryOpts{
		MaxAge: from.MaxAge, AgeBuckets: from.AgeBuckets, BufCap: from.BufCap,
		Objectives: make(map[float64]float64),
	}
	for _, q := range from.Quantiles {
		opts.Objectives[q.Quantile] = q.Error
	}
	return opts
}

// addMetricsTo adds all histograms and summaries to s.
func (t *mappedTimings) addMetricsTo(s *scrapeResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.observedMetrics {
		var m dto.Metric
		if err := o.observer.Write(&m); err == nil {
			m.Label = o.labels
			s.addMetric(o.name, o.help, o.kind, false, &m)
		}
	}
}
