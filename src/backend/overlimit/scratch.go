package overlimit

import (
	"sync"

	"ratelimit/src/backend"
)

// scratch is the memory of one Take.
type scratch struct {
	lookups []hitLookup // one for each hit of the batch, in order
	// the index of the last lookup of each counter, plus 1. Small batches do not use it.
	lastLookupByCounter map[counterID]int
	forwardedHits       backend.SubBatch // are sent to the next store

	ownEvictions [numGuards]uint64 // counts the evictions of this Take by guard. They are 0 unless hasEvicted is set.
	hasEvicted   bool

	// Buffers for freecache; local variables would escape to the heap.
	idBuffer    counterID
	entryBuffer [entryBytes]byte
}

// hitLookup is what the cache knows of one hit of a batch.
type hitLookup struct {
	id              counterID
	previousLookup  int    // the index of the previous hit on the counter, or -1
	counterWritten  bool   // this hit, or an earlier one on the counter, writes the counter for certain
	entryStored     bool   // this hit, or an earlier one on the counter, made an entry
	evictionsBefore uint64 // the eviction count of the counter's guard before the store was asked
	action          hitAction
}

// hitAction is what the cache does with a hit.
type hitAction uint8

const (
	actionForward hitAction = iota // sends the hit to the next store
	// actionForwardAsLook sends the hit as a look, because the cache refuses its atomic group.
	actionForwardAsLook
	actionRefuse // refuses the hit without asking the store
)

const (
	// smallBatchHits is the most hits of a batch that uses Cache.smallBatchPool.
	smallBatchHits = 128
	// maxLinearSearchHits is the most hits of a batch that is searched without a map, which is faster.
	maxLinearSearchHits = 8
)

// scratchPool holds scratches that have memory for at most a number of hits.
type scratchPool struct {
	sync.Pool
	maxPooledHits int
}

func newScratchPool(maxHits int) scratchPool {
	return scratchPool{sync.Pool{New: func() any { return new(scratch) }}, maxHits}
}

// release puts s into the pool, unless it has memory for too many hits.
func (p *scratchPool) release(s *scratch) {
	if s.forwardedHits.Reset(p.maxPooledHits) && cap(s.lookups) <= p.maxPooledHits {
		s.lookups = s.lookups[:0]
		clear(s.lastLookupByCounter)
		if s.hasEvicted {
			clear(s.ownEvictions[:])
			s.hasEvicted = false
		}
		p.Put(s)
	}
}

// addLookup appends the lookup of the next hit of a batch of size hits.
func (s *scratch) addLookup(counter counterID, size int) *hitLookup {
	previous := len(s.lookups) - 1
	if size > maxLinearSearchHits {
		if s.lastLookupByCounter == nil {
			s.lastLookupByCounter = make(map[counterID]int, size)
		}
		previous = s.lastLookupByCounter[counter] - 1
		s.lastLookupByCounter[counter] = len(s.lookups) + 1
	} else {
		for previous >= 0 && s.lookups[previous].id != counter {
			previous--
		}
	}
	s.lookups = append(s.lookups, hitLookup{id: counter, previousLookup: previous})
	return &s.lookups[len(s.lookups)-1]
}

// setGroupActions sets the actions of the hits of a group of which the cache refuses some. start is the index of the
// group's first hit in the batch. It returns false if the store must decide the whole group: looks do not see each
// other, so a hit must not become a look if the group has an earlier hit on its counter.
func setGroupActions(hits []backend.Hit, lookups []hitLookup, start int) bool {
	refused := false
	for i := range hits {
		refused = refused || lookups[i].action == actionRefuse && !hits[i].NoVeto
	}
	if !refused || !backend.AnyAtomic(hits) {
		return true
	}
	for i := range hits {
		if !hits[i].Atomic || lookups[i].action == actionRefuse {
			continue
		}
		lookups[i].action = actionForwardAsLook
		if lookups[i].previousLookup >= start {
			for k := range lookups {
				lookups[k].action = actionForward
			}
			return false
		}
	}
	return true
}
