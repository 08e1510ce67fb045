package overlimit

import "ratelimit/src/algorithm"

// scratch is the memory of one Take, used again for the next.
type scratch struct {
	marks []mark          // one for each hit of the batch
	on    algorithm.Batch // what goes on to the next store
	from  []int           // the place in the batch of each hit of on

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
	if cap(s.marks) > maxKept {
		return
	}
	clear(s.on.Hits) // they point to the caller's keys and to rules
	clear(s.on.Verdicts)
	s.on = algorithm.Batch{Hits: s.on.Hits[:0], Verdicts: s.on.Verdicts[:0]}
	s.marks, s.from = s.marks[:0], s.from[:0]
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

// gather fills s.on with the hits that go on. Groups get new numbers, so that
// two of the same number stay apart when those between them are answered.
func (s *scratch) gather(b *algorithm.Batch) {
	s.on.Now = b.Now
	group, fresh := uint16(0), false
	for i := range b.Hits {
		fresh = fresh || i > 0 && b.Hits[i].Group != b.Hits[i-1].Group
		if s.marks[i].fate == answered {
			continue
		}
		if fresh {
			group++ // wraps; neighbours still differ
			fresh = false
		}
		h := b.Hits[i]
		h.Group = group
		if s.marks[i].fate == looked {
			h = h.AsLook()
		}
		s.on.Hits = append(s.on.Hits, h)
		s.on.Verdicts = append(s.on.Verdicts, algorithm.Verdict{})
		s.from = append(s.from, i)
	}
}

// scatter hands the verdicts on what went on to where they belong in b.
func (s *scratch) scatter(b *algorithm.Batch) {
	for k, i := range s.from {
		b.Verdicts[i] = b.Hits[i].Looked(s.on.Verdicts[k])
	}
}
