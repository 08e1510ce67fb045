package metrics

import (
	"cmp"
	_ "embed"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Figure is one number for operators. figures.txt declares the names of most figures.
type Figure struct {
	// StatName is the compatible name, which statsd, JSON lines, /stats and the mapping of
	// statsd_exporter use. If it is empty, only Prometheus shows the figure.
	StatName   string
	MetricName string // the name of the native Prometheus metric. Empty: there is none.
	Help       string // says what the figure is. It is the same for all figures with the same MetricName.
	// Unit is the unit of the shown value, in the notation of UCUM: s, By, 1 for a share, {hit} for a number of hits.
	// Empty: it has none, as a switch.
	Unit      string
	Labels    []string // of MetricName are pairs: name, value, name, value.
	Kind      Kind
	Value     int64
	Divisor   int64        // converts the unit of Value to the unit that is shown. Defaults to 1.
	Histogram Distribution // if set, is shown by MetricName instead of Value.

	valuePath string // leads from the source of a part of figures.txt to the value.
}

// Kind is the way in which a figure changes.
type Kind uint8

const (
	KindCounter Kind = iota // never decreases, except to 0 when the process restarts.
	KindGauge               // increases and decreases.
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

//go:embed figures.txt
var figuresText string

// declarations are the lines of figures.txt by part.
var declarations = sync.OnceValue(func() map[string][]Figure {
	lines, part := make(map[string][]Figure), ""
	for line := range strings.Lines(figuresText) {
		if name, isPart := strings.CutPrefix(strings.TrimSuffix(line, "]\n"), "["); isPart {
			part = name
		}
		columns := strings.Fields(line)
		if len(columns) < 5 || columns[0] == "#" {
			continue
		}
		f := Figure{
			StatName: strings.Trim(columns[2], "-"), Unit: strings.Trim(columns[4], "-"),
			Help: strings.Join(columns[5:], " "), valuePath: columns[1],
		}
		if columns[0] == "gauge" {
			f.Kind = KindGauge
		}
		metric, labels, _ := strings.Cut(strings.Trim(columns[3], "-}"), "{")
		f.MetricName, f.Labels = metric, strings.FieldsFunc(labels, func(r rune) bool { return r == '=' || r == ',' })
		lines[part] = append(lines[part], f)
	}
	return lines
})

// Declarations returns a figure without a value for each line of figures.txt, by part. Its names contain $ and *.
// Callers must not change them.
func Declarations() map[string][]Figure { return declarations() }

// Figures returns the figures that figures.txt declares for part. name replaces $ in their names. source has the fields
// and methods that the table names, or is a function that returns such a value. Their values are numbers, switches,
// instants, durations, fractions, distributions, counters, or maps with a number for each key. There are no figures
// while source returns a nil pointer.
func Figures(part, name string, source any) (list []Figure) {
	all := reflect.ValueOf(source)
	if all.Kind() == reflect.Func {
		all = all.Call(nil)[0]
	}
	if all.Kind() == reflect.Pointer && all.IsNil() {
		return nil
	}
	for _, line := range declarations()[part] {
		v := followPath(all, line.valuePath)
		if v.Kind() != reflect.Map {
			list = append(list, line.withValue(all, name, "", v))
			continue
		}
		for key, n := range v.Seq2() {
			list = append(list, line.withValue(all, name, key.String(), n))
		}
	}
	return list
}

// followPath returns what path leads to from v. The path "Stats.OpenConnections" is the field Open of the result of the
// method Stats; "-" is v itself.
func followPath(v reflect.Value, path string) reflect.Value {
	if path == "-" {
		return v
	}
	for name := range strings.SplitSeq(path, ".") {
		if method := v.MethodByName(name); method.IsValid() {
			v = method.Call(nil)[0]
		} else {
			if v = reflect.Indirect(v).FieldByName(name); !v.IsValid() {
				panic("figures.txt: no value has the path " + path)
			}
		}
	}
	return v
}

// fractionDivisor is the Divisor of numbers that need not be whole.
const fractionDivisor = 1000

// withValue returns the declared figure f with the value v. It leaves out labels whose path leads to an empty text.
func (f Figure) withValue(all reflect.Value, name, key string, v reflect.Value) Figure {
	names, declared := strings.NewReplacer("$", name, "*", key), f.Labels
	f.StatName, f.Labels = names.Replace(f.StatName), nil
	for i := 0; i < len(declared); i += 2 {
		value := names.Replace(declared[i+1])
		if path, isPath := strings.CutPrefix(value, "."); isPath {
			value = followPath(all, path).String()
		}
		label, isOptional := strings.CutSuffix(declared[i], "?")
		if value != "" || !isOptional {
			f.Labels = append(f.Labels, label, value)
		}
	}
	if v.Kind() == reflect.Struct && v.NumMethod() == 0 && v.CanAddr() {
		v = v.Addr() // Counters and histograms have their methods with a pointer.
	}
	switch value := v.Interface().(type) {
	case interface{ Load() int64 }:
		f.Value = value.Load()
	case *Counter:
		f.Value = int64(value.Load())
	case Distribution:
		f.Histogram = value
	case time.Time:
		f.Value, f.Divisor = value.UnixMicro(), int64(time.Second/time.Microsecond)
	case time.Duration:
		f.Value, f.Divisor = value.Microseconds(), int64(time.Second/time.Microsecond)
	case float64:
		f.Value, f.Divisor = int64(math.Round(min(value, math.MaxInt64/fractionDivisor-1)*fractionDivisor)), fractionDivisor
	case bool:
		if value {
			f.Value = 1
		}
	default:
		if v.CanUint() {
			f.Value = int64(v.Uint())
		} else {
			f.Value = v.Int()
		}
	}
	return f
}
