package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
)

// Figure is one number for operators. It is declared once, with all its names:
//
//	metrics.Gauge("ratelimit.memory.keys", 12).Native("ratelimit_store_keys", "Counters held.", "store", "memory")
type Figure struct {
	// Stat is the compatible name, which statsd, JSON lines, /stats and the mapping of
	// statsd_exporter use. If it is empty, only Prometheus shows the figure.
	Stat string
	// Metric is the name of the native Prometheus metric. Empty: there is none.
	Metric string
	Help   string   // of Metric; all figures of one metric have the same text
	Labels []string // of Metric: name, value, name, value...
	Kind   Kind
	Value  int64
	// Divisor converts the unit of Value to that of Metric, which shows Value/Divisor.
	// Defaults to 1.
	Divisor int64
	// Histogram, if set, is shown by Metric instead of Value.
	Histogram Distribution
}

// Kind is the way in which a figure changes.
type Kind uint8

const (
	// KindCounter figures never decrease, except to 0 when the process restarts.
	KindCounter Kind = iota
	// KindGauge figures increase and decrease.
	KindGauge
)

// Distribution is a histogram. Snapshot returns the count and the sum of all numbers. buckets
// has, for each bound, the count of numbers that are not above it.
type Distribution interface {
	Snapshot() (count uint64, sum float64, buckets map[float64]uint64)
}

// Count returns a counter. stat is its compatible name, or empty.
func Count[N int | int64 | uint64](stat string, value N) Figure {
	return Figure{Stat: stat, Value: int64(value)}
}

// Gauge returns a gauge. stat is its compatible name, or empty.
func Gauge[N int | int64 | uint64](stat string, value N) Figure {
	return Figure{Stat: stat, Kind: KindGauge, Value: int64(value)}
}

// Spread returns a histogram, which only Prometheus shows.
func Spread(d Distribution) Figure { return Figure{Histogram: d} }

// Native returns f with a native metric. labels are pairs of a name and a value, as in
// f.Native("ratelimit_store_keys", "Counters held.", "store", "memory").
func (f Figure) Native(metric, help string, labels ...string) Figure {
	f.Metric, f.Help, f.Labels = metric, help, labels
	return f
}

// Float returns the value of the native metric: Value divided by Divisor.
func (f *Figure) Float() float64 { return float64(f.Value) / float64(cmp.Or(f.Divisor, 1)) }

// Stat is the value of one figure under its compatible name.
type Stat struct {
	Name  string
	Kind  Kind
	Value int64
}

// Stats returns the figures that have a compatible name, sorted by it. It adds up figures of
// the same name.
func Stats(figures []Figure) []Stat {
	var stats []Stat
	for i := range figures {
		if f := &figures[i]; f.Stat != "" {
			stats = append(stats, Stat{f.Stat, f.Kind, f.Value})
		}
	}
	return sorted(stats)
}

// sorted sorts stats by name and adds up those of the same name. The sum has the kind of the
// last one.
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

// Counter is a count that only increases. The zero value is 0. It is safe for concurrent use.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) { c.n.Add(n) }

// Value returns the current count.
func (c *Counter) Value() uint64 { return c.n.Load() }
