package prometheus

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Samples answers scrapes with what read adds, and nothing else: no figures of
// the process, and none that a mapping made. onWarn is told of scrapes that could
// not show everything.
func Samples(read func(add func(Sample)), onWarn func(error)) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(samples(read)) // the only one, so that nothing can be wrong with it
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            warner(onWarn),
		MaxRequestsInFlight: maxScrapes,
	})
}

// samples is a prometheus.Collector.
type samples func(add func(Sample))

// Describe says nothing: what there is changes.
func (samples) Describe(chan<- *prometheus.Desc) {}

// Collect shows everything.
func (read samples) Collect(out chan<- prometheus.Metric) {
	s := newScrape(nil)
	read(s.add)
	for i := range s.figures {
		out <- &s.figures[i]
	}
}
