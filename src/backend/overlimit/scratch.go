package overlimit

import "ratelimit/src/algorithm"

// scratch is the memory of one Take, used again for the next.
type scratch struct {
	marks []mark         // one for each hit of the batch
	on    algorithm.Part // what goes on to the next store

	// Handed to freecache, which would make locals escape.
	id    id
	value [entryBytes]byte
}

// mark is what the cache knows of a hit.
type mark struct {
	id        id
	evictions uint64 // of the counter's guard, before the store was asked
	fate      fate
}

type fate uint8

const (
	passedOn fate = iota
	// answered hits have their verdict already.
	answered
	// looked hits belong to an atomic group that an answered hit refuses: they
	// go on as looks.
	looked
)

// maxKept bounds what a scratch keeps for the next batch.
const maxKept = 1024

func (c *Cache) release(s *scratch) {
	if !s.on.Reset() || cap(s.marks) > maxKept {
		return
	}
	s.marks = s.marks[:0]
	c.pool.Put(s)
}

// written says whether a hit before the last one that is marked writes to its
// counter.
func written(hits []algorithm.Hit, marks []mark) bool {
	last := len(marks) - 1
	for i := range last {
		if op := hits[i].Op; (op == algorithm.Refund || op == algorithm.Force) && marks[i].id == marks[last].id {
			return true
		}
	}
	return false
}

// settle decides what becomes of the rest of a group of which some hits are
// answered. It says false if nothing may be answered after all: looks do not
// see each other, so when a hit that has to go on as one shares its counter
// with a hit before it, only the store can judge the group.
func settle(hits []algorithm.Hit, marks []mark) bool {
	vetoed := false
	for i := range hits {
		vetoed = vetoed || marks[i].fate == answered && !hits[i].NoVeto
	}
	if !vetoed || !algorithm.AnyAtomic(hits) {
		return true
	}
	for i := range hits {
		if !hits[i].Atomic || marks[i].fate == answered {
			continue
		}
		marks[i].fate = looked
		for j := range i {
			if marks[j].id == marks[i].id {
				for k := range marks {
					marks[k].fate = passedOn
				}
				return false
			}
		}
	}
	return true
}

// gather fills s.on with the hits that go on.
func (s *scratch) gather(b *algorithm.Batch) {
	for i := range b.Hits {
		switch s.marks[i].fate {
		case passedOn:
			s.on.Add(b, i)
		case looked:
			s.on.AddLook(b, i)
		}
	}
}
