// Package metrics counts the decisions of the limiter. Each figure can have two names: the
// compatible one of envoyproxy/ratelimit, for existing dashboards, and a native Prometheus
// metric. The packages below this one send or show the figures.
package metrics

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend"
)

// Config is the configuration of a Registry.
type Config struct {
	// NearRatio is the share of a limit above which hits count as near the limit: with 0.8
	// and a limit of 10, the 9th and 10th. 0 is a valid ratio, not a default.
	NearRatio float32
	// MaxSeries bounds the names that contain text from clients. If there are more, the
	// least recently used name is evicted. Defaults to DefaultMaxSeries.
	MaxSeries int
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
}

// DefaultNearRatio is the Config.NearRatio that envoyproxy/ratelimit uses.
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
	series                    *seriesCache // names that contain text from clients
	requestLimits             ruleStats    // outcomes of limits that came with requests; their hits are in series
	timing                    atomic.Pointer[func(string, time.Duration)]

	sources sources

	reading sync.Mutex // guards stats
	stats   statsByKey
}

// sources are all figures except the counters of rules.
type sources struct {
	mu        sync.Mutex            // guards the fields below
	counters  map[string]*Counter   // by compatible name
	shared    []func() []Figure     // of Add
	native    []func() []Figure     // of AddNative
	latencies map[string]*Histogram // by protocol
	config    ConfigInfo
	good, bad uint64 // loads of the rules: accepted, refused
}

// ConfigInfo describes the rules in force.
type ConfigInfo struct {
	Hash    string    // of the names and contents of the files; empty before the first good load
	Version string    // from the management server; empty if rules come from files
	Loaded  time.Time // when they were loaded
	Partial bool      // set if a part of the load was refused; call ConfigRefused for that part
}

// New returns a Registry with all counters at 0.
func New(cfg Config) *Registry {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	most := cmp.Or(cfg.MaxSeries, DefaultMaxSeries)
	r := &Registry{
		nearRatio: cfg.NearRatio,
		now:       cfg.Now,
		names:     newNames(most),
		stats:     make(statsByKey),
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

// Counter returns the counter with that compatible name. The first call creates it. name
// must not contain text from clients, because counters are never deleted.
func (r *Registry) Counter(name string) *Counter {
	s := &r.sources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counters[name] == nil {
		s.counters[name] = new(Counter)
	}
	return s.counters[name]
}

// Add registers figures. Stats, Flush and Native call read each time, without holding a lock.
func (r *Registry) Add(read func() []Figure) {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	r.sources.shared = append(r.sources.shared, read)
}

// AddNative registers figures without a compatible name. Only Native calls read.
func (r *Registry) AddNative(read func() []Figure) {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	r.sources.native = append(r.sources.native, read)
}

// Latency returns the histogram of decision times of one protocol. The first call creates it.
func (r *Registry) Latency(protocol string) *Histogram {
	s := &r.sources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latencies[protocol] == nil {
		s.latencies[protocol] = new(Histogram)
	}
	return s.latencies[protocol]
}

// OnTiming sets the function that Timing calls, instead of an earlier one. observe must be
// fast and safe for concurrent use.
func (r *Registry) OnTiming(observe func(name string, d time.Duration)) { r.timing.Store(&observe) }

// Timing passes d to the function of OnTiming, if there is one.
func (r *Registry) Timing(name string, d time.Duration) {
	if observe := r.timing.Load(); observe != nil {
		(*observe)(name, d)
	}
}

// ConfigLoaded records that a load of the rules took effect. It counts the load as a success
// unless info.Partial is set.
func (r *Registry) ConfigLoaded(info ConfigInfo) {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	r.sources.config = info
	if !info.Partial {
		r.sources.good++
	}
}

// ConfigRefused counts a load of the rules that failed.
func (r *Registry) ConfigRefused() {
	r.sources.mu.Lock()
	defer r.sources.mu.Unlock()
	r.sources.bad++
}

// ownFigures returns the loads of the rules and the size of the registry.
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

// latencyFigures returns the decision times, and which rules are in force.
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

// decisionFigures returns the descriptors by rule and outcome, and the charges that the store
// did not answer. It leaves out figures that are 0.
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
	add(statsKey{rule: "(request)"}, &r.requestLimits)
	add(statsKey{}, &r.unknownDomains.stats)
	return list
}

// Native returns the figures that have a native metric, in no order. It leaves out the
// counters of rules, which Flush returns.
func (r *Registry) Native() []Figure {
	return slices.DeleteFunc(r.figures(true), func(f Figure) bool { return f.Metric == "" })
}

// Stats returns all figures that have a compatible name, sorted by it, zeros included. It
// adds up figures of the same name. A counter falls or disappears only if its name expires:
// 10 s after it was evicted and flushed, or an hour after its rule was removed.
func (r *Registry) Stats() []Stat { return r.read(false) }

// Flush is Stats for a sink that sends the figures. It leaves out counters of rules that are
// 0. An expired name is kept until a Flush contained it.
func (r *Registry) Flush() []Stat { return r.read(true) }

func (r *Registry) read(flush bool) []Stat {
	stats := Stats(r.figures(false))
	r.reading.Lock()
	now := r.now()
	r.stats.expire(r.names, now, math.MaxInt)
	stats = r.names.read(stats, now, flush)
	r.reading.Unlock()
	return sorted(stats)
}

// figures returns the registered counters and figures. native adds those of AddNative.
func (r *Registry) figures(native bool) (list []Figure) {
	r.sources.mu.Lock()
	for name, c := range r.sources.counters {
		list = append(list, Count(name, c.Value()))
	}
	reads := slices.Clone(r.sources.shared)
	if native {
		reads = append(reads, r.sources.native...)
	}
	r.sources.mu.Unlock()
	for _, read := range reads {
		list = append(list, read()...)
	}
	return list
}
