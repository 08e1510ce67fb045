package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"ratelimit/src/rules"
)

// statsByName has the counters of all rules and domains in force that have decided something, and of those that a
// reload removed less than keepRemovedFor ago. If one of these returns, its counters continue. Rules with figures that
// are shown at 0 are there from the start.
type statsByName struct {
	byName  map[RuleName]*ruleStats
	removed map[*ruleStats]bool // those with a removedAt, and some that returned.
	// all has the values of byName. Elements are only appended, and deletions make a new slice, so that readers need not
	// hold a lock while they read the elements.
	all []*ruleStats
}

// keepRemovedFor is how long the counters of removed rules are shown, unless there are too many.
const keepRemovedFor = time.Hour

// UseRules puts the rules of set in force. Rules and domains that keep their name keep their counters.
func (r *Registry) UseRules(set *rules.Set) {
	r.ruleStatsMu.Lock()
	defer r.ruleStatsMu.Unlock()
	now := r.now()
	_, old := r.tables.InForce()
	table, added, removed := r.tables.Next(set)
	for _, o := range removed {
		r.ruleStats.remove(old.Of(o).Load(), now)
	}
	for _, o := range added {
		isShownAtZero := o.Rule != nil && (o.Rule.Limit.Hold > 0 || o.Rule.Enforcement != nil)
		if isShownAtZero || r.ruleStats.byName[o.Name()] != nil {
			table.Of(o).Store(r.openStats(o))
		}
	}
	r.ruleStats.deleteExpired(r.namedHits, now, r.namedHits.maxUnused)
	r.tables.UseSet(set, table)
}

// statsOf returns the counters of an owner in set, whose table is given. The first call for an owner makes them.
func (r *Registry) statsOf(table *RuleTable[ruleStats], set *rules.Set, o Owner) *ruleStats {
	if s := table.Of(o).Load(); s != nil {
		return s
	}
	r.ruleStatsMu.Lock()
	defer r.ruleStatsMu.Unlock()
	s := r.openStats(o)
	if now, ok := r.tables.OwnerInForce(set, o); ok && now != o {
		// The rule was unlimited, for example, and is limited now: it needs counters of hits before others find them.
		r.openStats(now)
	}
	if !r.tables.Store(set, o, s) {
		r.ruleStats.remove(s, r.now())
	}
	return s
}

// knownStats returns the counters of all rules and domains that have some.
func (r *Registry) knownStats() []*ruleStats {
	r.ruleStatsMu.Lock()
	defer r.ruleStatsMu.Unlock()
	return r.ruleStats.all
}

// HasRule reports whether a rule is in force, or a domain if rule is empty. rule is the full name.
func (r *Registry) HasRule(domain, rule string) bool {
	set, _ := r.tables.InForce()
	if set == nil {
		return false
	}
	return rule == "" && set.Domain([]byte(domain)) != nil || set.Rule(domain, rule) != nil
}

// openStats returns the counters of an owner and marks them as in force.
func (r *Registry) openStats(o Owner) *ruleStats {
	s, rule := r.ruleStats.open(o.Name()), o.Rule
	if rule == nil {
		return s
	}
	if rule.Limit.Hold > 0 {
		s.hasHolds.Store(true)
	}
	if rule.Enforcement != nil {
		s.hasEnforcement.Store(true)
	}
	if s.namedHits == nil && countsByKey(rule) {
		s.namedHits = r.namedHits.acquireName(rulePrefixOf(rule.MetricName(r.dot)))
	}
	return s
}

// open returns the counters with a name and marks them as in force.
func (b *statsByName) open(name RuleName) *ruleStats {
	s := b.byName[name]
	if s == nil {
		// The copies let the texts of the Set be freed.
		s = &ruleStats{name: RuleName{strings.Clone(name.Domain), strings.Clone(name.Rule)}}
		b.byName[s.name] = s
		b.all = append(b.all, s)
	}
	s.removedAt = time.Time{}
	return s
}

// remove marks counters as those of a rule or domain that is not in force. It does nothing if s is nil.
func (b *statsByName) remove(s *ruleStats, now time.Time) {
	if s != nil {
		s.removedAt = now
		s.hasHolds.Store(false)
		s.hasEnforcement.Store(false)
		b.removed[s] = true
	}
}

// deleteExpired deletes counters that were removed keepRemovedFor ago or earlier. If more than most
// removed ones are left, it deletes the oldest, except those removed at now.
func (b *statsByName) deleteExpired(n *namedHitTable, now time.Time, most int) {
	var removed []*ruleStats
	for s := range b.removed {
		if s.removedAt.IsZero() {
			delete(b.removed, s)
		} else {
			removed = append(removed, s)
		}
	}
	slices.SortFunc(removed, func(x, y *ruleStats) int {
		return cmp.Or(x.removedAt.Compare(y.removedAt), cmp.Compare(x.name.Domain, y.name.Domain),
			cmp.Compare(x.name.Rule, y.name.Rule))
	})
	expired := 0
	for i, s := range removed {
		age := now.Sub(s.removedAt)
		if age <= 0 || age < keepRemovedFor && len(removed)-i <= most {
			break
		}
		expired++
		if s.namedHits != nil {
			n.releaseName(s.namedHits)
		}
		delete(b.removed, s)
		delete(b.byName, s.name)
	}
	if expired > 0 {
		b.all = slices.AppendSeq(make([]*ruleStats, 0, len(b.byName)), maps.Values(b.byName))
	}
}
