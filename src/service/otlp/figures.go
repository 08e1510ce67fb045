package otlp

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"ratelimit/src/metrics"
)

// namespaces are the parts of the service that have several metrics. ratelimit_store_servers is
// ratelimit.store.servers.
var namespaces = []string{
	"candidate", "config", "decision", "fallback", "grpc", "holds", "log", "memory_snapshot", "quota", "store", "tls",
	"xds", "xds2",
}

// unitSuffixes are the ends of names of Prometheus that say the unit.
var unitSuffixes = map[string]string{"s": "_seconds", "By": "_bytes", "1": "_ratio", "{unit}/s": "_per_second"}

// nameOf returns the name of a figure by the conventions of OpenTelemetry, and the attributes that the compatible name
// has as tags. It has words in lower case, dots between the part and the figure, and neither the unit nor "total". The
// rules by which OpenTelemetry's names become names of Prometheus lead back to f.MetricName. A figure without one has
// its compatible name.
func nameOf(f *metrics.Figure) (name string, tags []attribute.KeyValue) {
	if f.MetricName == "" {
		return statName(f.StatName)
	}
	whole, _ := strings.CutPrefix(f.MetricName, "ratelimit_")
	if f.Kind == metrics.KindCounter && f.Histogram == nil {
		whole = strings.TrimSuffix(whole, "_total")
	}
	short := strings.TrimSuffix(whole, cmp.Or(unitSuffixes[f.Unit], "-"))
	if slices.Contains(namespaces, short) {
		short = whole // ratelimit.store cannot be a metric beside ratelimit.store.keys.
	}
	for _, n := range namespaces {
		if figure, ok := strings.CutPrefix(short, n+"_"); ok {
			short = n + "." + figure
		}
	}
	return "ratelimit." + short, nil
}

// statName is nameOf for a compatible name: ratelimit.localcache.entryCount is ratelimit.localcache.entry_count.
func statName(stat string) (name string, tags []attribute.KeyValue) {
	parts := []string{"ratelimit"}
	for part := range strings.SplitSeq(strings.TrimPrefix(stat, "ratelimit."), ".") {
		if key, value, isTag := strings.Cut(strings.TrimPrefix(part, "__"), "="); isTag {
			tags = append(tags, attribute.String(key, value))
			continue
		}
		parts = append(parts, strings.ToLower(wordStart.ReplaceAllString(strings.ReplaceAll(part, "-", "_"),
			"${1}${3}_${2}${4}")))
	}
	return strings.TrimSuffix(strings.Join(parts, "."), "_total"), tags
}

// wordStart matches the end of a word and the start of the next one: yC in entryCount, and UPe in CPUPercent.
var wordStart = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

// metricsOf returns figures as metrics, sorted by name. It leaves out figures without a help text: they exist for
// dashboards of envoyproxy/ratelimit, and others have the same numbers.
func metricsOf(figures []metrics.Figure, start, now time.Time) (list []metricdata.Metrics) {
	families := make(map[string]*family)
	for _, f := range figures {
		if f.Help == "" {
			continue
		}
		name, attributes := nameOf(&f)
		for i := 0; i+1 < len(f.Labels); i += 2 {
			attributes = append(attributes, attribute.String(f.Labels[i], strings.ToValidUTF8(f.Labels[i+1], "\uFFFD")))
		}
		if families[name] == nil {
			families[name] = &family{sample: f, seen: make(map[attribute.Distinct]bool)}
		}
		families[name].add(f, attribute.NewSet(attributes...))
	}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		m := families[name]
		list = append(list, metricdata.Metrics{
			Name: name, Description: m.sample.Help, Unit: m.sample.Unit, Data: m.aggregation(start, now),
		})
	}
	return list
}

// family has figures of one name.
type family struct {
	sample  metrics.Figure // the kind, unit and help text of all.
	figures []metrics.Figure
	sets    []attribute.Set // the attributes of each figure.
	seen    map[attribute.Distinct]bool
}

// add adds a figure, except if there is one with the same attributes.
func (m *family) add(f metrics.Figure, set attribute.Set) {
	if !m.seen[set.Equivalent()] {
		m.seen[set.Equivalent()] = true
		m.figures, m.sets = append(m.figures, f), append(m.sets, set)
	}
}

// aggregation returns a histogram, a sum or a gauge.
func (m *family) aggregation(start, now time.Time) metricdata.Aggregation {
	switch {
	case m.sample.Histogram != nil:
		return m.histogram(start, now)
	case cmp.Or(m.sample.Divisor, 1) == 1:
		return number(m, start, now, func(f *metrics.Figure) int64 { return f.Value })
	}
	return number(m, start, now, (*metrics.Figure).ScaledValue)
}

func number[N int64 | float64](m *family, start, now time.Time, value func(*metrics.Figure) N) metricdata.Aggregation {
	points := make([]metricdata.DataPoint[N], len(m.figures))
	for i := range m.figures {
		points[i] = metricdata.DataPoint[N]{Attributes: m.sets[i], Time: now, Value: value(&m.figures[i])}
		if m.sample.Kind == metrics.KindCounter {
			points[i].StartTime = start
		}
	}
	if m.sample.Kind == metrics.KindGauge {
		return metricdata.Gauge[N]{DataPoints: points}
	}
	return metricdata.Sum[N]{DataPoints: points, Temporality: metricdata.CumulativeTemporality, IsMonotonic: true}
}

func (m *family) histogram(start, now time.Time) metricdata.Aggregation {
	points := make([]metricdata.HistogramDataPoint[float64], len(m.figures))
	for i := range m.figures {
		count, sum, atMost := m.figures[i].Histogram.Snapshot()
		bounds := slices.Sorted(maps.Keys(atMost))
		counts, before := make([]uint64, 0, len(bounds)+1), uint64(0)
		for _, bound := range bounds {
			counts = append(counts, atMost[bound]-before)
			before = atMost[bound]
		}
		points[i] = metricdata.HistogramDataPoint[float64]{
			Attributes: m.sets[i], StartTime: start, Time: now, Count: count, Sum: sum, Bounds: bounds,
			BucketCounts: append(counts, count-before),
		}
	}
	return metricdata.Histogram[float64]{DataPoints: points, Temporality: metricdata.CumulativeTemporality}
}
