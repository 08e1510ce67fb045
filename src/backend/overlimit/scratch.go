package overlimit

import "ratelimit/src/backend"

// scratch is the memory of one Take.
type scratch struct {
	marks []mark       // one for each hit of the batch
	rest  backend.Part // the hits for the next store
	seen  map[id]int   // the last mark of each counter; empty for small batches

	// Buffers for freecache, which would make locals escape.
	id    id
	value [entryBytes]byte

	large bool // it belongs to Cache.largePool
}

// mark is what the cache notes of a hit.
type mark struct {
	id        id
	before    int    // the previous mark on the same counter; -1: none
	written   bool   // this hit or one before it writes to the counter for certain
	stored    bool   // this hit or one before it on the counter made an entry
	evictions uint64 // of the counter's guard before the store was asked
	fate      fate
}

type fate uint8

const (
	sent   fate = iota
	looked      // sent as a look, since an answered hit refuses its atomic group
	answered
)

const (
	// fewHits is the largest batch that uses Cache.pool.
	fewHits = 128
	// maxKept is the most marks for which a large scratch is kept: 1,000, and the room that
	// append adds.
	maxKept = 2048
	// smallBatch is up to how many hits a linear search is faster than a map.
	smallBatch = 8
)

// add appends the mark of the next hit of a batch of that size.
func (s *scratch) add(counter id, size int) *mark {
	m := mark{id: counter, before: -1}
	if size > smallBatch {
		if s.seen == nil {
			s.seen = make(map[id]int, size)
		}
		if before, found := s.seen[counter]; found {
			m.before = before
		}
		s.seen[counter] = len(s.marks)
	} else {
		for i := len(s.marks) - 1; i >= 0 && m.before < 0; i-- {
			if s.marks[i].id == counter {
				m.before = i
			}
		}
	}
	s.marks = append(s.marks, m)
	return &s.marks[len(s.marks)-1]
}

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
	if cap(s.rest.From) <= most && cap(s.marks) <= most {
		s.rest.Empty()
		s.marks = s.marks[:0]
		clear(s.seen)
		pool.Put(s)
	}
}

// completeGroup decides what becomes of the other hits of a group of which some are
// answered. start is the index of its first hit in the batch. It returns false if the store
// must decide the whole group: looks do not see each other, so a hit must not become a look
// if the group has an earlier hit on its counter.
func completeGroup(hits []backend.Hit, marks []mark, start int) bool {
	refused := false
	for i := range hits {
		refused = refused || marks[i].fate == answered && !hits[i].NoVeto
	}
	if !refused || !backend.AnyAtomic(hits) {
		return true
	}
	for i := range hits {
		if !hits[i].Atomic || marks[i].fate == answered {
			continue
		}
		marks[i].fate = looked
		if marks[i].before >= start {
			for k := range marks {
				marks[k].fate = sent
			}
			return false
		}
	}
	return true
}

// addUnknown fills s.rest with the hits that were not answered.
func (s *scratch) addUnknown(b *backend.Batch) {
	for i := range b.Hits {
		switch s.marks[i].fate {
		case sent:
			s.rest.Add(b, i)
		case looked:
			s.rest.AddLook(b, i)
		}
	}
}
