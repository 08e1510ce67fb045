package prometheus

import (
	"cmp"
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

// pairs returns labels as protobuf messages, sorted by name.
func pairs(labels prometheus.Labels) []*dto.LabelPair {
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
		b.WriteString("\xFF" + *l.Name + "\xFF" + *l.Value) // 0xFF is never in UTF-8
	}
	return b.String()
}

// areAllowed reports whether a metric of that kind may have these labels. Names that start with
// __ are reserved, and so are le and quantile in histograms and summaries.
func areAllowed(labels []*dto.LabelPair, k kind) bool {
	return !slices.ContainsFunc(labels, func(l *dto.LabelPair) bool {
		name := *l.Name
		return name == "" || strings.HasPrefix(name, "__") || k >= histogram && (name == "le" || name == "quantile")
	})
}

// kind is the kind of a metric. The first ones have the values of metrics.Kind.
type kind uint8

const (
	counter = kind(metrics.KindCounter)
	gauge   = kind(metrics.KindGauge)
)

const (
	histogram kind = iota + gauge + 1
	summary
)

// metric is a prometheus.Metric with a constant value. Unlike the constant metrics of the client
// library, it does not check and copy its labels in each scrape.
type metric struct {
	desc      *prometheus.Desc
	labels    []*dto.LabelPair
	kind      kind
	value     float64        // of a counter or gauge
	histogram *dto.Histogram // of a histogram
}

// Desc implements prometheus.Metric.
func (m *metric) Desc() *prometheus.Desc { return m.desc }

// Write implements prometheus.Metric.
func (m *metric) Write(out *dto.Metric) error {
	out.Label = m.labels
	switch m.kind {
	case counter:
		out.Counter = &dto.Counter{Value: &m.value}
	case gauge:
		out.Gauge = &dto.Gauge{Value: &m.value}
	default:
		out.Histogram = m.histogram
	}
	return nil
}

// snapshot returns the current content of d as a protobuf message.
func snapshot(d metrics.Distribution) *dto.Histogram {
	count, sum, buckets := d.Snapshot()
	out := &dto.Histogram{SampleCount: &count, SampleSum: &sum}
	for bound, n := range buckets {
		out.Bucket = append(out.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: &n})
	}
	slices.SortFunc(out.Bucket, func(a, b *dto.Bucket) int { return cmp.Compare(a.GetUpperBound(), b.GetUpperBound()) })
	return out
}

// Reasons why a figure is not shown.
const (
	skipName     = iota // another metric has the same name
	skipLabels          // a label is not allowed, or another metric has the same name and labels
	skipNegative        // a counter decreased
	skipCount
)

var skipNames = [skipCount]string{"name", "labels", "negative"}

// owner is the source of the metrics of one name.
type owner uint8

const (
	byProgram owner = iota // native metrics
	byTimings              // mapped timings
	byMapping              // mapped counters and gauges
)

// family has the properties that all metrics of one name share.
type family struct {
	owner owner
	kind  kind
	desc  *prometheus.Desc
}

// scrape collects the metrics of one scrape. It skips a metric that the client library would
// refuse, because the library would leave out all metrics of the same name, or more.
type scrape struct {
	tags     prometheus.Labels  // added to native metrics
	families map[string]*family // by name
	metrics  []metric
	seen     map[string]bool // native metrics, by seriesKey
	skipped  [skipCount]int  // by reason
}

func newScrape(tags prometheus.Labels) *scrape {
	return &scrape{tags: tags, families: make(map[string]*family), seen: make(map[string]bool)}
}

// send sends all collected metrics.
func (s *scrape) send(out chan<- prometheus.Metric) {
	for i := range s.metrics {
		out <- &s.metrics[i]
	}
}

// claim returns the family of that name and creates it if necessary. It returns nil if the
// existing family has another kind or owner, or if the name conflicts with another one: a
// histogram named t conflicts with a counter named t_sum.
func (s *scrape) claim(name, help string, k kind, o owner) *family {
	if f := s.families[name]; f != nil {
		if f.kind != k || f.owner != o {
			return nil
		}
		return f
	}
	if name == "" || isLibraryName(name) {
		return nil
	}
	for _, suffix := range []string{"_count", "_sum", "_bucket"} {
		if whole, ok := strings.CutSuffix(name, suffix); ok {
			if f := s.families[whole]; f != nil && f.kind >= histogram {
				return nil
			}
		}
		if k >= histogram && s.families[name+suffix] != nil {
			return nil
		}
	}
	f := &family{owner: o, kind: k, desc: prometheus.NewDesc(name, help, nil, nil)}
	s.families[name] = f
	return f
}

// isLibraryName reports whether a metric of the client library may have that name.
func isLibraryName(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_")
}

// add adds the native metric of f, or counts it as skipped.
func (s *scrape) add(f *metrics.Figure) {
	m := metric{kind: kind(f.Kind), value: f.Float()}
	if f.Histogram != nil {
		m.kind, m.histogram = histogram, snapshot(f.Histogram)
	}
	name, labels := metricName(f.Metric), make(prometheus.Labels, len(s.tags)+len(f.Labels)/2)
	maps.Copy(labels, s.tags)
	for i := 0; i+1 < len(f.Labels); i += 2 {
		labels[labelName(f.Labels[i])] = f.Labels[i+1]
	}
	m.labels = pairs(labels)
	key := seriesKey(name, m.labels)
	if s.seen[key] || !areAllowed(m.labels, m.kind) {
		s.skipped[skipLabels]++
		return
	}
	family := s.claim(name, f.Help, m.kind, byProgram)
	if family == nil {
		s.skipped[skipName]++
		return
	}
	s.seen[key] = true
	m.desc = family.desc
	s.metrics = append(s.metrics, m)
}
