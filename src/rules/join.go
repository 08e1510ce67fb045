package rules

import (
	"hash/fnv"
	"slices"
)

// Union returns a Set with the domains of all sets, which have no domain in common and were each compiled alone. It
// shares their domains and rules, so that a change of one of them need not compile the others again. Their indexes are
// not set: only a Joiner may use the result.
func Union(sets []*Set) *Set {
	all := &Set{domainsByName: make(map[string]*Domain, len(sets)), units: sets}
	rules := 0
	for _, s := range sets {
		rules += len(s.rules)
	}
	all.rules, all.domains = make([]*Rule, 0, rules), make([]*Domain, 0, len(sets))
	for _, s := range sets {
		all.rules = append(all.rules, s.rules...)
		all.domains = append(all.domains, s.domains...)
		for _, d := range s.domains {
			all.domainsByName[d.Name] = d
		}
	}
	all.findOnlyOrderedList()
	return all
}

// Joiner joins Sets and gives each rule and domain an index of its own. Its zero value is ready to use. One goroutine
// at a time may call it.
type Joiner struct {
	joined        map[*Set]bool // the Sets of the last Join that were compiled alone
	ruleIndexes   indexes
	domainIndexes indexes
}

// Join returns the Union of all sets, with indexes. Each Set that was compiled alone must be new, or one of the last
// Join: one that was left out may not come back.
func (j *Joiner) Join(sets []*Set) *Set {
	var units []*Set
	for _, s := range sets {
		units = append(units, s.compiledAlone()...)
	}
	now := make(map[*Set]bool, len(units))
	for _, s := range units {
		now[s] = true
	}
	for s := range j.joined {
		if !now[s] {
			s.release(j)
		}
	}
	for _, s := range units {
		if !j.joined[s] {
			s.setIndexes(j)
		}
	}
	j.joined = now
	all := Union(units)
	all.ruleSlots, all.domainSlots = j.ruleIndexes.end, j.domainIndexes.end
	return all
}

// Changes returns what differs between before, a Set or nil, and s: Sets with the rules and domains that only s has,
// and those that only before has. All others are the same rules, with the same indexes.
func (s *Set) Changes(before *Set) (added, removed []*Set) {
	var old []*Set
	if before != nil {
		old = before.compiledAlone()
	}
	known := make(map[*Set]bool, len(old))
	for _, u := range old {
		known[u] = true
	}
	for _, u := range s.compiledAlone() {
		if !known[u] {
			added = append(added, u)
		}
		delete(known, u)
	}
	return added, slices.DeleteFunc(old, func(u *Set) bool { return !known[u] })
}

// compiledAlone returns a new list of the Sets that were compiled alone and joined to s: s itself if it was compiled
// alone.
func (s *Set) compiledAlone() []*Set {
	if s.units == nil {
		return []*Set{s}
	}
	return slices.Clone(s.units)
}

// setIndexes gives the rules and domains of s indexes that no other Set of j has.
func (s *Set) setIndexes(j *Joiner) {
	for _, r := range s.rules {
		r.Index, r.Owner = j.ruleIndexes.take(), ownerOf(r)
	}
	for _, c := range s.copies {
		c.Copy.Index, c.Copy.Owner = c.Rule.Index, c.Rule.Owner
	}
	for _, d := range s.domains {
		d.Index = j.domainIndexes.take()
	}
}

// ownerOf returns the Owner of r, which is not 0.
func ownerOf(r *Rule) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Domain + "\x00" + r.FullName))
	return max(h.Sum32(), 1)
}

// release lets other Sets of j have the indexes of s. Requests that still use s are not affected: an index belongs to a
// joined Set.
func (s *Set) release(j *Joiner) {
	for _, r := range s.rules {
		j.ruleIndexes.free = append(j.ruleIndexes.free, r.Index)
	}
	for _, d := range s.domains {
		j.domainIndexes.free = append(j.domainIndexes.free, d.Index)
	}
}

// indexes gives out numbers from 0 on. Numbers that are free again come first, so tables that they index stay small.
type indexes struct {
	free []int
	end  int // the first number that was never given out
}

func (x *indexes) take() int {
	if n := len(x.free); n > 0 {
		index := x.free[n-1]
		x.free = x.free[:n-1]
		return index
	}
	x.end++
	return x.end - 1
}
