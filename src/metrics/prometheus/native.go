package prometheus

import (
	"runtime"
	"time"

	"ratelimit/src/metrics"
)

// native adds the figures that have names of their own.
func (e *Exporter) native(stats []metrics.Stat, add func(Sample)) {
	r := e.cfg.Registry
	gauge := func(name, help string, value float64, labels ...string) {
		add(Sample{Name: "ratelimit_" + name, Help: help, Labels: labels, Kind: metrics.KindGauge, Value: value})
	}
	count := func(name, help string, value float64, labels ...string) {
		add(Sample{Name: "ratelimit_" + name, Help: help, Labels: labels, Value: value})
	}

	type decision struct {
		domain, rule string
		outcome      metrics.Outcome
	}
	decisions := make(map[decision]uint64)
	for _, d := range r.Decisions() {
		decisions[decision{d.Domain, d.Rule, d.Outcome}] += d.Count
	}
	for d, n := range decisions {
		count("decisions_total", "Descriptors by what became of them.", float64(n),
			"domain", d.domain, "rule", d.rule, "outcome", d.outcome.String())
	}
	type without struct{ domain, rule, instead string }
	unanswered := make(map[without]uint64)
	for _, u := range r.Unanswered() {
		unanswered[without{u.Domain, u.Rule, u.Fallback}] += u.Count
	}
	for u, n := range unanswered {
		count("unanswered_total", "Charges that the store did not answer, by what was done instead.", float64(n),
			"domain", u.domain, "rule", u.rule, "instead", u.instead)
	}
	for protocol, h := range r.Latencies() {
		add(Sample{
			Name: "ratelimit_decision_duration_seconds", Help: "How long requests took, without the network.",
			Labels: []string{"protocol", protocol}, Histogram: h,
		})
	}

	const loads = "Loads of the rules."
	for _, s := range stats {
		switch s.Name {
		case "ratelimit.service.config_load_success":
			count("config_loads_total", loads, float64(s.Value), "result", "success")
		case "ratelimit.service.config_load_error":
			count("config_loads_total", loads, float64(s.Value), "result", "error")
		case "ratelimit.stats.series":
			gauge("series", "Names of figures that clients caused, which are bounded.", float64(s.Value))
		case "ratelimit.stats.series_evicted":
			count("series_evicted_total", "Names of figures that were forgotten to make room for others.", float64(s.Value))
		}
	}
	if info := r.ConfigInfo(); !info.Loaded.IsZero() {
		gauge("config_last_success_timestamp_seconds", "When the rules in force were loaded.", float64(info.Loaded.UnixMicro())/float64(time.Second/time.Microsecond))
		labels := []string{"hash", info.Hash}
		if info.Version != "" {
			labels = append(labels, "version", info.Version)
		}
		gauge("config_info", "The rules in force: a hash of names and contents, and the management server's version.", 1, labels...)
	}
	gauge("build_info", "This program.", 1, "version", e.cfg.Version, "commit", e.cfg.Commit, "go", runtime.Version())
	count("mapping_timings_dropped_total", "Timings with too many different names.", float64(e.dropped.Load()))
}
