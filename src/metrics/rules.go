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

// Outcome is the result of one descriptor.
type Outcome uint8

// Unmatched descriptors have no rule. All other outcomes are those of a rule.
const (
	Within Outcome = iota
	Near
	Over
	Shadow // over the limit, but allowed because the rule is in shadow mode
	Unlimited
	Refunded
	Unmatched
	Uncharged // within the limit, but not charged because another limit refused the request
	outcomeCount
)

var outcomeNames = [outcomeCount]string{"within", "near", "over", "shadow", "unlimited", "refunded", "unmatched", "uncharged"}

// String returns the outcome in lower case, such as "within".
func (o Outcome) String() string { return outcomeNames[o] }

type outcomes [outcomeCount]Counter

// unanswered counts the charges that the store did not answer. The index is a backend.Fallback.
type unanswered [4]Counter

// ruleStats has the counters of all rules with the same key, or of a domain. It does not
// refer to a rule, so that a Set can be freed after a reload.
type ruleStats struct {
	name       *name // nil if countsByKey is false for all rules with this key
	outcomes   outcomes
	unanswered atomic.Pointer[unanswered] // nil before the first unanswered charge
	removed    time.Time                  // when a reload removed the rule; zero while it is in force
}

// statsKey identifies a rule in its domain. The counters of a domain have an empty rule.
type statsKey struct{ domain, rule string }

// countsByKey reports whether the hits of r count under the key of r. Hits of per-value
// rules count under values of the request; hits of unlimited rules have no hit counters.
func countsByKey(r *rules.Rule) bool { return !r.Unlimited && !r.PerValue() }

// countUnanswered counts a charge that the store did not answer. instead is the fallback
// that decided it.
func (s *ruleStats) countUnanswered(instead backend.Fallback) {
	u := s.unanswered.Load()
	if u == nil {
		s.unanswered.CompareAndSwap(nil, new(unanswered))
		u = s.unanswered.Load()
	}
	u[instead].Add(1)
}

// statsTable has the counters of each rule and domain of a Set. The position is Rule.Index
// or Domain.Index.
type statsTable struct{ rules, domains []*ruleStats }

// PerSet holds one table for the Set in force and one for the Set before it, which requests
// that started before the reload still use. It does not keep the older Set alive.
type PerSet[T any] struct{ tables atomic.Pointer[tables[T]] }

type tables[T any] struct {
	set      *rules.Set
	old      weak.Pointer[rules.Set] // in force before set
	table    T                       // of set
	oldTable T                       // of old
}

// Use puts set in force with its table. Only one goroutine at a time may call it.
func (p *PerSet[T]) Use(set *rules.Set, table T) {
	next := &tables[T]{set: set, table: table}
	if old := p.tables.Load(); old != nil {
		next.old, next.oldTable = weak.Make(old.set), old.table
	}
	p.tables.Store(next)
}

// Find returns the table of set. It returns false if set is older than the last two Sets.
func (p *PerSet[T]) Find(set *rules.Set) (table T, ok bool) {
	switch t := p.tables.Load(); {
	case t == nil:
	case t.set == set:
		return t.table, true
	case t.old.Value() == set:
		return t.oldTable, true
	}
	return table, false
}

// statsByKey has the counters of all rules and domains in force, and of those that a reload
// removed less than keepRemoved ago. If one of these returns, its counters continue.
type statsByKey map[statsKey]*ruleStats

// keepRemoved is how long the counters of removed rules are shown, unless there are too many.
const keepRemoved = time.Hour

// Use puts the rules of set in force. Rules and domains that keep their name keep their
// counters.
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
		if s.name == nil && countsByKey(rule) {
			s.name = r.names.open(prefixOf(rule.Key))
		}
		t.rules = append(t.rules, s)
	}
	for _, d := range set.Domains() {
		t.domains = append(t.domains, r.stats.open(d.Name, ""))
	}
	r.stats.expire(r.names, now, r.names.maxUnused)
	r.table.Use(set, t)
}

// open returns the counters of a rule or domain and marks them as in force.
func (b statsByKey) open(domain, rule string) *ruleStats {
	s := b[statsKey{domain, rule}]
	if s == nil {
		s = new(ruleStats)
		b[statsKey{strings.Clone(domain), strings.Clone(rule)}] = s // so that texts of the Set can be freed
	}
	s.removed = time.Time{}
	return s
}

// expire deletes counters that were removed keepRemoved ago or earlier. If more than most
// removed ones are left, it deletes the oldest, except those removed at now.
func (b statsByKey) expire(n *names, now time.Time, most int) {
	removed, expired := 0, false
	var old []statsKey
	for key, s := range b {
		if s.removed.IsZero() {
			continue
		}
		removed++
		if s.removed.Before(now) {
			old = append(old, key)
			expired = expired || now.Sub(s.removed) >= keepRemoved
		}
	}
	if removed <= most && !expired {
		return
	}
	slices.SortFunc(old, func(x, y statsKey) int {
		return cmp.Or(b[x].removed.Compare(b[y].removed), cmp.Compare(x.domain, y.domain), cmp.Compare(x.rule, y.rule))
	})
	for i, key := range old {
		s := b[key]
		if removed-i <= most && now.Sub(s.removed) < keepRemoved {
			return
		}
		if s.name != nil {
			n.close(s.name)
		}
		delete(b, key)
	}
}
