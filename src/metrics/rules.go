package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"weak"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Outcome is the result of one descriptor.
type Outcome uint8

// Unmatched descriptors have no rule. All other outcomes are those of a rule.
const (
	OutcomeWithin Outcome = iota
	OutcomeNear
	OutcomeOver
	OutcomeShadow // OutcomeShadow hits are over the limit, but allowed because the rule is in shadow mode or not enforced for the counter.
	OutcomeUnlimited
	OutcomeRefunded
	OutcomeUnmatched
	OutcomeUncharged // OutcomeUncharged hits are within the limit, but another limit refused the request.
	OutcomeSettled   // OutcomeSettled descriptors settled a hold.
	outcomeCount
)

var outcomeNames = [outcomeCount]string{"within", "near", "over", "shadow", "unlimited", "refunded", "unmatched", "uncharged", "settled"}

// String returns the outcome in lower case, such as "within".
func (o Outcome) String() string { return outcomeNames[o] }

// ruleStats has the counters of all rules with the same key, or of a domain. It does not
// refer to a rule, so that a Set can be freed after a reload.
type ruleStats struct {
	fullName          string     // fullName is the full name of the rules, or empty for a domain.
	namedHits         *namedHits // namedHits is nil if countsByKey is false for all rules with this key.
	outcomeCounts     [outcomeCount]Counter
	hasHolds          bool // hasHolds says that a rule with this key in force has holds. Registry.ruleStatsMu guards it.
	holdCounts        holdCounts
	unansweredCharges [4]Counter // unansweredCharges counts charges that the store did not answer. The index is a backend.Fallback.
	hasEnforcement    bool       // hasEnforcement says that a rule with this key in force has enforce_percent. Registry.ruleStatsMu guards it.
	unenforced        Counter    // unenforced counts decisions on counters that enforce_percent leaves out.
	removedAt         time.Time  // removedAt is when a reload removed the rule, or zero.
}

// holdCounts counts what became of the holds of a rule.
type holdCounts struct{ opened, closed, expired, excessUnits Counter }

// add adds what a hit did to holds.
func (h *holdCounts) add(v *algorithm.Outcome) {
	if v.HoldOpened {
		h.opened.Add(1)
	}
	if v.HoldClosed {
		h.closed.Add(1)
	}
	if v.HoldsExpired > 0 {
		h.expired.Add(uint64(v.HoldsExpired))
	}
	if v.HoldExcess > 0 {
		h.excessUnits.Add(v.HoldExcess)
	}
}

// statsKey identifies a rule in its domain. The counters of a domain have an empty rule.
type statsKey struct{ domain, rule string }

// countsByKey reports whether the hits of r count under the key of r. Hits of per-value
// rules count under values of the request; hits of unlimited rules have no hit counters.
func countsByKey(r *rules.Rule) bool { return !r.Unlimited && !r.MetricNameHasValues() }

// setCounters has the counters of each rule and domain of a Set. The position is Rule.Index or Domain.Index.
type setCounters struct{ ruleStats, domainStats []*ruleStats }

// TablePerSet holds one table for the Set in force and one for the Set before it, which requests
// that started before the reload still use. It does not keep the older Set alive.
type TablePerSet[T any] struct{ setTables atomic.Pointer[setTables[T]] }

type setTables[T any] struct {
	set           *rules.Set
	previousSet   weak.Pointer[rules.Set] // previousSet was in force before set.
	table         T                       // table belongs to set.
	previousTable T                       // previousTable belongs to previousSet.
}

// UseSet puts set in force with its table. Only one goroutine at a time may call it.
func (p *TablePerSet[T]) UseSet(set *rules.Set, table T) {
	next := &setTables[T]{set: set, table: table}
	if old := p.setTables.Load(); old != nil {
		next.previousSet, next.previousTable = weak.Make(old.set), old.table
	}
	p.setTables.Store(next)
}

