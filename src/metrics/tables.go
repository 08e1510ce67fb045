package metrics

import (
	"sync/atomic"
	"weak"

	"ratelimit/src/rules"
)

// TablePerSet holds one table for the Set in force and one for the Set before it, which requests
// that started before the reload still use. It does not keep the older Set alive.
type TablePerSet[T any] struct{ setTables atomic.Pointer[setTables[T]] }

type setTables[T any] struct {
	set           *rules.Set
	previousSet   weak.Pointer[rules.Set] // was in force before set.
	table         T                       // belongs to set.
	previousTable T                       // belongs to previousSet.
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

// RuleTable has a place for a value of each rule and of each domain of a Set. A place is nil until a value is stored,
// so rules without traffic take little memory.
type RuleTable[T any] struct{ rules, domains []atomic.Pointer[T] }

// Rule returns the place of a rule of the Set.
func (t *RuleTable[T]) Rule(r *rules.Rule) *atomic.Pointer[T] { return &t.rules[r.Index] }

// Domain returns the place of a domain of the Set.
func (t *RuleTable[T]) Domain(d *rules.Domain) *atomic.Pointer[T] { return &t.domains[d.Index] }

// RuleTables is a TablePerSet of RuleTables. A lock of the caller guards all methods but TableOf.
type RuleTables[T any] struct{ TablePerSet[RuleTable[T]] }

// Next returns a table for set with the values of the rules and domains that set has in common with the Set in force.
// added and removed are the others, as Set.Changes returns them. The caller then calls UseSet.
func (p *RuleTables[T]) Next(set *rules.Set) (next RuleTable[T], added, removed []*rules.Set) {
	before, old := p.InForce()
	added, removed = set.Changes(before)
	next = RuleTable[T]{nextPlaces(old.rules, set.RuleSlots()), nextPlaces(old.domains, set.DomainSlots())}
	for _, u := range removed {
		for _, r := range u.Rules() {
			clearPlace(next.rules, r.Index)
		}
		for _, d := range u.Domains() {
			clearPlace(next.domains, d.Index)
		}
	}
	return next, added, removed
}

// nextPlaces returns n places that start with the values of old.
func nextPlaces[T any](old []atomic.Pointer[T], n int) []atomic.Pointer[T] {
	next := make([]atomic.Pointer[T], n)
	for i := range min(n, len(old)) {
		if v := old[i].Load(); v != nil {
			next[i].Store(v)
		}
	}
	return next
}

// clearPlace clears a place, which may be beyond the end. Another rule may get it later.
func clearPlace[T any](places []atomic.Pointer[T], i int) {
	if i < len(places) {
		places[i].Store(nil)
	}
}

// StoreRule stores the value of a rule of set, which may have been replaced. It reports whether a rule with the same
// name is in force; that one gets the value, too.
func (p *RuleTables[T]) StoreRule(set *rules.Set, r *rules.Rule, v *T) (inForce bool) {
	if table, ok := p.TableOf(set); ok {
		table.Rule(r).Store(v)
	}
	now := p.RuleInForce(set, r)
	if now != nil {
		_, table := p.InForce()
		table.Rule(now).Store(v)
	}
	return now != nil
}

// RuleInForce returns the rule in force with the name of r, a rule of set; r itself if set is in force, and nil if
// there is none.
func (p *RuleTables[T]) RuleInForce(set *rules.Set, r *rules.Rule) *rules.Rule {
	if now, _ := p.InForce(); now != set {
		return now.Rule(r.Domain, r.FullName)
	}
	return r
}

// StoreDomain is StoreRule for a domain.
func (p *RuleTables[T]) StoreDomain(set *rules.Set, d *rules.Domain, v *T) (inForce bool) {
	if table, ok := p.TableOf(set); ok {
		table.Domain(d).Store(v)
	}
	now, table := p.InForce()
	if now != set {
		if d = now.Domain([]byte(d.Name)); d != nil {
			table.Domain(d).Store(v)
		}
	}
	return d != nil
}
