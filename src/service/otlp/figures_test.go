package otlp

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"ratelimit/src/metrics"
)

// declared returns the figures of figures.txt that are sent, with names of a port and a store instead of $. Those of
// `ratelimit divvy` have names of divvy.
func declared() (list []metrics.Figure) {
	names := map[string]string{
		"port": "grpc", "redis": "redis_pool", "pool": "redis_pool", "latency": "grpc",
		"certificate": "grpc",
	}
	for part, figures := range metrics.Declarations() {
		for _, f := range figures {
			f.StatName = strings.NewReplacer("$", names[part], "*", "deny").Replace(f.StatName)
			if f.Help != "" && part != "divvy statistics" {
				list = append(list, f)
			}
		}
	}
	return list
}

// histograms are the lines of figures.txt whose value is a distribution, which only a source shows.
var histograms = []string{
	"ratelimit_decision_duration_seconds", "ratelimit_store_round_trip_seconds",
	"ratelimit_store_batch_hits",
}

// Names and units are those of OpenTelemetry's semantic conventions: words in lower case, parts with dots, no unit and
// no "total" in the name, units of UCUM. No metric is the namespace of another one. All figures of a metric have one
// kind, unit and description.
func TestConventions(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^ratelimit(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+$`)
	unit := regexp.MustCompile(`^(|1|%|s|ns|By|\{[a-z]+\}(/s)?)$`)
	byName := make(map[string]metrics.Figure)
	for _, f := range declared() {
		n, _ := nameOf(&f)
		if !name.MatchString(n) || strings.HasSuffix(n, "_total") || strings.HasSuffix(n, "_seconds") ||
			strings.HasSuffix(n, "_ratio") {
			t.Errorf("%s is no name by the conventions of OpenTelemetry", n)
		}
		if !unit.MatchString(f.Unit) {
			t.Errorf("%s: unit %q", n, f.Unit)
		}
		if !strings.HasSuffix(f.Help, ".") {
			t.Errorf("%s: the description %q is no sentence", n, f.Help)
		}
		if other, exists := byName[n]; exists &&
			(other.Kind != f.Kind || other.Unit != f.Unit || other.MetricName != f.MetricName) {
			t.Errorf("%s is declared in two ways:\n%+v\n%+v", n, other, f)
		}
		byName[n] = f
	}
	if len(byName) < 100 {
		t.Errorf("only %d metrics", len(byName))
	}
	sorted := slices.Sorted(maps.Keys(byName))
	for _, n := range sorted {
		if slices.ContainsFunc(sorted, func(other string) bool { return strings.HasPrefix(other, n+".") }) {
			t.Errorf("%s is the namespace of other metrics, too", n)
		}
	}
}

// A collector or a Prometheus that receives the metrics stores them under the names of a scrape, so that the dashboard
// and the alerts work with both.
func TestNamesOfPrometheus(t *testing.T) {
	t.Parallel()
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	for _, f := range declared() {
		if f.MetricName == "" {
			continue
		}
		name, _ := nameOf(&f)
		m := otlptranslator.Metric{Name: name, Unit: f.Unit, Type: otlptranslator.MetricTypeMonotonicCounter}
		switch {
		case slices.Contains(histograms, f.MetricName):
			m.Type = otlptranslator.MetricTypeHistogram
		case f.Kind == metrics.KindGauge:
			m.Type = otlptranslator.MetricTypeGauge
		}
		if got, err := namer.Build(m); got != f.MetricName || err != nil {
			t.Errorf("%s with the unit %s becomes %s (%v), want %s", name, f.Unit, got, err, f.MetricName)
		}
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		figure metrics.Figure
		want   string
	}{
		{metrics.Figure{MetricName: "ratelimit_decisions_total", Unit: "{descriptor}"}, "ratelimit.decisions []"},
		{
			metrics.Figure{MetricName: "ratelimit_store_bytes", Unit: "By", Kind: metrics.KindGauge},
			"ratelimit.store.bytes []",
		},
		{
			metrics.Figure{MetricName: "ratelimit_decision_duration_seconds", Unit: "s", Histogram: new(metrics.Histogram)},
			"ratelimit.decision.duration []",
		},
		{
			metrics.Figure{StatName: "ratelimit.memcache.multiget.__code=success"},
			"ratelimit.memcache.multiget [{code success}]",
		},
		{metrics.Figure{StatName: "ratelimit.localcache.entryCount"}, "ratelimit.localcache.entry_count []"},
		{metrics.Figure{StatName: "ratelimit.go.gcCPUPercent"}, "ratelimit.go.gc_cpu_percent []"},
		{metrics.Figure{StatName: "ratelimit.grpc.cx_total"}, "ratelimit.grpc.cx []"},
		{metrics.Figure{StatName: "runtime.num_values"}, "ratelimit.runtime.num_values []"},
		{metrics.Figure{StatName: "ratelimit.resp.error.unknown-command"}, "ratelimit.resp.error.unknown_command []"},
	} {
		name, tags := nameOf(&tt.figure)
		var list []string
		for _, tag := range tags {
			list = append(list, "{"+string(tag.Key)+" "+tag.Value.AsString()+"}")
		}
		if got := name + " [" + strings.Join(list, " ") + "]"; got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

// Each kind of figure becomes the data of OpenTelemetry that means the same.
func TestMetricsOf(t *testing.T) {
	t.Parallel()
	var hits metrics.Sizes
	for _, n := range []int{1, 2, 3, 9000} {
		hits.Observe(n)
	}
	label := []string{"store", "redis_pool"}
	set := attribute.NewSet(attribute.String("store", "redis_pool"))
	got := metricsOf([]metrics.Figure{
		{MetricName: "ratelimit_store_dials_total", Help: "c.", Unit: "{connection}", Labels: label, Value: 7},
		// the same series again
		{MetricName: "ratelimit_store_dials_total", Help: "c.", Unit: "{connection}", Labels: label, Value: 8},
		{
			MetricName: "ratelimit_quota_unfairness_ratio", Help: "g.", Unit: "1", Kind: metrics.KindGauge, Value: 250,
			Divisor: 1000,
		},
		{MetricName: "ratelimit_store_batch_hits", Help: "h.", Unit: "{hit}", Labels: label, Histogram: &hits},
		{
			MetricName: "ratelimit_decisions_total", Help: "d.", Unit: "{descriptor}", Labels: []string{"rule", "a\xff"},
			Value: 1,
		},
		{StatName: "ratelimit.service.global_shadow_mode", Value: 1}, // without a help text
	}, time.Time{}, time.Time{})
	want := []metricdata.Metrics{
		{Name: "ratelimit.decisions", Description: "d.", Unit: "{descriptor}", Data: metricdata.Sum[int64]{
			Temporality: metricdata.CumulativeTemporality, IsMonotonic: true,
			DataPoints: []metricdata.DataPoint[int64]{{
				Attributes: attribute.NewSet(attribute.String("rule", "a\uFFFD")),
				Value:      1,
			}},
		}},
		{Name: "ratelimit.quota.unfairness", Description: "g.", Unit: "1", Data: metricdata.Gauge[float64]{
			DataPoints: []metricdata.DataPoint[float64]{{Value: 0.25}},
		}},
		{Name: "ratelimit.store.batch_hits", Description: "h.", Unit: "{hit}", Data: metricdata.Histogram[float64]{
			Temporality: metricdata.CumulativeTemporality,
			DataPoints: []metricdata.HistogramDataPoint[float64]{{
				Attributes: set, Count: 4, Sum: 9006,
				Bounds:       []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
				BucketCounts: []uint64{1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
			}},
		}},
		{Name: "ratelimit.store.dials", Description: "c.", Unit: "{connection}", Data: metricdata.Sum[int64]{
			Temporality: metricdata.CumulativeTemporality, IsMonotonic: true,
			DataPoints: []metricdata.DataPoint[int64]{{Attributes: set, Value: 7}},
		}},
	}
	if len(got) != len(want) {
		t.Fatalf("%d metrics: %+v", len(got), got)
	}
	for i, m := range got {
		metricdatatest.AssertEqual(t, want[i], m, metricdatatest.IgnoreTimestamp())
	}
}
