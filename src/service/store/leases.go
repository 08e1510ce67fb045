package store

import (
	"slices"
	"sync"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/changes"
	"ratelimit/src/backend/leased"
	"ratelimit/src/rules"
	"ratelimit/src/settings"
)

// DefaultCounting returns the counting of rules that do not name one.
func DefaultCounting(cfg *settings.Settings) backend.Counting {
	c, _ := backend.Countings.Parse(cfg.CountingMode) // Package settings has checked the mode.
	return c
}

// DefaultContention returns the on_contention of rules that do not name one.
func DefaultContention(cfg *settings.Settings) backend.Contention {
	c, _ := backend.Contentions.Parse(cfg.ContentionMode) // Package settings has checked the mode.
	return c
}

const (
	// tellTTL is how long the names of contended counters stay in the store: replicas read them many times a second.
	tellTTL = 10 * time.Second
	// tellWait is how long a replica waits for names that are not in the store yet.
	tellWait = 100 * time.Millisecond
)

// addLeases puts the leases of this replica in front of the store.
func (s *Store) addLeases() {
	feed := &changes.Feed{
		Store: s.Pools[0], KeyPrefix: s.cfg.CacheKeyPrefix, Name: "contention", TextTTL: tellTTL, TextWait: tellWait,
	}
	l := leased.New(leased.Config{
		Next: s.Backend, Replicas: s.Replicas.Count, Tell: feed.Publish, MaxBytes: int(s.cfg.LeaseMaxBytes),
	})
	feed.Needed, feed.Pause, feed.OnChange = l.HoldsUnits, l.Pause, l.Heard
	s.Backend, s.Finish, s.Runners = l, l.Finish, append(s.Runners, l.Run, feed.Run)
	s.cfg.Heap.Watch(func() int64 { return l.Stats().Bytes }, s.cfg.LeaseMaxBytes)
	s.LeaseUses = l.Uses
	s.showLeases = sync.OnceFunc(func() { s.cfg.Figures.ShowFigures("leases", "", l.Stats) })
}

// countsLeased reports whether hits of set may be counted against leases.
func countsLeased(set *rules.Set) bool {
	return slices.ContainsFunc(set.Domains(), func(d *rules.Domain) bool { return d.Counting == backend.Leased }) ||
		slices.ContainsFunc(set.Rules(), func(r *rules.Rule) bool { return r.Counting == backend.Leased })
}

// noteLeases logs, once, that leases change nothing with counters in memory: all decisions are local already.
func (s *Store) noteLeases(set *rules.Set) {
	if countsLeased(set) {
		s.leasesNoted.Do(func() {
			s.cfg.Log.Infof("counting: leased changes nothing with BACKEND_TYPE=memory: every limit is counted in this process")
		})
	}
}
