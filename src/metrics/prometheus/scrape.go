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

// labelName makes key fit for a label. Names that begin with __ belong to Prometheus.
func labelName(key string) string {
	name := metricName(key)
	for strings.HasPrefix(name, "__") {
		name = name[1:]
	}
	return name
}

// metricName makes name fit for a metric.
func metricName(name string) string { return mapper.EscapeMetricName(strings.ToValidUTF8(name, "_")) }

// pairs returns labels, sorted by name.
func pairs(labels prometheus.Labels) []*dto.LabelPair {
	list := make([]*dto.LabelPair, 0, len(labels))
	for name, value := range labels {
		value = strings.ToValidUTF8(value, "\uFFFD")
		list = append(list, &dto.LabelPair{Name: &name, Value: &value})
	}
	slices.SortFunc(list, func(a, b *dto.LabelPair) int { return strings.Compare(*a.Name, *b.Name) })
	return list
}

// seriesKey returns a text that differs for each name with labels.
func seriesKey(name string, labels []*dto.LabelPair) string {
	var b strings.Builder
	b.WriteString(name)
	for _, l := range labels {
		b.WriteString("\xFF" + *l.Name + "\xFF" + *l.Value) // 0xFF is never in UTF-8
	}
	return b.String()
}

// areAllowed reports whether labels may be those of a metric of that kind: names that
// begin with __ belong to Prometheus, and le and quantile have a meaning.
func areAllowed(labels []*dto.LabelPair, k kind) bool {
	return !slices.ContainsFunc(labels, func(l *dto.LabelPair) bool {
		name := *l.Name
		return name == "" || strings.HasPrefix(name, "__") || k >= histogram && (name == "le" || name == "quantile")
	})
}

// kind is that of a metric. The first are those of figures.
type kind uint8

const (
	counter = kind(metrics.KindCounter)
	gauge   = kind(metrics.KindGauge)
)

const (
	histogram kind = iota + gauge + 1
	summary
)

// metric is a prometheus.Metric with its value. The client library has constant metrics
// too, but these would check and copy the labels anew in each scrape.
type metric struct {
	desc      *prometheus.Desc
	labels    []*dto.LabelPair
	kind      kind
	value     float64
	histogram *dto.Histogram
}

func (m *metric) Desc() *prometheus.Desc { return m.desc }

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

func snapshot(d metrics.Distribution) *dto.Histogram {
	count, sum, buckets := d.Snapshot()
	out := &dto.Histogram{SampleCount: &count, SampleSum: &sum}
	for bound, n := range buckets {
		out.Bucket = append(out.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: &n})
	}
	slices.SortFunc(out.Bucket, func(a, b *dto.Bucket) int { return cmp.Compare(a.GetUpperBound(), b.GetUpperBound()) })
	return out
}

// Why a figure is not shown.
const (
	skipName   = iota // another metric has it
	skipLabels        // one is not allowed, or another metric has them all
	skipNegative
	skipCount
)

var skipNames = [skipCount]string{"name", "labels", "negative"}

// owner is the source of all metrics of a name.
type owner uint8

const (
	byProgram owner = iota // native metrics
	byTimings
	byMapping
)

// family is what the metrics of one name have in common.
type family struct {
	owner owner
	kind  kind
	desc  *prometheus.Desc
}

// scrape gathers the metrics of one scrape. It skips those in which the client library
// would find a fault, because that would leave out all metrics of the name, or more.
type scrape struct {
	tags     prometheus.Labels
	families map[string]*family
	metrics  []metric
	seen     map[string]bool // native name and labels
	skipped  [skipCount]int
}

func newScrape(tags prometheus.Labels) *scrape {
	return &scrape{tags: tags, families: make(map[string]*family), seen: make(map[string]bool)}
}

func (s *scrape) send(out chan<- prometheus.Metric) {
	for i := range s.metrics {
		out <- &s.metrics[i]
	}
}

// claim returns the family of that name. It returns nil if the family is of another kind
// or owner, or if the name reads like a part of another.
func (s *scrape) claim(name, help string, k kind, o owner) *family {
	if f := s.families[name]; f != nil {
		if f.kind != k || f.owner != o {
			return nil
		}
		return f
	}
	if name == "" || isForeign(name) {
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

// isForeign reports whether the collectors of the client library use the name.
func isForeign(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_")
}

// add adds a native metric.
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
