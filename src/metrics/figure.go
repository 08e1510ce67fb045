package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
)

// Figure is one number that operators see. It is declared once, with all its names:
//
//	metrics.Gauge("ratelimit.memory.keys", 12).Native("ratelimit_store_keys", "Counters held.", "store", "memory")
type Figure struct {
	// Stat is the compatible name, for statsd, lines of JSON, /stats and the mapping of
	// statsd_exporter. Empty: only Prometheus has the figure.
	Stat string
	// Metric is the name of the native Prometheus metric. Empty: there is none.
	Metric string
	Help   string   // of the metric; figures of one metric have the same
	Labels []string // of the metric: name, value, name, value...
	Kind   Kind
	Value  int64
	// Divisor makes units of Value into those of the metric, which shows
	// Value/Divisor. Defaults to 1.
	Divisor int64
	// Histogram, if set, is what the metric shows instead of Value.
	Histogram Distribution
}

// Kind says how a figure changes.
type Kind uint8

const (
	// KindCounter figures only grow, except that they start again from 0 with the process.
	KindCounter Kind = iota
	// KindGauge figures rise and fall.
	KindGauge
)

// Distribution is a histogram of numbers: how many there are, their sum, and how many
// are at most as large as each bound.
type Distribution interface {
	Snapshot() (count uint64, sum float64, buckets map[float64]uint64)
}

// Count returns a counter with the compatible name stat; empty: none.
func Count[N int | int64 | uint64](stat string, value N) Figure {
	return Figure{Stat: stat, Value: int64(value)}
}

// Gauge returns a gauge with the compatible name stat; empty: none.
func Gauge[N int | int64 | uint64](stat string, value N) Figure {
	return Figure{Stat: stat, Kind: KindGauge, Value: int64(value)}
}

// Spread returns a figure that shows a histogram in Prometheus.
func Spread(d Distribution) Figure { return Figure{Histogram: d} }

// Native returns f with the native metric of that name; labels are name, value, name,
// value and so on.
func (f Figure) Native(metric, help string, labels ...string) Figure {
	f.Metric, f.Help, f.Labels = metric, help, labels
	return f
}

// Float returns the value of the native metric.
func (f *Figure) Float() float64 { return float64(f.Value) / float64(cmp.Or(f.Divisor, 1)) }

// Stat is the value of one figure under its compatible name.
type Stat struct {
	Name  string
	Kind  Kind
	Value int64
}

// Stats returns the figures that have a compatible name, sorted by it.
func Stats(figures []Figure) []Stat {
	var stats []Stat
	for i := range figures {
		if f := &figures[i]; f.Stat != "" {
			stats = append(stats, Stat{f.Stat, f.Kind, f.Value})
		}
	}
	return sorted(stats)
}

// sorted sorts stats by name and adds up those of one name. The kind is that of the
// last.
func sorted(stats []Stat) []Stat {
	slices.SortStableFunc(stats, func(a, b Stat) int { return strings.Compare(a.Name, b.Name) })
	kept := stats[:0]
	for _, s := range stats {
		if n := len(kept) - 1; n >= 0 && kept[n].Name == s.Name {
			s.Value += kept[n].Value
			kept[n] = s
			continue
		}
		kept = append(kept, s)
	}
	return kept
}

// Counter only grows. It is safe for concurrent use.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) { c.n.Add(n) }

// Value returns the count so far.
func (c *Counter) Value() uint64 { return c.n.Load() }
