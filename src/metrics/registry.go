// Package metrics counts what the limiter reports, under the names that
// envoyproxy/ratelimit uses, so that dashboards stay as they are. Exporters
// read it; see the packages below.
package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Config says how a Registry counts.
type Config struct {
	// NearRatio is the share of a limit from which hits count as near it. It is
	// taken as it is, 0 included; DefaultNearRatio is the usual one.
	NearRatio float32
	// MaxSeries caps the names that clients can cause: rules that show values
	// of the request, and limits that come with requests. Beyond it the least recently used are forgotten. Defaults to 10,000.
	MaxSeries int
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
}

// DefaultNearRatio is envoyproxy/ratelimit's.
const DefaultNearRatio = 0.8

// DefaultMaxSeries is the cap when none is asked for.
const DefaultMaxSeries = 10_000

// Counter only grows. It is safe for concurrent use.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) { c.n.Add(n) }

// Value is the count so far.
func (c *Counter) Value() uint64 { return c.n.Load() }

// Kind tells what may be done with a figure.
type Kind uint8

const (
	// KindCounter figures only grow, but for those that were forgotten.
	KindCounter Kind = iota
	// KindGauge figures are as they are now.
	KindGauge
)

// Stat is one figure with its name.
type Stat struct {
	Name  string
	Kind  Kind
	Value int64
}

// Registry is a limiter.Recorder that holds all counters of the process.
type Registry struct {
	nearRatio      float32
	now            func() time.Time
	rules          atomic.Pointer[ruleTable]
	series         *seriesCache // names that clients chose
	retired        *retired
	globalShadow   *Counter
	storeErrors    *Counter
	configGood     *Counter
	configBad      *Counter
	unknown        Counter // descriptors of unknown domains, all together
	unknownDomains *unknownDomains
	onRequest      ruleStats // of limits that came with requests; its hits are in series
	timing         atomic.Pointer[func(string, time.Duration)]

	reading sync.Mutex // one Stats, Flush or Use at a time

	mu        sync.Mutex
	counters  map[string]*Counter // names that the program chose
	sources   []func(func(Stat))
	latencies map[string]*Histogram
	config    ConfigInfo
}

// ConfigInfo is what is known of the rules in force.
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
	gone := newRetired(most)
	r := &Registry{
		nearRatio:      cfg.NearRatio,
		now:            cfg.Now,
		series:         newSeriesCache(most, gone),
		retired:        gone,
		unknownDomains: newUnknownDomains(),
		counters:       make(map[string]*Counter),
		latencies:      make(map[string]*Histogram),
	}
	r.globalShadow = r.Counter("ratelimit.service.global_shadow_mode")
	r.storeErrors = r.Counter("ratelimit.service.call.should_rate_limit.redis_error")
	r.configGood = r.Counter("ratelimit.service.config_load_success")
	r.configBad = r.Counter("ratelimit.service.config_load_error")
	r.Source(func(add func(Stat)) {
		add(Stat{"ratelimit.stats.series", KindGauge, int64(r.series.len())})
		add(Stat{"ratelimit.stats.series_evicted", KindCounter, int64(gone.evicted.Value())})
		add(Stat{"ratelimit.stats.hits_lost", KindCounter, int64(gone.lost.Value())})
	})
	return r
}

// Counter is the counter of that name, made on first use. Names come from the
// program, never from clients.
func (r *Registry) Counter(name string) *Counter {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counters[name]
	if c == nil {
		c = new(Counter)
		r.counters[name] = c
	}
	return c
}

// Source has read called for each Stats, to add figures that are kept
// elsewhere.
func (r *Registry) Source(read func(add func(Stat))) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = append(r.sources, read)
}

// Latency is the histogram of decisions over one protocol, made on first use.
func (r *Registry) Latency(protocol string) *Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.latencies[protocol]
	if h == nil {
		h = new(Histogram)
		r.latencies[protocol] = h
	}
	return h
}

// Latencies are all histograms by protocol.
func (r *Registry) Latencies() map[string]*Histogram {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]*Histogram, len(r.latencies))
	for protocol, h := range r.latencies {
		all[protocol] = h
	}
	return all
}

// OnTiming has tell called with each timing from now on. It must be fast and
// safe for concurrent use. There is one at most.
func (r *Registry) OnTiming(tell func(name string, d time.Duration)) { r.timing.Store(&tell) }

// Timing tells an exporter that wants timings one by one of d.
func (r *Registry) Timing(name string, d time.Duration) {
	if tell := r.timing.Load(); tell != nil {
		(*tell)(name, d)
	}
}

// ConfigLoaded is told of a load of the rules that took effect, and counts it as good
// unless a part of it was refused.
func (r *Registry) ConfigLoaded(info ConfigInfo) {
	if !info.Partial {
		r.configGood.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.config = info
}

// ConfigRefused counts a load of the rules that was refused.
func (r *Registry) ConfigRefused() { r.configBad.Add(1) }

// ConfigInfo is what ConfigLoaded was last told.
func (r *Registry) ConfigInfo() ConfigInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.config
}

// Stats are all figures, sorted by name, zeros included. Figures of one name
// are added up. A counter is lower than it was only if it went away meanwhile: names
// of callers 10 s after they made room, rules an hour after they were removed.
func (r *Registry) Stats() []Stat { return r.read(false) }

// Flush is Stats for a sink that sends them on: counters of rules that are zero are
// not in it, and what has gone away stays until a Flush had it.
func (r *Registry) Flush() []Stat { return r.read(true) }

func (r *Registry) read(flush bool) []Stat {
	var stats []Stat
	add := func(s Stat) { stats = append(stats, s) }
	r.mu.Lock()
	for name, c := range r.counters {
		add(Stat{name, KindCounter, int64(c.Value())})
	}
	sources := slices.Clone(r.sources)
	r.mu.Unlock()
	for _, read := range sources { // outside the lock: it may take its time
		read(add)
	}
	r.reading.Lock() // one at a time gives counts on to heirs
	now, table := r.now(), r.rules.Load()
	if table != nil {
		r.expire(table, now)
	}
	live := r.retired.names()
	addHits := add
	if flush {
		addHits = func(s Stat) {
			if s.Value > 0 {
				add(s)
			}
		}
	}
	show := func(h namedHits) {
		h.stats(addHits)
		if _, retired := live[h.prefix]; retired {
			live[h.prefix] = h.hits
		}
	}
	table.each(func(key, _ string, hasHits bool, s *ruleStats) {
		if hasHits && (!flush || s.hits.any() || len(live) > 0) { // it may inherit
			show(hitsOf(key, &s.hits))
		}
	})
	r.series.each(show)
	r.retired.settle(live, add, now, flush)
	r.unknownDomains.stats(add)
	r.reading.Unlock()
	slices.SortStableFunc(stats, func(a, b Stat) int { return strings.Compare(a.Name, b.Name) })
	return sums(stats)
}

// sums adds up neighbours of one name. The kind is that of the last.
func sums(stats []Stat) []Stat {
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
