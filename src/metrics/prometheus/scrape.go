package prometheus

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"ratelimit/src/metrics"
)

// labelName returns key as the name of a label. It replaces characters that are not allowed by
// `_`, and removes `_` until the name does not start with __, which is reserved.
func labelName(key string) string {
	name := metricName(key)
	for strings.HasPrefix(name, "__") {
		name = name[1:]
	}
	return name
}

// metricName returns name as the name of a metric, with `_` for characters that are not allowed.
func metricName(name string) string { return mapper.EscapeMetricName(strings.ToValidUTF8(name, "_")) }

// labelPairs returns labels as protobuf messages, sorted by name.
func labelPairs(labels prometheus.Labels) []*dto.LabelPair {
	list := make([]*dto.LabelPair, 0, len(labels))
	for name, value := range labels {
		value = strings.ToValidUTF8(value, "\uFFFD")
		list = append(list, &dto.LabelPair{Name: &name, Value: &value})
	}
	slices.SortFunc(list, func(a, b *dto.LabelPair) int { return strings.Compare(*a.Name, *b.Name) })
	return list
}

// seriesKey returns a text that is unique for a metric's name and labels.
func seriesKey(name string, labels []*dto.LabelPair) string {
	var b strings.Builder
	b.WriteString(name)
	for _, l := range labels {
		b.WriteString("\xFF" + *l.Name + "\xFF" + *l.Value) // The separator 0xFF never occurs in UTF-8.
	}
	return b.String()
}

// areLabelsAllowed reports whether a metric of that kind may have these labels. Names that start with
// __ are reserved, and so are le and quantile in histograms and summaries.
func areLabelsAllowed(labels []*dto.LabelPair, k dto.MetricType) bool {
	return !slices.ContainsFunc(labels, func(l *dto.LabelPair) bool {
		name := *l.Name
		return name == "" || strings.HasPrefix(name, "__") || hasSeveralNames(k) && (name == "le" || name == "quantile")
	})
}

// hasSeveralNames reports whether a metric of that kind has several names, such as t_sum and t_count.
func hasSeveralNames(k dto.MetricType) bool { return k != counter && k != gauge }

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	histogram = dto.MetricType_HISTOGRAM
	summary   = dto.MetricType_SUMMARY
)

// numberMetric returns a counter or a gauge as a protobuf message.
func numberMetric(k dto.MetricType, labels []*dto.LabelPair, value float64) *dto.Metric {
	if k == counter {
		return &dto.Metric{Label: labels, Counter: &dto.Counter{Value: new(value)}}
	}
	return &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: new(value)}}
}

// histogramSnapshot returns the current content of d as a protobuf message.
func histogramSnapshot(d metrics.Distribution) *dto.Histogram {
	count, sum, buckets := d.Snapshot()
	var m dto.Metric
	// A constant can always be written.
	_ = prometheus.MustNewConstHistogram(prometheus.NewDesc("histogram", "", nil, nil), count, sum, buckets).Write(&m)
	return m.Histogram
}

// These are the reasons why a figure is not shown.
const (
	skippedForName     = iota // another metric has the same name.
	skippedForLabels          // skippedForLabels: a label is not allowed, or a metric has the same name and labels.
	skippedForDecrease        // skippedForDecrease: a counter decreased.
	skipReasonCount
)

var skipReasonNames = [skipReasonCount]string{"name", "labels", "negative"}

// ownedFamily has all metrics of one name.
type ownedFamily struct {
	isNative bool // false for names of the mapping.
	*dto.MetricFamily
}

// scrapeResult collects the metrics of one scrape. It skips a metric that the client library would
// refuse, because the library would leave out all metrics of the same name, or more.
type scrapeResult struct {
	tags             prometheus.Labels      // added to native metrics.
	families         map[string]ownedFamily // metric names as keys.
	nativeSeriesSeen map[string]bool        // the seriesKey of each native metric.
	skippedFigures   [skipReasonCount]int   // counts figures that are not shown, by reason.
}

func newScrapeResult(tags prometheus.Labels) *scrapeResult {
	return &scrapeResult{tags: tags, families: make(map[string]ownedFamily), nativeSeriesSeen: make(map[string]bool)}
}

func (s *scrapeResult) metricFamilies() (list []*dto.MetricFamily) {
	for _, f := range s.families {
		list = append(list, f.MetricFamily)
	}
	return list
}

// claimFamily returns the family of that name and creates it if necessary. It returns nil if the existing family has
// another kind or another isNative, or if the name conflicts with another one: a histogram named t conflicts with a
// counter named t_sum.
func (s *scrapeResult) claimFamily(name, help string, k dto.MetricType, isNative bool) *dto.MetricFamily {
	if f, exists := s.families[name]; exists {
		if *f.Type != k || f.isNative != isNative {
			return nil
		}
		return f.MetricFamily
	}
	if name == "" || isLibraryName(name) {
		return nil
	}
	for _, suffix := range []string{"_count", "_sum", "_bucket"} {
		if whole, ok := strings.CutSuffix(name, suffix); ok {
			if f, exists := s.families[whole]; exists && hasSeveralNames(*f.Type) {
				return nil
			}
		}
		if _, exists := s.families[name+suffix]; exists && hasSeveralNames(k) {
			return nil
		}
	}
	f := &dto.MetricFamily{Name: new(name), Help: new(strings.ToValidUTF8(help, "\uFFFD")), Type: k.Enum()}
	s.families[name] = ownedFamily{isNative, f}
	return f
}

// isLibraryName reports whether a metric of the client library may have that name.
func isLibraryName(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_")
}

// addMetric adds m to the family of that name. If that is not possible, it counts m as skipped and returns false.
func (s *scrapeResult) addMetric(name, help string, k dto.MetricType, isNative bool, m *dto.Metric) bool {
	if !areLabelsAllowed(m.Label, k) {
		s.skippedFigures[skippedForLabels]++
		return false
	}
	f := s.claimFamily(name, help, k, isNative)
	if f == nil {
		s.skippedFigures[skippedForName]++
		return false
	}
	f.Metric = append(f.Metric, m)
	return true
}

// addNative adds the native metrics of figures that have one.
func (s *scrapeResult) addNative(figures []metrics.Figure) {
	for i := range figures {
		if figures[i].MetricName != "" {
			s.addFigure(&figures[i])
		}
	}
}

// addFigure adds the native metric of f, or counts it as skipped.
func (s *scrapeResult) addFigure(f *metrics.Figure) {
	name, labels := metricName(f.MetricName), maps.Clone(s.tags)
	if labels == nil {
		labels = make(prometheus.Labels)
	}
	for i := 0; i+1 < len(f.Labels); i += 2 {
		labels[labelName(f.Labels[i])] = f.Labels[i+1]
	}
	k := dto.MetricType(f.Kind)
	m := numberMetric(k, labelPairs(labels), f.ScaledValue())
	if f.Histogram != nil {
		k, m = histogram, &dto.Metric{Label: m.Label, Histogram: histogramSnapshot(f.Histogram)}
	}
	if key := seriesKey(name, m.Label); s.nativeSeriesSeen[key] {
		s.skippedFigures[skippedForLabels]++
	} else if s.addMetric(name, f.Help, k, true, m) {
		s.nativeSeriesSeen[key] = true
	}
}
