// Package metrics counts the decisions of the limiter. Each figure can have two names: the
// compatible one of envoyproxy/ratelimit, for existing dashboards, and a native Prometheus
// metric. The packages below this one send or show the figures.
package metrics

import (
	"cmp"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Config is the configuration of a Registry.
type Config struct {
	// NearRatio is the share of a limit above which hits count as near the limit: with 0.8
	// and a limit of 10, the 9th and 10th. 0 is a valid ratio, not a default.
	NearRatio float32
	// MaxSeries bounds the names that contain text from clients. If there are more, the
	// least recently used name is evicted. Defaults to 10,000.
	MaxSeries int
	// SanitizeDots replaces dots in keys and values by "_" in compatible names, where a dot starts a new level.
	SanitizeDots bool
	Now          func() time.Time // Defaults to time.Now.
}

// Registry is a limiter.Recorder that holds all counters of the process.
type Registry struct {
	nearRatio float32
	dot       byte // stands for each dot within a key or a value in compatible names.
	now       func() time.Time

	globalShadow, storeErrors *Counter
	unknownDomains            *unknownDomains
	tables                    RuleTables[ruleStats] // ruleStatsMu guards changes.
	namedHits                 *namedHitTable
	clientNames               *nameCache // the names that contain text from clients.
	requestLimitStats         ruleStats  // the outcomes of limits that came with requests.

	figureSources figureSources

	// guards ruleStats. The first decision of a rule waits for it, so it is held for a short time only.
	ruleStatsMu sync.Mutex
	ruleStats   statsByName
}

// figureSources are all figures except the counters of rules.
type figureSources struct {
	mu            sync.Mutex          // guards the fields below.
	counters      map[string]*Counter // compatible names as keys.
	statReaders   []func() []Figure   // return figures with compatible names.
	nativeReaders []func() []Figure   // return figures that only Prometheus shows.
}

// New returns a Registry with all counters at 0.
func New(cfg Config) *Registry {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	most := cmp.Or(cfg.MaxSeries, 10_000)
	r := &Registry{
		nearRatio:     cfg.NearRatio,
		dot:           '.',
		now:           cfg.Now,
		namedHits:     newNames(most),
		ruleStats:     statsByName{byName: make(map[RuleName]*ruleStats), removed: make(map[*ruleStats]bool)},
		figureSources: figureSources{counters: make(map[string]*Counter)},

		requestLimitStats: ruleStats{name: requestLimits},
	}
	if cfg.SanitizeDots {
		r.dot = '_'
	}
	r.clientNames = newNameCache(most, r.namedHits, r.dot)
	r.unknownDomains = &unknownDomains{newCounter: r.Counter, countersByName: make(map[string]*Counter)}
	r.globalShadow = r.Counter("ratelimit.service.global_shadow_mode")
	r.storeErrors = r.Counter("ratelimit.service.call.should_rate_limit.redis_error")
	r.ShowFigures("series", "", r.clientNames)
	r.ShowFigures("names", "", r.namedHits)
	r.AddFigures(r.ruleFigures, true)
	return r
}

// Counter returns the counter with that compatible name. The first call creates it. name
// must not contain text from clients, because counters are never deleted.
func (r *Registry) Counter(name string) *Counter {
	s := &r.figureSources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counters[name] == nil {
		s.counters[name] = new(Counter)
	}
	return s.counters[name]
}

// AddFigures registers figures. Stats, FlushStats and Figures call read each time, without holding a lock. If isNative
// is set, the figures have no compatible names, and only Figures calls read.
func (r *Registry) AddFigures(read func() []Figure, isNative bool) {
	r.figureSources.mu.Lock()
	defer r.figureSources.mu.Unlock()
	if isNative {
		r.figureSources.nativeReaders = append(r.figureSources.nativeReaders, read)
	} else {
		r.figureSources.statReaders = append(r.figureSources.statReaders, read)
	}
}

// ShowFigures registers the figures that Figures returns for the same arguments.
func (r *Registry) ShowFigures(part, name string, source any) {
	hasStat := func(f Figure) bool { return f.StatName != "" }
	r.AddFigures(func() []Figure { return Figures(part, name, source) },
		!slices.ContainsFunc(declarations()[part], hasStat))
}

// ShowBuild registers the figure that has the versions of this program and of Go as labels.
func (r *Registry) ShowBuild(version, commit string) {
	r.ShowFigures("build", "", build{true, version, commit, runtime.Version()})
}

// build is the source of the figures of ShowBuild.
type build struct {
	Running             bool
	Version, Commit, Go string
}

// ruleFigures returns the counters of all rules and domains, and of limits that came with requests.
func (r *Registry) ruleFigures() (list []Figure) {
	for _, s := range r.knownStats() {
		list = s.appendFigures(list)
	}
	return r.unknownDomains.totalStats.appendFigures(r.requestLimitStats.appendFigures(list))
}

// Stats returns all figures that have a compatible name, sorted by it, zeros included. It
// adds up figures of the same name. A counter falls or disappears only if its name expires:
// 10 s after it was evicted and flushed, or an hour after its rule was removed.
func (r *Registry) Stats() []Stat { return r.readStats(false) }

// FlushStats is Stats for a sink that sends the figures. It leaves out counters of rules that are
// 0. An expired name is kept until a FlushStats contained it.
func (r *Registry) FlushStats() []Stat { return r.readStats(true) }

func (r *Registry) readStats(flush bool) []Stat {
	stats := Stats(r.registeredFigures(false))
	now := r.now()
	r.ruleStatsMu.Lock()
	r.ruleStats.deleteExpired(r.namedHits, now, math.MaxInt)
	names := r.namedHits.namesToShow(now, flush)
	r.ruleStatsMu.Unlock()
	for _, x := range names {
		stats = x.appendStats(stats, flush)
	}
	if !flush {
		stats = r.appendUndecided(stats)
	}
	return sortAndAddUp(stats)
}

// appendUndecided appends the counters of the rules in force that have not decided anything yet, which are 0.
func (r *Registry) appendUndecided(stats []Stat) []Stat {
	set, table := r.tables.InForce()
	if set == nil {
		return stats
	}
	for _, rule := range set.Rules() {
		if table.Of(Owner{Rule: rule}).Load() == nil && countsByKey(rule) {
			prefix := rulePrefixOf(rule.MetricName(r.dot))
			for _, name := range hitCounterNames {
				stats = append(stats, Stat{Name: prefix + name})
			}
		}
	}
	return stats
}

// Figures returns all figures but the counters of rules and of names from clients, in no order.
func (r *Registry) Figures() []Figure { return r.registeredFigures(true) }

// registeredFigures returns the registered counters and figures. native adds those that only Prometheus shows.
func (r *Registry) registeredFigures(native bool) (list []Figure) {
	r.figureSources.mu.Lock()
	for name, c := range r.figureSources.counters {
		list = append(list, Figure{StatName: name, Value: int64(c.Load())})
	}
	reads := slices.Clone(r.figureSources.statReaders)
	if native {
		reads = append(reads, r.figureSources.nativeReaders...)
	}
	r.figureSources.mu.Unlock()
	for _, read := range reads {
		list = append(list, read()...)
	}
	return list
}
