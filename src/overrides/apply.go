package overrides

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"ratelimit/src/rules"
)

// changes is one Change, which many overrides share, with the copies of rules that have it.
type changes struct {
	Change
	uses   int // the number of overrides; guarded by Registry.mu
	copies atomic.Pointer[map[copiedLimit]*rules.Match]
}

// copiedLimit names a limit of a match.
type copiedLimit struct {
	match *rules.Match
	index int
}

// copier makes copies of rules with other limits, and keeps up to maxCopies of them.
type copier struct {
	mu    sync.Mutex
	count int // the number of copies; guarded by mu
}

// maxCopies bounds the copies of rules that are kept. Each takes less than 1 KiB. Further ones are made for each
// request.
const maxCopies = 10_000

// apply returns a copy of m whose limit i is changed. It returns m if the limit cannot have the change, because the
// rules are others now than when the override was set.
func (c *copier) apply(to *changes, m *rules.Match, i int) *rules.Match {
	key := copiedLimit{m, i}
	if known := to.copies.Load(); known != nil {
		if copied, ok := (*known)[key]; ok {
			return copied
		}
	}
	copied := m
	if r, err := to.Of(m.Limits[i]); err == nil {
		with := *m
		with.Limits = slices.Clone(m.Limits)
		with.Limits[i] = r
		copied = &with
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count < maxCopies {
		all := map[copiedLimit]*rules.Match{}
		if known := to.copies.Load(); known != nil {
			all = maps.Clone(*known)
		}
		if _, has := all[key]; !has {
			c.count++
		}
		all[key] = copied
		to.copies.Store(&all)
	}
	return copied
}

// forget drops the copies that to has.
func (c *copier) forget(to *changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := to.copies.Swap(nil); known != nil {
		c.count -= len(*known)
	}
}

// domainAdjuster applies the overrides of a domain to what its rules find.
type domainAdjuster struct {
	domain string
	table  *domainTable
	copier *copier
	now    func() int64
}

// IsActive implements rules.Adjuster.
func (d *domainAdjuster) IsActive() bool { return d.table.lookups.Load() != nil }

// Note implements rules.Adjuster.
func (d *domainAdjuster) Note(r *rules.Rule, entries []rules.Entry) string {
	l := d.table.lookups.Load()
	if l == nil {
		return ""
	}
	var scratch rules.SearchScratch
	e := d.table.find(l, r, scratch.CounterEntries(r, entries), d.now)
	if e == nil {
		return ""
	}
	return e.override(d.domain).Note()
}

// Adjust implements rules.Adjuster.
func (d *domainAdjuster) Adjust(m *rules.Match, entries []rules.Entry, s *rules.SearchScratch) *rules.Match {
	l := d.table.lookups.Load()
	if l == nil {
		return m
	}
	for i := range m.Limits {
		r := m.Limits[i]
		if e := d.table.find(l, r, s.CounterEntries(r, entries), d.now); e != nil {
			m = d.copier.apply(e.limit, m, i)
		}
	}
	return m
}
