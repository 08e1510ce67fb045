package metrics

import (
	_ "embed"
	"math"
	"reflect"
	"strings"
	"sync"
	"time"
)

//go:embed figures.txt
var figuresText string

// figureLine is one line of figures.txt.
type figureLine struct {
	valuePath string // leads from the source of a part to the value.
	template  Figure // names with $ and *, and no value.
}

// figureLines are the lines of figures.txt by part.
var figureLines = sync.OnceValue(func() map[string][]figureLine {
	lines, part := make(map[string][]figureLine), ""
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
			Help: strings.Join(columns[5:], " "),
		}
		if columns[0] == "gauge" {
			f.Kind = KindGauge
		}
		metric, labels, _ := strings.Cut(strings.Trim(columns[3], "-}"), "{")
		f.MetricName, f.Labels = metric, strings.FieldsFunc(labels, func(r rune) bool { return r == '=' || r == ',' })
		lines[part] = append(lines[part], figureLine{columns[1], f})
	}
	return lines
})

// Declarations returns a figure without a value for each line of figures.txt, by part. Its names contain $ and *.
func Declarations() map[string][]Figure {
	list := make(map[string][]Figure)
	for part, lines := range figureLines() {
		for _, line := range lines {
			list[part] = append(list[part], line.template)
		}
	}
	return list
}

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
	for _, line := range figureLines()[part] {
		v := followPath(all, line.valuePath)
		if v.Kind() != reflect.Map {
			list = append(list, line.figureOf(all, name, "", v))
			continue
		}
		for key, n := range v.Seq2() {
			list = append(list, line.figureOf(all, name, key.String(), n))
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

// figureOf returns the figure with the value v. It leaves out labels whose path leads to an empty text.
func (l *figureLine) figureOf(all reflect.Value, name, key string, v reflect.Value) Figure {
	f, names := l.template, strings.NewReplacer("$", name, "*", key)
	f.StatName = names.Replace(f.StatName)
	f.Labels = nil
	for i := 0; i < len(l.template.Labels); i += 2 {
		value := names.Replace(l.template.Labels[i+1])
		if path, isPath := strings.CutPrefix(value, "."); isPath {
			value = followPath(all, path).String()
		}
		label, isOptional := strings.CutSuffix(l.template.Labels[i], "?")
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
