package store

import (
	"fmt"
	"slices"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/replicas"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/settings"
)

// countReplicas has replicas count themselves in the store, whatever the rules say: a rule may need the number from a
// reload during an outage on.
func (s *Store) countReplicas() error {
	counter, err := replicas.New(s.Backend, replicas.Config{
		Fixed:     s.cfg.Failure.Replicas,
		KeyPrefix: s.cfg.CacheKeyPrefix,
		OnChange: func(before, after int) {
			s.cfg.Log.Infof("the store is shared by %s, before by %d", output.Plural(after, "replica"), before)
		},
		OnFailure: func(err error) {
			last := "by an unknown number"
			if s.Replicas.Known() {
				last = "by " + output.Plural(s.Replicas.Count(), "replica") + " as before"
			}
			s.cfg.Log.Warnf("replicas cannot count themselves in the store, so leases and on_store_failure: local divide limits "+
				"%s; REPLICAS says how many there are: %v", last, err)
		},
	})
	if err != nil {
		return fmt.Errorf("REPLICAS: %w", err)
	}
	s.Replicas, s.Runners = counter, append(s.Runners, counter.Run)
	return nil
}

// addFallback puts the fallback in front of the store. It decides hits that the store does not answer.
func (s *Store) addFallback() error {
	f, err := fallback.New(s.Backend, fallback.Config{Replicas: s.Replicas.Count, MaxBytes: s.cfg.MemoryMaxBytes})
	if err != nil {
		return fmt.Errorf("MEMORY_MAX_BYTES: %w", err)
	}
	s.Backend, s.Fallback, s.Runners = f, f, append(s.Runners, s.logOutages)
	s.cfg.Heap.Watch(func() int64 { return f.Stats().LocalCounters.Bytes }, s.cfg.MemoryMaxBytes)
	s.cfg.Figures.ShowFigures("fallback", "", func() (v fallbackFigures) {
		v.Stats, v.Replicas, v.Hits = f.Stats(), s.Replicas.Count(), make(map[string]uint64)
		for i, word := range backend.Fallbacks.Names() {
			v.Hits[word] = v.UnansweredHits[i]
		}
		return v
	})
	return nil
}

type fallbackFigures struct {
	fallback.Stats
	Replicas int               // how many replicas share the limits.
	Hits     map[string]uint64 // counts the hits that the store did not answer, by on_store_failure.
}

// DefaultFallback returns the on_store_failure of rules that do not name one.
func DefaultFallback(cfg *settings.Settings) backend.Fallback {
	f, _ := backend.Fallbacks.Parse(cfg.Failure.DefaultMode) // Package settings has checked the mode.
	return f
}

// worksAlone reports whether this process is healthy while its store does not answer. It is if on_store_failure
// decides, by the settings or in all limits of set. The settings of store health checks come first.
func (s *Store) worksAlone(set *rules.Set) bool {
	healthCheck := s.cfg.RedisHealthCheck
	if s.cfg.BackendType == "memcache" {
		healthCheck = s.cfg.Memcache.HealthCheck
	}
	if healthCheck || DefaultFallback(s.cfg.Settings) != backend.FallbackError {
		return !healthCheck
	}
	return set != nil && len(set.Rules()) > 0 && !slices.ContainsFunc(set.Rules(), func(r *rules.Rule) bool {
		return !r.Unlimited && r.Fallback == backend.FallbackError
	})
}

// FallbacksOf returns the values of on_store_failure that decide by set, in a fixed order. It is empty for memory.
func (s *Store) FallbacksOf(set *rules.Set) (names []string) {
	if s.Fallback == nil {
		return nil
	}
	var decides []backend.Fallback
	if set != nil {
		for _, r := range set.Rules() {
			if !r.Unlimited && !slices.Contains(decides, r.Fallback) {
				decides = append(decides, r.Fallback)
			}
		}
	}
	if decides == nil {
		decides = []backend.Fallback{DefaultFallback(s.cfg.Settings)}
	}
	slices.Sort(decides)
	for _, f := range decides {
		names = append(names, f.String())
	}
	return names
}

// UseRules prepares for the rules before the limiter decides by them: on_store_failure may count in this process.
func (s *Store) UseRules(set *rules.Set) {
	if s.Fallback == nil {
		s.noteLeases(set)
		return
	}
	s.isAloneHealthy.Store(s.worksAlone(set))
	s.hasLocalCounters.Store(countsLocally(set))
	if countsLeased(set) {
		s.showLeases()
	}
}

// countsLocally reports whether hits of set that the store does not answer may be counted in this process.
func countsLocally(set *rules.Set) bool {
	return slices.ContainsFunc(set.Domains(),
		func(d *rules.Domain) bool { return d.Fallback == backend.FallbackLocal }) ||
		slices.ContainsFunc(set.Rules(), func(r *rules.Rule) bool { return r.Fallback == backend.FallbackLocal })
}

// HasLocalCounters reports whether some rules count in this process when the store does not answer.
func (s *Store) HasLocalCounters() bool { return s.hasLocalCounters.Load() }

// degradedPeriod is how long /readyz mentions the last hit that the store did not answer.
const degradedPeriod = 10 * time.Second

// degradedNote returns a remark for /readyz; "" if the store answers.
func (s *Store) degradedNote(now time.Time) string {
	if s.Fallback == nil {
		return ""
	}
	last := s.Fallback.Stats().LastFailure
	ago := now.Sub(last)
	if last.IsZero() || ago >= degradedPeriod {
		return ""
	}
	return fmt.Sprintf("degraded: a hit without an answer %v ago was decided by on_store_failure",
		max(ago, 0).Round(time.Millisecond))
}
