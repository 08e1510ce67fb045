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

// Owner has a value in a RuleTable: a rule of a Set, or a domain. One of the fields is set.
type Owner struct {
	Rule   *rules.Rule
	Domain *rules.Domain
}

// Name returns the name of the owner in figures.
func (o Owner) Name() RuleName {
	if o.Rule != nil {
		return NameOf(o.Rule)
	}
	return RuleName{Domain: o.Domain.Name}
}

// in returns the owner in set with the name of o. ok is false if there is none.
func (o Owner) in(set *rules.Set) (_ Owner, ok bool) {
	if o.Rule != nil {
		r := set.Rule(o.Rule.Domain, o.Rule.FullName)
		return Owner{Rule: r}, r != nil
	}
	d := set.Domain([]byte(o.Domain.Name))
	return Owner{Domain: d}, d != nil
}

// ownersOf returns all rules and domains of the Sets.
func ownersOf(sets []*rules.Set) (list []Owner) {
	for _, set := range sets {
		for _, r := range set.Rules() {
			list = append(list, Owner{Rule: r})
		}
		for _, d := range set.Domains() {
			list = append(list, Owner{Domain: d})
		}
	}
	return list
}

// RuleTable has a place for a value of each rule and of each domain of a Set. A place is nil until a value is stored,
// so rules without traffic take little memory.
type RuleTable[T any] struct{ rules, domains []atomic.Pointer[T] }

// Of returns the place of a rule or a domain of the Set.
func (t *RuleTable[T]) Of(o Owner) *atomic.Pointer[T] {
	places, i := t.placeOf(o)
	return &places[i]
}

func (t *RuleTable[T]) placeOf(o Owner) (places []atomic.Pointer[T], i int) {
	if o.Rule != nil {
		return t.rules, o.Rule.Index
	}
	return t.domains, o.Domain.Index
}

// RuleTables is a TablePerSet of RuleTables. A lock of the caller guards all methods but TableOf.
type RuleTables[T any] struct{ TablePerSet[RuleTable[T]] }

// Next returns a table for set with the values of the rules and domains that set has in common with the Set in force,
// and the others. The caller then calls UseSet.
func (p *RuleTables[T]) Next(set *rules.Set) (next RuleTable[T], added, removed []Owner) {
	before, old := p.InForce()
	addedSets, removedSets := set.Changes(before)
	added, removed = ownersOf(addedSets), ownersOf(removedSets)
	next = RuleTable[T]{nextPlaces(old.rules, set.RuleSlots()), nextPlaces(old.domains, set.DomainSlots())}
	for _, o := range removed {
		if places, i := next.placeOf(o); i < len(places) {
			places[i].Store(nil) // Another rule may get it later.
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

// Store stores the value of an owner in set, which may have been replaced. It reports whether an owner with the same
// name is in force; that one gets the value, too.
func (p *RuleTables[T]) Store(set *rules.Set, o Owner, v *T) (inForce bool) {
	if table, ok := p.TableOf(set); ok {
		table.Of(o).Store(v)
	}
	now, inForce := p.OwnerInForce(set, o)
	if inForce {
		_, table := p.InForce()
		table.Of(now).Store(v)
	}
	return inForce
}

// OwnerInForce returns the owner in force with the name of o, which is in set: o itself if set is in force. ok is false
// if there is none.
func (p *RuleTables[T]) OwnerInForce(set *rules.Set, o Owner) (_ Owner, ok bool) {
	if now, _ := p.InForce(); now != set {
		return o.in(now)
	}
	return o, true
}
