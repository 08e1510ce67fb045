package rules

// Joiner joins Sets that were compiled alone into one, so that a change of one of them need not compile the others again. Its zero value
// is ready to use. One goroutine at a time may call it.
type Joiner struct {
	joined        map[*Set]bool // joined are the Sets of the last Join.
	ruleIndexes   indexes
	domainIndexes indexes
}

// Join returns a Set with the domains of all sets, which have no domain in common. It shares their domains and rules and sets their
// indexes, so a Set in sets must be new, or one of the last Join. A Set that was left out may not come back.
func (j *Joiner) Join(sets []*Set) *Set {
	now := make(map[*Set]bool, len(sets))
	for _, s := range sets {
		now[s] = true
	}
	for s := range j.joined {
		if !now[s] {
			s.release(j)
		}
	}
	all := &Set{domainsByName: make(map[string]*Domain)}
	for _, s := range sets {
		if !j.joined[s] {
			s.setIndexes(j)
		}
		all.rules = append(all.rules, s.rules...)
		all.domains = append(all.domains, s.domains...)
		for _, d := range s.domains {
			all.domainsByName[d.Name] = d
		}
	}
	j.joined = now
	all.ruleSlots, all.domainSlots = j.ruleIndexes.end, j.domainIndexes.end
	all.findOnlyOrderedList()
	return all
}

// setIndexes gives the rules and domains of s indexes that no other Set of j has.
func (s *Set) setIndexes(j *Joiner) {
	for _, r := range s.rules {
		r.Index = j.ruleIndexes.take()
	}
	for _, d := range s.domains {
		d.Index = j.domainIndexes.take()
	}
}

// release lets other Sets of j have the indexes of s. Requests that still use s are not affected: an index belongs to a joined Set.
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
	end  int // end is the first number that was never given out.
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

// findOnlyOrderedList sets onlyOrderedListDomain.
func (s *Set) findOnlyOrderedList() {
	lists := 0
	for _, d := range s.domains {
		if _, is := d.matcher.(*orderedList); is {
			if s.onlyOrderedListDomain = []byte(d.Name); lists > 0 {
				s.onlyOrderedListDomain = nil
			}
			lists++
		}
	}
}