// InForce returns the Set in force and its table. The Set is nil before the first UseSet.
func (p *TablePerSet[T]) InForce() (set *rules.Set, table T) {
	if t := p.setTables.Load(); t != nil {
		return t.set, t.table
	}
	return nil, table
}

// clearPosition clears a position of a table, which may be shorter. Another rule may get the position later.
func clearPosition[T any](table []*T, i int) {
	if i < len(table) {
		table[i] = nil
	}
}

// nextTable returns a table of n positions that starts with the values of table.
func nextTable[T any](table []T, n int) []T {
	return slices.Concat(table, make([]T, max(n-len(table), 0)))[:n]
}

// TableOf returns the table of set. It returns false if set is older than the last two Sets.
func (p *TablePerSet[T]) TableOf(set *rules.Set) (table T, ok bool) {
	switch t := p.setTables.Load(); {
	case t == nil:
	case t.set == set:
		return t.table, true
	case t.previousSet.Value() == set:
		return t.previousTable, true
	}
	return table, false
}

// ruleStatsByKey has the counters of all rules and domains in force, and of those that a reload
// removed less than keepRemovedFor ago. If one of these returns, its counters continue.
type ruleStatsByKey map[statsKey]*ruleStats

// keepRemovedFor is how long the counters of removed rules are shown, unless there are too many.
const keepRemovedFor = time.Hour

// UseRules puts the rules of set in force. Rules and domains that keep their name keep their counters.
func (r *Registry) UseRules(set *rules.Set) {
	r.ruleStatsMu.Lock()
	defer r.ruleStatsMu.Unlock()
	now := r.now()
	before, old := r.setTables.InForce()
	t := setCounters{nextTable(old.ruleStats, set.RuleSlots()), nextTable(old.domainStats, set.DomainSlots())}
	added, removed := set.Changes(before)
	for _, u := range removed {
		for _, rule := range u.Rules() {
			s := old.ruleStats[rule.Index]
			s.removedAt, s.hasHolds, s.hasEnforcement = now, false, false
			clearPosition(t.ruleStats, rule.Index)
		}
		for _, d := range u.Domains() {
			old.domainStats[d.Index].removedAt = now
			clearPosition(t.domainStats, d.Index)
		}
	}
	for _, u := range added {
		for _, rule := range u.Rules() {
			t.ruleStats[rule.Index] = r.openRuleStats(rule)
		}
		for _, d := range u.Domains() {
			t.domainStats[d.Index] = r.ruleStats.openStats(d.Name, "")
		}
	}
	r.ruleStats.deleteExpired(r.namedHits, now, r.namedHits.maxUnused)
	r.setTables.UseSet(set, t)
}

// openRuleStats returns the counters of a rule and marks them as in force.
func (r *Registry) openRuleStats(rule *rules.Rule) *ruleStats {
	s := r.ruleStats.openStats(rule.Domain, strings.TrimPrefix(rule.FullName, rule.Domain+"."))
	if s.fullName == "" {
		s.fullName = strings.Clone(rule.FullName)
	}
	s.hasHolds = s.hasHolds || rule.HoldIDKey != ""
	s.hasEnforcement = s.hasEnforcement || rule.Enforcement != nil
	if s.namedHits == nil && countsByKey(rule) {
		s.namedHits = r.namedHits.acquireName(rulePrefixOf(rule.FullName))
	}
	return s
}

// openStats returns the counters of a rule or domain and marks them as in force.
func (b ruleStatsByKey) openStats(domain, rule string) *ruleStats {
	s := b[statsKey{domain, rule}]
	if s == nil {
		s = new(ruleStats)
		b[statsKey{strings.Clone(domain), strings.Clone(rule)}] = s // The copies let the texts of the Set be freed.
	}
	s.removedAt = time.Time{}
	return s
}

