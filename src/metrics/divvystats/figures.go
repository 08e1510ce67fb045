package divvystats

import (
	"ratelimit/src/metrics"
)

// Port is what the port of divvy's protocol says of itself.
type Port struct {
	Connections int
	Errors      map[string]uint64 // ERR replies by code
}

// Timer is the name of the timing of each answered HIT in statsd, behind the prefix.
const Timer = "hit"

// Figures returns all figures, with prefix before their names in statsd. took is how
// long answered HITs took; nil: not measured.
func (c *Counts) Figures(prefix string, port Port, took *metrics.Histogram) []metrics.Figure {
	list := []metrics.Figure{metrics.Gauge(prefix+"connections", port.Connections).Native("divvy_tcp_connections_total", "Connections that are open.")}
	if took != nil {
		list = append(list, metrics.Spread(buckets{took}).Native("divvy_hit_duration_seconds", "How long it took to decide HITs that were answered OK."))
	}
	for code, n := range port.Errors {
		list = append(list, metrics.Count(prefix+"error."+code, n).Native("divvy_errors_total", "ERR replies.", "code", code))
	}
	var all [statuses]uint64
	c.each(func(label string, l *counts) {
		for s := range statuses {
			n := l.hits[s].Value()
			all[s] += n
			if !l.has[s] {
				continue
			}
			stat := ""
			if label != "" {
				stat = prefix + "hit." + statusNames[s] + "." + label
			}
			list = append(list, metrics.Count(stat, n).Native("divvy_hits_total", "HITs by rule, each that a HIT met: canaries, and the one that decided.",
				"status", statusNames[s], "rule_label", label))
		}
	})
	for s, n := range all {
		list = append(list, metrics.Count(prefix+"hit."+statusNames[s], n))
	}
	return list
}

// buckets shows only the buckets of a histogram that divvy has.
type buckets struct{ *metrics.Histogram }

func (b buckets) Snapshot() (count uint64, sum float64, few map[float64]uint64) {
	count, sum, all := b.Histogram.Snapshot()
	few = make(map[float64]uint64)
	for _, bound := range []float64{0.001, 0.002, 0.005, 0.01, 0.1, 0.5} {
		few[bound] = all[bound]
	}
	return count, sum, few
}
