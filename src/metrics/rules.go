package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"weak"

	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Outcome is what became of one descriptor.
type Outcome uint8

// The outcomes of a descriptor to which a rule applied, and Unmatched for the others.
const (
	Within Outcome = iota
	Near
	Over
	Shadow // over, and passed because of the shadow mode
	Unlimited
	Refunded
	Unmatched
	Uncharged // would have passed, and was not charged because another limit refused
	outcomeCount
)

var outcomeNames = [outcomeCount]string{"within", "near", "over", "shadow", "unlimited", "refunded", "unmatched", "uncharged"}

// String returns the name in lower case.
func (o Outcome) String() string { return outcomeNames[o] }

type outcomes [outcomeCount]Counter

// unanswered counts charges that the store did not answer, by backend.Fallback.
type unanswered [4]Counter

// ruleStats is what is counted of all rules with one key, or of a domain. It does not
// refer to a rule, so that a Set can be freed after a reload.
type ruleStats struct {
	name       *name // nil: no rule with this key has hits of its own
	outcomes   outcomes
	unanswered atomic.Pointer[unanswered] // nil: nothing yet
	removed    time.Time                  // by a reload; zero: in force
}

// statsKey is the name of a rule within its domain, or empty for the domain.
type statsKey struct{ domain, rule string }

// hasHits reports whether the hits of r count under its own key. Hits of some rules
// count by request value, and those of unlimited rules not at all.
func hasHits(r *rules.Rule) bool { return !r.Unlimited && !r.PerValue() }

// failed counts a charge without an answer, and what was done instead.
func (s *ruleStats) failed(instead backend.Fallback) {
	u := s.unanswered.Load()
	if u == nil {
		s.unanswered.CompareAndSwap(nil, new(unanswered))
		u = s.unanswered.Load()
	}
	u[instead].Add(1)
}

// statsTable has the stats of each rule and domain of a Set, by their Index.
type statsTable struct{ rules, domains []*ruleStats }

// PerSet keeps a table for the rules in force, and the one before for requests that started
// before the last reload. It does not keep their Set from being freed.
type PerSet[T any] struct{ tables atomic.Pointer[tables[T]] }

type tables[T any] struct {
	set       *rules.Set
	before    weak.Pointer[rules.Set]
	of, older T // of set and before
}

// Use makes table that of the rules in force. One goroutine at a time may call it.
func (p *PerSet[T]) Use(set *rules.Set, table T) {
	next := &tables[T]{set: set, of: table}
	if old := p.tables.Load(); old != nil {
		next.before, next.older = weak.Make(old.set), old.of
	}
	p.tables.Store(next)
}

// Find returns the table of set, or false if set is neither in force nor the one before.
func (p *PerSet[T]) Find(set *rules.Set) (table T, ok bool) {
	switch t := p.tables.Load(); {
	case t == nil:
	case t.set == set:
		return t.of, true
	case t.before.Value() == set:
		return t.older, true
	}
	return table, false
}

// statsByName has the stats of all rules and domains in force, and of those that a
// reload removed less than keepRemoved ago, which go on where they were if they return.
type statsByName map[statsKey]*ruleStats

// keepRemoved is how long removed rules are shown, unless there are too many.
const keepRemoved = time.Hour

// Use makes the counters for the rules of set. Rules and domains that keep their name go
// on counting where they were.
func (r *Registry) Use(set *rules.Set) {
	r.reading.Lock()
	defer r.reading.Unlock()
	now := r.now()
	for _, s := range r.stats {
		if s.removed.IsZero() {
			s.removed = now
		}
	}
	var t statsTable
	for _, rule := range set.Rules() {
		s := r.stats.open(rule.Domain, strings.TrimPrefix(rule.Key, rule.Domain+"."))
		if s.name == nil && hasHits(rule) {
			s.name = r.names.open(prefixOf(rule.Key))
		}
		t.rules = append(t.rules, s)
	}
	for _, d := range set.Domains() {
		t.domains = append(t.domains, r.stats.open(d.Name, ""))
	}
	r.stats.expire(r.names, now)
	r.stats.makeRoom(r.names, now)
	r.table.Use(set, t)
}

// open returns the stats of a rule or domain, which is in force from now on.
func (b statsByName) open(domain, rule string) *ruleStats {
	s := b[statsKey{domain, rule}]
	if s == nil {
		s = new(ruleStats)
		b[statsKey{strings.Clone(domain), strings.Clone(rule)}] = s // so that texts of the Set can be freed
	}
	s.removed = time.Time{}
	return s
}

// expire forgets what was removed keepRemoved ago.
func (b statsByName) expire(n *names, now time.Time) {
	for key, s := range b {
		if !s.removed.IsZero() && now.Sub(s.removed) >= keepRemoved {
			b.forget(key, n)
		}
	}
}

// makeRoom forgets the oldest that were removed if there are too many. Those removed just
// now stay.
func (b statsByName) makeRoom(n *names, now time.Time) {
	removed := 0
	var old []statsKey
	for key, s := range b {
		if !s.removed.IsZero() {
			removed++
			if s.removed.Before(now) {
				old = append(old, key)
			}
		}
	}
	tooMany := min(max(0, removed-n.maxUnused), len(old))
	slices.SortFunc(old, func(x, y statsKey) int {
		return cmp.Or(b[x].removed.Compare(b[y].removed), cmp.Compare(x.domain, y.domain), cmp.Compare(x.rule, y.rule))
	})
	for _, key := range old[:tooMany] {
		b.forget(key, n)
	}
}

func (b statsByName) forget(key statsKey, n *names) {
	if s := b[key]; s.name != nil {
		n.close(s.name)
	}
	delete(b, key)
}
