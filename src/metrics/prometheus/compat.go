package prometheus

import (
	"net/http"

	"ratelimit/src/metrics"
)

// Sample is one native figure. Samples of one name have one Help and one Kind.
type Sample struct {
	Name   string // whole: ratelimit_store_keys
	Help   string
	Labels []string // name, value, name, value...
	Kind   metrics.Kind
	Value  float64
	// Histogram, if set, is shown instead of Value.
	Histogram metrics.Distribution
}

// Figures returns a source of figures from one of samples.
func Figures(read func(add func(Sample))) func() []metrics.Figure {
	return func() (list []metrics.Figure) {
		read(func(s Sample) {
			list = append(list, metrics.Figure{Metric: s.Name, Help: s.Help, Labels: s.Labels, Kind: s.Kind, Value: int64(s.Value), Histogram: s.Histogram})
		})
		return list
	}
}

// Samples answers scrapes with what read adds.
func Samples(read func(add func(Sample)), onWarn func(error)) http.Handler {
	return Handler(Figures(read), onWarn)
}
