package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
)

// Figure is one number for operators. figures.txt declares the names of most figures.
type Figure struct {
	// StatName is the compatible name, which statsd, JSON lines, /stats and the mapping of
	// statsd_exporter use. If it is empty, only Prometheus shows the figure.
	StatName string
	// MetricName is the name of the native Prometheus metric. Empty: there is none.
	MetricName string
	Help       string // says what the figure is. It is the same for all figures with the same MetricName.
	// Unit is the unit of the shown value, in the notation of UCUM: s, By, 1 for a share, {hit} for a number of hits.
	// Empty: it has none, as a switch.
	Unit   string
	Labels []string // of MetricName are pairs: name, value, name, value.
	Kind   Kind
	Value  int64
	// Divisor converts the unit of Value to the unit that is shown. Defaults to 1.
	Divisor int64
	// Histogram, if set, is shown by MetricName instead of Value.
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

// ScaledValue returns Value divided by Divisor.
func (f *Figure) ScaledValue() float64 { return float64(f.Value) / float64(cmp.Or(f.Divisor, 1)) }

// Stat is the value of one figure under its compatible name.
type Stat struct {
	Name  string
	Kind  Kind
	Value int64
}

// Stats returns the figures that have a compatible name, sorted by it. It adds up figures of the same name.
func Stats(figures []Figure) []Stat {
	var stats []Stat
	for i := range figures {
		if f := &figures[i]; f.StatName != "" {
			stats = append(stats, Stat{f.StatName, f.Kind, f.Value / cmp.Or(f.Divisor, 1)})
		}
	}
	return sortAndAddUp(stats)
}

// sortAndAddUp sorts stats by name and adds up those of the same name. The sum has the kind of the last one.
func sortAndAddUp(stats []Stat) []Stat {
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

// Counter is a count that only increases.
type Counter = atomic.Uint64
