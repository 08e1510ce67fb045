// Package metrics counts what the limiter reports, under the names that
// envoyproxy/ratelimit uses, so that its dashboards keep working, and under native
// names for Prometheus. The packages below send the figures on or show them.
package metrics

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend"
)

// Config says how a Registry counts.
type Config struct {
	// NearRatio is the share of a limit from which hits count as near it, 0 included.
	// The usual one is DefaultNearRatio.
	NearRatio float32
	// MaxSeries is the most names that clients can cause: rules that show values of the
	// request, and limits that come with requests. Beyond it the least recently used
	// name makes room. Defaults to DefaultMaxSeries.
	MaxSeries int
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
}

// DefaultNearRatio is the ratio of envoyproxy/ratelimit.
const DefaultNearRatio = 0.8

// DefaultMaxSeries is the default of Config.MaxSeries.
const DefaultMaxSeries = 10_000

// Registry is a limiter.Recorder that holds all counters of the process.
type Registry struct {
	nearRatio float32
	now       func() time.Time

	globalShadow, storeErrors *Counter
	unknownDomains            *unknownDomains
	table                     PerSet[statsTable]
	names                     *names
	series                    *seriesCache // names that clients chose
	onRequest                 ruleStats    // of limits that came with requests; their hits are in series
	timing                    atomic.Pointer[func(string, time.Duration)]

	sources sources

	reading sync.Mutex // guards stats: one reading or Use at a time
	stats   statsByName
}

// sources are where a reading finds figures, except the counters of rules.
type sources struct {
	mu        sync.Mutex // guards what follows
	counters  map[string]*Counter
	shared    []func() []Figure
	native    []func() []Figure
	latencies map[string]*Histogram // by protocol
	config    ConfigInfo
	good, bad uint64 // loads of the rules
}

// ConfigInfo describes the rules in force.
type ConfigInfo struct {
	Hash    string    // of names and contents; empty before the first good load
	Version string    // the management server's; empty with files
	Loaded  time.Time // of the last load that took effect
	Partial bool      // a part of it was refused, which ConfigRefused counts
}

// New returns a registry with all counters at zero.
func New(cfg Config) *Registry {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	most := cmp.Or(cfg.MaxSeries, DefaultMaxSeries)
	r := &Registry{
		nearRatio: cfg.NearRatio,
		now:       cfg.Now,
		names:     newNames(most),
		stats:     make(statsByName),
		sources:   sources{counters: make(map[string]*Counter), latencies: make(map[string]*Histogram)},
	}
	r.series = newSeriesCache(most, r.names)
	r.unknownDomains = &unknownDomains{open: r.Counter, byName: make(map[string]*Counter)}
	r.globalShadow = r.Counter("ratelimit.service.global_shadow_mode")
	r.storeErrors = r.Counter("ratelimit.service.call.should_rate_limit.redis_error")
	r.Add(r.ownFigures)
	r.AddNative(r.latencyFigures)
	r.AddNative(r.decisionFigures)
	return r
}

// Counter returns the counter with that compatible name, made on first use. Names come
// from the program, never from clients.
func (r *Registry) Counter(name string) *Counter {
	s := &r.sources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counters[name] == nil {
		s.counters[name] = new(Counter)
	}
	return s.counters[name]
}

// Add adds figures that are kept elsewhere. Each reading calls read, outside of locks.
func (r *Registry) Add(read func() []Figure) {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	r.sources.shared = append(r.sources.shared, read)
}

// AddNative adds figures that only Prometheus has, and that only a scrape reads.
func (r *Registry) AddNative(read func() []Figure) {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	r.sources.native = append(r.sources.native, read)
}

// Latency returns the histogram of decisions over one protocol, made on first use.
func (r *Registry) Latency(protocol string) *Histogram {
	s := &r.sources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latencies[protocol] == nil {
		s.latencies[protocol] = new(Histogram)
	}
	return s.latencies[protocol]
}

// OnTiming has tell called with each timing from now on. It must be fast and safe for
// concurrent use. A second call replaces the first.
func (r *Registry) OnTiming(tell func(name string, d time.Duration)) { r.timing.Store(&tell) }

// Timing gives d to the function of OnTiming, if there is one.
func (r *Registry) Timing(name string, d time.Duration) {
	if tell := r.timing.Load(); tell != nil {
		(*tell)(name, d)
	}
}

// ConfigLoaded notes a load of the rules that took effect, and counts it as good unless
// a part of it was refused.
func (r *Registry) ConfigLoaded(info ConfigInfo) {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	r.sources.config = info
	if !info.Partial {
		r.sources.good++
	}
}

// ConfigRefused counts a load of the rules that was refused.
func (r *Registry) ConfigRefused() {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	r.sources.bad++
}

