package prometheus

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"ratelimit/src/metrics"
)

// Sample is one native figure. Samples of one name have one Help and one Kind.
type Sample struct {
	Name   string // whole: ratelimit_store_keys
	Help   string
	Labels []string // name, value, name, value...
	Kind   metrics.Kind
	Value  float64
	// Histogram, if set, is shown instead of Value: metrics.Histogram in seconds,
	// or metrics.Sizes.
	Histogram Histogram
}

// Histogram is one of package metrics.
type Histogram interface {
	Snapshot() (count uint64, sum float64, buckets map[float64]uint64)
}

type label struct{ name, value string }

// labelName makes key fit for a label. Names that begin with __ are Prometheus'
// own.
func labelName(key string) string {
	name := metricName(key)
	for strings.HasPrefix(name, "__") {
		name = name[1:]
	}
	return name
}

// metricName makes name fit for a metric.
func metricName(name string) string {
	return mapper.EscapeMetricName(strings.ToValidUTF8(name, "_")) // which cannot read anything else
}

// sortLabels sorts by name and keeps the last of each.
func sortLabels(labels []label) []label {
	slices.SortStableFunc(labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	kept := labels[:0]
	for i, l := range labels {
		if i+1 == len(labels) || labels[i+1].name != l.name {
			kept = append(kept, l)
		}
	}
	return kept
}

// pairs are labels as the client library has them.
func pairs(labels []label) []*dto.LabelPair {
	list := make([]*dto.LabelPair, len(labels))
	for i, l := range labels {
		value := strings.ToValidUTF8(l.value, "\uFFFD")
		list[i] = &dto.LabelPair{Name: &l.name, Value: &value}
	}
	return list
}

type kind uint8

const (
	counter kind = iota
	gauge
	histogram
	summary
)

// figure is a prometheus.Metric with its value.
type figure struct {
	desc      *prometheus.Desc
	labels    []*dto.LabelPair
	kind      kind
	value     float64
	histogram *dto.Histogram
}

func (f *figure) Desc() *prometheus.Desc { return f.desc }

func (f *figure) Write(m *dto.Metric) error {
	m.Label = f.labels
	switch f.kind {
	case counter:
		m.Counter = &dto.Counter{Value: &f.value}
	case gauge:
		m.Gauge = &dto.Gauge{Value: &f.value}
	default:
		m.Histogram = f.histogram
	}
	return nil
}

// Why a figure is not shown.
const (
	skipName   = iota // another metric has it
	skipLabels        // one is not allowed, or all are there already
	skipNegative
	skipCount
)

var skipNames = [skipCount]string{"name", "labels", "negative"}

// owner is who makes the metrics of a name; nobody else may add to them.
type owner uint8

const (
	ofUs owner = iota
	ofTimings
	ofMapping
)

// family are the metrics of one name.
type family struct {
	owner owner
	kind  kind
	desc  *prometheus.Desc
}

// scrape gathers what one scrape shows, such that the client library has
// nothing to find fault with: it would leave out all of a name, or more.
type scrape struct {
	tags     []label
	families map[string]*family
	figures  []figure
	seen     map[string]bool // native name and labels
	skipped  [skipCount]int
}

func newScrape(tags []label) *scrape {
	return &scrape{tags: tags, families: make(map[string]*family), seen: make(map[string]bool)}
}

// claim returns the family of that name, or nil if it is of another kind or
// owner, or its name reads like part of another.
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
	for _, suffix := range suffixes {
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

var suffixes = []string{"_count", "_sum", "_bucket"}

// isForeign tells names that the collectors of the client library use.
func isForeign(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_")
}

// add adds a native figure.
func (s *scrape) add(sample Sample) {
	k := counter
	switch {
	case sample.Histogram != nil:
		k = histogram
	case sample.Kind == metrics.KindGauge:
		k = gauge
	}
	name := metricName(sample.Name)
	labels := slices.Clone(s.tags)
	for i := 0; i+1 < len(sample.Labels); i += 2 {
		labels = append(labels, label{labelName(sample.Labels[i]), sample.Labels[i+1]})
	}
	labels = sortLabels(labels)
	key := seriesKey(name, labels)
	if s.seen[key] || !areAllowed(labels, k) {
		s.skipped[skipLabels]++
		return
	}
	f := s.claim(name, sample.Help, k, ofUs)
	if f == nil {
		s.skipped[skipName]++
		return
	}
	s.seen[key] = true
	fig := figure{desc: f.desc, labels: pairs(labels), kind: k, value: sample.Value}
	if sample.Histogram != nil {
		fig.histogram = snapshot(sample.Histogram)
	}
	s.figures = append(s.figures, fig)
}

func snapshot(h Histogram) *dto.Histogram {
	count, sum, buckets := h.Snapshot()
	out := &dto.Histogram{SampleCount: &count, SampleSum: &sum}
	for bound, n := range buckets {
		out.Bucket = append(out.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: &n})
	}
	slices.SortFunc(out.Bucket, func(a, b *dto.Bucket) int {
		if a.GetUpperBound() < b.GetUpperBound() {
			return -1
		}
		return 1
	})
	return out
}

// areAllowed tells whether labels may be those of a metric of that kind: names
// that begin with __ are Prometheus' own, and le and quantile have a meaning.
func areAllowed(labels []label, k kind) bool {
	for _, l := range labels {
		if l.name == "" || strings.HasPrefix(l.name, "__") || k >= histogram && (l.name == "le" || l.name == "quantile") {
			return false
		}
	}
	return true
}

// seriesKey is what name and labels are found by.
func seriesKey(name string, labels []label) string {
	var b strings.Builder
	b.WriteString(name)
	for _, l := range labels {
		b.WriteByte(0xFF) // never in UTF-8
		b.WriteString(l.name)
		b.WriteByte(0xFF)
		b.WriteString(strings.ToValidUTF8(l.value, "\uFFFD"))
	}
	return b.String()
}