// deleteExpired deletes counters that were removed keepRemovedFor ago or earlier. If more than most
// removed ones are left, it deletes the oldest, except those removed at now.
func (b ruleStatsByKey) deleteExpired(n *namedHitTable, now time.Time, most int) {
	var removed []statsKey
	for key, s := range b {
		if !s.removedAt.IsZero() {
			removed = append(removed, key)
		}
	}
	slices.SortFunc(removed, func(x, y statsKey) int {
		return cmp.Or(b[x].removedAt.Compare(b[y].removedAt), cmp.Compare(x.domain, y.domain), cmp.Compare(x.rule, y.rule))
	})
	for i, key := range removed {
		s := b[key]
		age := now.Sub(s.removedAt)
		if age <= 0 || age < keepRemovedFor && len(removed)-i <= most {
			return
		}
		if s.namedHits != nil {
			n.releaseName(s.namedHits)
		}
		delete(b, key)
	}
}

// Decisions counts the decisions on a rule. Each charge of a descriptor is one decision, which is Admitted, Denied or Failed. Near and
// Shadow are parts of Admitted, and Fallback is a part of Admitted and Denied.
type Decisions struct {
	Admitted uint64 // Admitted are the decisions in which the rule did not refuse, also if another rule did.
	Denied   uint64 // Denied are the decisions in which the rule refused. Config.ShadowMode of the limiter does not matter here.
	Near     uint64 // Near are those above Config.NearRatio of the limit.
	Shadow   uint64 // Shadow are those over a limit that was not enforced: the rule is in shadow mode, or enforce_percent left out the counter.
	Fallback uint64 // Fallback are those that on_store_failure decided, because the store did not answer.
	Failed   uint64 // Failed are those that got an error as an answer, because the store did not answer.
}

// ForEachDecisions calls yield for each rule in force, and for rules that were removed within the last hour. name is the full name
// of the rule. Limits that came with requests are one rule without a domain, named "(request)". Decisions never decrease while the
// rule is known.
func (r *Registry) ForEachDecisions(yield func(domain, name string, d Decisions)) {
	r.ruleStatsMu.Lock()
	defer r.ruleStatsMu.Unlock()
	for key, s := range r.ruleStats {
		if key.rule != "" {
			yield(key.domain, s.fullName, s.decisions())
		}
	}
	yield("", requestLimitsName, r.requestLimitStats.decisions())
}

// Holds are the holds of a rule that this process opened, and found closed or expired.
type Holds struct {
	Opened, Expired uint64
	Closed          uint64 // Closed are those that were settled or released.
	ExcessUnits     uint64 // ExcessUnits are the units by which settlements exceeded their reservations.
}

// Open returns how many holds are open. It is 0 if this process closed more than it opened, because holds of other processes or of an
// earlier start are among them.
func (h Holds) Open() uint64 { return h.Opened - min(h.Opened, h.Closed+h.Expired) }

// ForEachHolds calls yield for each rule in force that has holds. name is the full name of the rule.
func (r *Registry) ForEachHolds(yield func(domain, name string, h Holds)) {
	r.ruleStatsMu.Lock()
	defer r.ruleStatsMu.Unlock()
	for key, s := range r.ruleStats {
		if s.hasHolds {
			yield(key.domain, s.fullName, s.holdCounts.read())
		}
	}
}

func (h *holdCounts) read() Holds {
	return Holds{Opened: h.opened.Load(), Closed: h.closed.Load(), Expired: h.expired.Load(), ExcessUnits: h.excessUnits.Load()}
}

// requestLimitsName stands for the limits that came with requests, where a rule is named.
const requestLimitsName = "(request)"

func (s *ruleStats) decisions() Decisions {
	o := func(outcome Outcome) uint64 { return s.outcomeCounts[outcome].Load() }
	d := Decisions{Denied: o(OutcomeOver), Near: o(OutcomeNear), Shadow: o(OutcomeShadow)}
	d.Admitted = o(OutcomeWithin) + d.Near + d.Shadow + o(OutcomeUnlimited) + o(OutcomeUncharged)
	for f := range s.unansweredCharges {
		if n := s.unansweredCharges[f].Load(); backend.Fallback(f) == backend.FallbackError {
			d.Failed = n
		} else {
			d.Fallback += n
		}
	}
	return d
}