// ownFigures are the loads of rules and the state of the registry itself.
func (r *Registry) ownFigures() []Figure {
	const loads, loadsHelp = "ratelimit_config_loads_total", "Loads of the rules."
	r.sources.mu.Lock()
	good, bad := r.sources.good, r.sources.bad
	r.sources.mu.Unlock()
	return []Figure{
		Count("ratelimit.service.config_load_success", good).Native(loads, loadsHelp, "result", "success"),
		Count("ratelimit.service.config_load_error", bad).Native(loads, loadsHelp, "result", "error"),
		Gauge("ratelimit.stats.series", r.series.len()).Native("ratelimit_series", "Names of figures that clients caused, which are bounded."),
		Count("ratelimit.stats.series_evicted", r.series.evicted.Value()).
			Native("ratelimit_series_evicted_total", "Names of figures that were forgotten to make room for others."),
		Count("ratelimit.stats.hits_lost", r.names.lost.Value()),
	}
}

// latencyFigures are the histograms of decisions, and the rules in force.
func (r *Registry) latencyFigures() (list []Figure) {
	r.sources.mu.Lock()
	latencies, info := maps.Clone(r.sources.latencies), r.sources.config
	r.sources.mu.Unlock()
	for protocol, h := range latencies {
		list = append(list, Spread(h).Native("ratelimit_decision_duration_seconds", "How long requests took, without the network.", "protocol", protocol))
	}
	if info.Loaded.IsZero() {
		return list
	}
	loaded := Gauge("", info.Loaded.UnixMicro()).Native("ratelimit_config_last_success_timestamp_seconds", "When the rules in force were loaded.")
	loaded.Divisor = int64(time.Second / time.Microsecond)
	labels := []string{"hash", info.Hash}
	if info.Version != "" {
		labels = append(labels, "version", info.Version)
	}
	return append(list, loaded, Gauge("", 1).Native("ratelimit_config_info", "The rules in force: a hash of names and contents, and the management server's version.", labels...))
}

// decisionFigures are the decisions by rule and outcome, and the charges that the store
// did not answer. Those that are zero are missing.
func (r *Registry) decisionFigures() (list []Figure) {
	add := func(key statsKey, s *ruleStats) {
		for o := range s.outcomes {
			if n := s.outcomes[o].Value(); n > 0 {
				list = append(list, Count("", n).Native("ratelimit_decisions_total", "Descriptors by what became of them.",
					"domain", key.domain, "rule", key.rule, "outcome", Outcome(o).String()))
			}
		}
		u := s.unanswered.Load()
		for f := backend.Fallback(0); u != nil && int(f) < len(u); f++ {
			if n := u[f].Value(); n > 0 {
				list = append(list, Count("", n).Native("ratelimit_unanswered_total", "Charges that the store did not answer, by what was done instead.",
					"domain", key.domain, "rule", key.rule, "instead", f.String()))
			}
		}
	}
	r.reading.Lock()
	defer r.reading.Unlock()
	for key, s := range r.stats {
		add(key, s)
	}
	add(statsKey{rule: "(request)"}, &r.onRequest)
	add(statsKey{}, &r.unknownDomains.stats)
	return list
}

// Native returns the figures that have a native metric, in no order. The counters of
// rules are not among them: Flush has these.
func (r *Registry) Native() (list []Figure) {
	r.sources.mu.Lock()
	reads := append(slices.Clone(r.sources.shared), r.sources.native...)
	r.sources.mu.Unlock()
	for _, read := range reads {
		for _, f := range read() {
			if f.Metric != "" {
				list = append(list, f)
			}
		}
	}
	return list
}

// Stats returns all figures that have a compatible name, sorted by it, zeros included.
// Figures of one name are added up. A counter falls or vanishes only when its name goes:
// names that callers chose 10 s after they made room, rules an hour after their removal.
func (r *Registry) Stats() []Stat { return r.read(false) }

// Flush is Stats for a sink that sends them on: counters of rules that are zero are
// missing, and names that go stay until a Flush had them.
func (r *Registry) Flush() []Stat { return r.read(true) }

func (r *Registry) read(flush bool) []Stat {
	var stats []Stat
	r.sources.mu.Lock()
	for name, c := range r.sources.counters {
		stats = append(stats, Stat{name, KindCounter, int64(c.Value())})
	}
	reads := slices.Clone(r.sources.shared)
	r.sources.mu.Unlock()
	for _, read := range reads {
		for _, f := range read() {
			if f.Stat != "" {
				stats = append(stats, Stat{f.Stat, f.Kind, f.Value})
			}
		}
	}
	r.reading.Lock()
	now := r.now()
	r.stats.expire(r.names, now)
	stats = r.names.read(stats, now, flush)
	r.reading.Unlock()
	return sorted(stats)
}
