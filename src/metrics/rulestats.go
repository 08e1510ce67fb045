package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"ratelimit/src/rules"
)

// statsByKey has the counters of all rules and domains in force that have decided something, and of those that a reload
// removed less than keepRemovedFor ago. If one of these returns, its counters continue. Rules with figures that are
// shown at 0 are there from the start.
type statsByKey struct {
	byKey   map[statsKey]*ruleStats
	removed map[*ruleStats]bool // those with a removedAt, and some that returned.
	// all has the values of byKey. Elements are only appended, and deletions make a new slice, so that readers need not
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
	for _, u := range removed {
		for _, rule := range u.Rules() {
			r.ruleStats.remove(old.Rule(rule).Load(), now)
		}
		for _, d := range u.Domains() {
			r.ruleStats.remove(old.Domain(d).Load(), now)
		}
	}
	for _, u := range added {
		for _, rule := range u.Rules() {
			// The latter have figures that are shown at 0.
			if r.ruleStats.byKey[keyOf(rule)] != nil || rule.HoldIDKey != "" || rule.Enforcement != nil {
				table.Rule(rule).Store(r.openRuleStats(rule))
			}
		}
		for _, d := range u.Domains() {
			if key := (statsKey{d.Name, ""}); r.ruleStats.byKey[key] != nil {
				table.Domain(d).Store(r.ruleStats.open(key, d.Name))
			}
		}
	}
	r.ruleStats.deleteExpired(r.namedHits, now, r.namedHits.maxUnused)
	r.tables.UseSet(set, table)
}

// statsOf returns the counters of a rule of set, whose table is given. The first call for a rule makes them.
func (r *Registry) statsOf(table *RuleTable[ruleStats], set *rules.Set, rule *rules.Rule) *ruleStats {
	if s := table.Rule(rule).Load(); s != nil {
		return s
	}
	r.ruleStatsMu.Lock()
	defer r.ruleStatsMu.Unlock()
	s := r.openRuleStats(rule)
	if now := r.tables.RuleInForce(set, rule); now != nil && now != rule {
		// The rule was unlimited, for example, and is limited now: it needs counters of hits before others find them.
		r.openRuleStats(now)
	}
	if !r.tables.StoreRule(set, rule, s) {
		r.ruleStats.remove(s, r.now())
	}
	return s
}

// domainStatsOf is statsOf for a domain.
func (r *Registry) domainStatsOf(table *RuleTable[ruleStats], set *rules.Set, d *rules.Domain) *ruleStats {
	if s := table.Domain(d).Load(); s != nil {
		return s
	}
	r.ruleStatsMu.Lock()
	defer r.ruleStatsMu.Unlock()
	s := r.ruleStats.open(statsKey{d.Name, ""}, d.Name)
	if !r.tables.StoreDomain(set, d, s) {
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

func keyOf(rule *rules.Rule) statsKey {
	return statsKey{rule.Domain, strings.TrimPrefix(rule.FullName, rule.Domain+".")}
}

// openRuleStats returns the counters of a rule and marks them as in force.
func (r *Registry) openRuleStats(rule *rules.Rule) *ruleStats {
	s := r.ruleStats.open(keyOf(rule), rule.FullName)
	if rule.HoldIDKey != "" {
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

// open returns the counters with a key and marks them as in force. fullName is the full name of the rule, or the name
// of the domain.
func (b *statsByKey) open(key statsKey, fullName string) *ruleStats {
	s := b.byKey[key]
	if s == nil {
		fullName = strings.Clone(fullName) // The copy lets the texts of the Set be freed.
		s = &ruleStats{fullName: fullName, key: statsKey{fullName[:len(key.domain)], fullName[len(fullName)-len(key.rule):]}}
		b.byKey[s.key] = s
		b.all = append(b.all, s)
	}
	s.removedAt = time.Time{}
	return s
}

// remove marks counters as those of a rule or domain that is not in force. It does nothing if s is nil.
func (b *statsByKey) remove(s *ruleStats, now time.Time) {
	if s != nil {
		s.removedAt = now
		s.hasHolds.Store(false)
		s.hasEnforcement.Store(false)
		b.removed[s] = true
	}
}

// deleteExpired deletes counters that were removed keepRemovedFor ago or earlier. If more than most
// removed ones are left, it deletes the oldest, except those removed at now.
func (b *statsByKey) deleteExpired(n *namedHitTable, now time.Time, most int) {
	var removed []*ruleStats
	for s := range b.removed {
		if s.removedAt.IsZero() {
			delete(b.removed, s)
		} else {
			removed = append(removed, s)
		}
	}
	slices.SortFunc(removed, func(x, y *ruleStats) int {
		return cmp.Or(x.removedAt.Compare(y.removedAt), cmp.Compare(x.key.domain, y.key.domain),
			cmp.Compare(x.key.rule, y.key.rule))
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
		delete(b.byKey, s.key)
	}
	if expired > 0 {
		b.all = slices.AppendSeq(make([]*ruleStats, 0, len(b.byKey)), maps.Values(b.byKey))
	}
}
