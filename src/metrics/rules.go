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

// ruleStats is what is counted of all rules with one key. It does not refer to a rule,
// so that a Set can be freed after a reload.
type ruleStats struct {
	domain     string
	name       *name // nil: no rule with this key has hits of its own
	outcomes   outcomes
	unanswered atomic.Pointer[unanswered] // nil: nothing yet
	removed    time.Time                  // by a reload; zero: in force
}

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

// domainStats is what is counted of one domain.
type domainStats struct {
	unmatched Counter
	removed   time.Time // by a reload; zero: in force
}

// ruleTable has the stats of each rule and domain of a Set, by their Index.
type ruleTable struct {
	set     *rules.Set
	rules   []*ruleStats
	domains []*domainStats
	before  *oldTable // nil: none
}

// oldTable counts for requests that started before the last reload. It does not keep
// their Set from being freed.
type oldTable struct {
	set     weak.Pointer[rules.Set]
	rules   []*ruleStats
	domains []*domainStats
}

// find returns the stats of the rules and domains of set; nil if set is neither in force
// nor the one before.
func (t *ruleTable) find(set *rules.Set) ([]*ruleStats, []*domainStats) {
	switch {
	case t == nil:
	case t.set == set:
		return t.rules, t.domains
	case t.before != nil && t.before.set.Value() == set:
		return t.before.rules, t.before.domains
	}
	return nil, nil
}

// statsByName has the stats of all rules and domains in force, and of those that a
// reload removed less than keepRemoved ago, which go on where they were if they return.
type statsByName struct {
	rules   map[string]*ruleStats // by key
	domains map[string]*domainStats
}

// keepRemoved is how long removed rules are shown, unless there are too many.
const keepRemoved = time.Hour

func newStatsByName() statsByName {
	return statsByName{rules: make(map[string]*ruleStats), domains: make(map[string]*domainStats)}
}

// Use makes the counters for the rules of set. Rules and domains that keep their name go
// on counting where they were.
func (r *Registry) Use(set *rules.Set) {
	r.reading.Lock()
	defer r.reading.Unlock()
	now := r.now()
	t := &ruleTable{set: set}
	if old := r.table.Load(); old != nil {
		t.before = &oldTable{weak.Make(old.set), old.rules, old.domains}
	}
	r.stats.remove(now)
	for _, rule := range set.Rules() {
		t.rules = append(t.rules, r.stats.rule(rule, r.names))
	}
	for _, d := range set.Domains() {
		t.domains = append(t.domains, r.stats.domain(d.Name))
	}
	r.stats.expire(r.names, now)
	r.stats.makeRoom(r.names, now)
	r.table.Store(t)
}

// remove marks all that is in force as removed.
func (b *statsByName) remove(now time.Time) {
	for _, s := range b.rules {
		if s.removed.IsZero() {
			s.removed = now
		}
	}
	for _, d := range b.domains {
		if d.removed.IsZero() {
			d.removed = now
		}
	}
}

// rule returns the stats of a rule, which is in force from now on. Texts are cloned so
// that those of the Set can be freed.
func (b *statsByName) rule(rule *rules.Rule, n *names) *ruleStats {
	s := b.rules[rule.Key]
	if s == nil {
		s = &ruleStats{domain: strings.Clone(rule.Domain)}
		b.rules[strings.Clone(rule.Key)] = s
	}
	s.removed = time.Time{}
	if s.name == nil && hasHits(rule) {
		s.name = n.open(prefixOf(rule.Key))
	}
	return s
}

func (b *statsByName) domain(name string) *domainStats {
	d := b.domains[name]
	if d == nil {
		d = new(domainStats)
		b.domains[strings.Clone(name)] = d
	}
	d.removed = time.Time{}
	return d
}

// expire forgets what was removed keepRemoved ago.
func (b *statsByName) expire(n *names, now time.Time) {
	expired := func(removed time.Time) bool { return !removed.IsZero() && now.Sub(removed) >= keepRemoved }
	for key, s := range b.rules {
		if expired(s.removed) {
			b.forget(key, n)
		}
	}
	for name, d := range b.domains {
		if expired(d.removed) {
			delete(b.domains, name)
		}
	}
}

// makeRoom forgets the oldest removed rules if there are too many. Those removed just
// now stay.
func (b *statsByName) makeRoom(n *names, now time.Time) {
	removed := 0
	var old []string // keys
	for key, s := range b.rules {
		if !s.removed.IsZero() {
			removed++
			if s.removed.Before(now) {
				old = append(old, key)
			}
		}
	}
	tooMany := min(max(0, removed-n.maxUnused), len(old))
	slices.SortFunc(old, func(x, y string) int {
		return cmp.Or(b.rules[x].removed.Compare(b.rules[y].removed), cmp.Compare(x, y))
	})
	for _, key := range old[:tooMany] {
		b.forget(key, n)
	}
}

func (b *statsByName) forget(key string, n *names) {
	if s := b.rules[key]; s.name != nil {
		n.close(s.name)
	}
	delete(b.rules, key)
}
