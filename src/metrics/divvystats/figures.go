package divvystats

import (
	"slices"
	"strings"

	"ratelimit/src/metrics"
	"ratelimit/src/metrics/prometheus"
)

// Port is what the port of divvy's protocol says of itself.
type Port struct {
	Connections int
	Errors      map[string]uint64 // ERR replies by code
}

// Timer is the name of the timing of each answered HIT in statsd, behind the
// prefix.
const Timer = "hit"

// Stats are all figures for statsd, sorted by name, with prefix before each.
func (c *Counts) Stats(prefix string, port Port) []metrics.Stat {
	stats := []metrics.Stat{{Name: prefix + "connections", Kind: metrics.KindGauge, Value: int64(port.Connections)}}
	for code, n := range port.Errors {
		stats = append(stats, metrics.Stat{Name: prefix + "error." + code, Value: int64(n)})
	}
	var all [statuses]int64
	c.each(func(label string, l *counts) {
		for s := range statuses {
			n := int64(l.hits[s].Value())
			all[s] += n
			if label != "" && l.has[s] {
				stats = append(stats, metrics.Stat{Name: prefix + "hit." + statusNames[s] + "." + label, Value: n})
			}
		}
	})
	for s, n := range all {
		stats = append(stats, metrics.Stat{Name: prefix + "hit." + statusNames[s], Value: n})
	}
	slices.SortFunc(stats, func(a, b metrics.Stat) int { return strings.Compare(a.Name, b.Name) })
	return stats
}

// Samples adds all figures for Prometheus. took is how long answered HITs took.
func (c *Counts) Samples(port Port, took *metrics.Histogram, add func(prometheus.Sample)) {
	add(prometheus.Sample{
		Name: "divvy_tcp_connections_total", Help: "Connections that are open.",
		Kind: metrics.KindGauge, Value: float64(port.Connections),
	})
	add(prometheus.Sample{
		Name: "divvy_hit_duration_seconds", Help: "How long it took to decide HITs that were answered OK.", Histogram: buckets{took},
	})
	for code, n := range port.Errors {
		add(prometheus.Sample{Name: "divvy_errors_total", Help: "ERR replies.", Labels: []string{"code", code}, Value: float64(n)})
	}
	c.each(func(label string, l *counts) {
		for s := range statuses {
			if l.has[s] {
				add(prometheus.Sample{
					Name: "divvy_hits_total", Help: "HITs by rule, each that a HIT met: canaries, and the one that decided.",
					Labels: []string{"status", statusNames[s], "rule_label", label}, Value: float64(l.hits[s].Value()),
				})
			}
		}
	})
}

// buckets shows those buckets of a histogram that divvy has.
type buckets struct{ *metrics.Histogram }

var bounds = [...]float64{0.001, 0.002, 0.005, 0.01, 0.1, 0.5}

func (b buckets) Snapshot() (count uint64, sum float64, few map[float64]uint64) {
	count, sum, all := b.Histogram.Snapshot()
	few = make(map[float64]uint64, len(bounds))
	for _, bound := range bounds {
		few[bound] = all[bound]
	}
	return count, sum, few
}
