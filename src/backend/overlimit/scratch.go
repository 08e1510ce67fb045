package overlimit

import (
	"sync"

	"ratelimit/src/backend"
)

// scratch is the memory of one Take.
type scratch struct {
	marks []mark       // one for each hit of the batch
	rest  backend.Part // the hits for the next store
	seen  map[id]int   // the last mark of each counter, plus 1; empty for small batches

	// Buffers for freecache, which would make locals escape.
	id    id
	value [entryBytes]byte
}

func newScratch() any { return new(scratch) }

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
	before := len(s.marks) - 1
	if size > smallBatch {
		if s.seen == nil {
			s.seen = make(map[id]int, size)
		}
		before = s.seen[counter] - 1
		s.seen[counter] = len(s.marks) + 1
	} else {
		for before >= 0 && s.marks[before].id != counter {
			before--
		}
	}
	s.marks = append(s.marks, mark{id: counter, before: before})
	return &s.marks[len(s.marks)-1]
}

// poolFor returns the pool for a batch of that many hits, and the most hits that a scratch in
// it has memory for.
func (c *Cache) poolFor(hits int) (pool *sync.Pool, most int) {
	if hits > fewHits {
		return &c.largePool, maxKept
	}
	return &c.pool, 2 * fewHits
}

// release puts s into pool, if it has memory for no more than that many hits.
func (s *scratch) release(pool *sync.Pool, most int) {
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
