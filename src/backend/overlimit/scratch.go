package overlimit

import "ratelimit/src/backend"

// scratch is the memory of one Take, used again for the next.
type scratch struct {
	marks []mark       // one for each hit of the batch
	on    backend.Part // what goes on to the next store
	seen  map[id]int   // the latest mark of each counter; empty for small batches

	// Handed to freecache, which would make locals escape.
	id    id
	value [entryBytes]byte

	large bool // of Cache.largePool
}

// mark is what the cache knows of a hit.
type mark struct {
	id        id
	before    int    // the mark before on the same counter; -1: none
	written   bool   // a hit before writes to the counter whatever its limit says
	stored    bool   // an entry was learnt from this hit, or from one before on the counter
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

const (
	// maxKept bounds the hits for which a large scratch is kept for the next batch: 1,000,
	// and what append makes room for besides. Others are kept for fewHits, with such
	// room: small batches may wait for the next store in thousands.
	maxKept = 2048
	fewHits = 128
	// smallBatch is up to how many hits looking through all of them is faster than
	// a map.
	smallBatch = 8
)

// add marks the next hit of a batch of that size, and links it to the one before on
// the same counter.
func (s *scratch) add(counter id, size int) *mark {
	m := mark{id: counter, before: -1}
	switch {
	case size > smallBatch:
		if s.seen == nil {
			s.seen = make(map[id]int, size)
		}
		if before, found := s.seen[counter]; found {
			m.before = before
		}
		s.seen[counter] = len(s.marks)
	default:
		for i := len(s.marks) - 1; i >= 0 && m.before < 0; i-- {
			if s.marks[i].id == counter {
				m.before = i
			}
		}
	}
	s.marks = append(s.marks, m)
	return &s.marks[len(s.marks)-1]
}

// scratchFor returns the memory for a batch of that many hits.
func (c *Cache) scratchFor(hits int) *scratch {
	if hits > fewHits {
		return c.largePool.Get().(*scratch)
	}
	return c.pool.Get().(*scratch)
}

func (c *Cache) release(s *scratch) {
	pool, most := &c.pool, 2*fewHits
	if s.large {
		pool, most = &c.largePool, maxKept
	}
	if cap(s.on.From) > most || cap(s.marks) > most {
		return
	}
	s.on.Empty()
	s.marks = s.marks[:0]
	clear(s.seen)
	pool.Put(s)
}

// settle decides what becomes of the rest of a group of which some hits are
// answered; start is the place of its first hit in the batch. It says false if
// nothing may be answered after all: looks do not see each other, so when a hit that
// has to go on as one shares its counter with a hit of the group before it, only the
// store can judge the group.
func settle(hits []backend.Hit, marks []mark, start int) bool {
	vetoed := false
	for i := range hits {
		vetoed = vetoed || marks[i].fate == answered && !hits[i].NoVeto
	}
	if !vetoed || !backend.AnyAtomic(hits) {
		return true
	}
	for i := range hits {
		if !hits[i].Atomic || marks[i].fate == answered {
			continue
		}
		marks[i].fate = looked
		if marks[i].before >= start {
			for k := range marks {
				marks[k].fate = passedOn
			}
			return false
		}
	}
	return true
}

// gather fills s.on with the hits that go on.
func (s *scratch) gather(b *backend.Batch) {
	for i := range b.Hits {
		switch s.marks[i].fate {
		case passedOn:
			s.on.Add(b, i)
		case looked:
			s.on.AddLook(b, i)
		}
	}
}
