// Package metrics counts what the limiter reports, under the names that
// envoyproxy/ratelimit uses, so that dashboards stay as they are.
package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"ratelimit/src/rules"
)

// Config says how a Registry counts.
type Config struct {
	// NearRatio is the share of a limit from which hits count as near it.
	// Defaults to 0.8.
	NearRatio float32
}

// Counter only grows. It is safe for concurrent use.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) { c.n.Add(n) }

// Value is the count so far.
func (c *Counter) Value() uint64 { return c.n.Load() }

// Registry is a limiter.Recorder that holds all counters of the process.
type Registry struct {
	nearRatio     float32
	rules         atomic.Pointer[ruleTable]
	unknownDomain *Counter
	requestLimit  *ruleCounters // all limits that came with requests, together
	globalShadow  *Counter
	storeErrors   *Counter

	mu       sync.Mutex
	counters map[string]*Counter // only names that we or the operator's rules chose
	gauges   map[string]func() int64
}

// ruleTable has the counters of each rule of a Set, by Rule.Index.
type ruleTable struct {
	set      *rules.Set
	counters []*ruleCounters
}

// New returns a registry with all counters at zero.
func New(cfg Config) *Registry {
	r := &Registry{
		nearRatio: cmp.Or(cfg.NearRatio, 0.8),
		counters:  make(map[string]*Counter),
		gauges:    make(map[string]func() int64),
	}
	r.unknownDomain = r.Counter("ratelimit.service.domain_not_found")
	r.globalShadow = r.Counter("ratelimit.service.global_shadow_mode")
	r.storeErrors = r.Counter("ratelimit.service.call.should_rate_limit.redis_error")
	r.requestLimit = r.ruleCounters("ratelimit.service.request_limit.")
	return r
}

// Counter is the counter of that name, made on first use. Names come from the
// program and from rule files, never from clients.
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

// Gauge shows what read returns under name.
func (r *Registry) Gauge(name string, read func() int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gauges[name] = read
}

// Stat is one figure with its name.
type Stat struct {
	Name  string
	Value int64
}

// Stats are all figures, sorted by name, zeros included.
func (r *Registry) Stats() []Stat {
	r.mu.Lock()
	stats := make([]Stat, 0, len(r.counters)+len(r.gauges))
	gauges := make(map[string]func() int64, len(r.gauges))
	for name, c := range r.counters {
		stats = append(stats, Stat{name, int64(c.Value())})
	}
	for name, read := range r.gauges {
		gauges[name] = read
	}
	r.mu.Unlock()
	for name, read := range gauges { // outside the lock: a gauge may take its time
		stats = append(stats, Stat{name, read()})
	}
	slices.SortFunc(stats, func(a, b Stat) int { return strings.Compare(a.Name, b.Name) })
	return stats
}
