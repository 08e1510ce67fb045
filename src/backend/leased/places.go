package leased

import "ratelimit/src/backend"

// places says where the leases of some hits of a batch are. The leases of many counters are rarely in the processor's
// cache. So the index and the leases of several hits are loaded at a time, without the locks, instead of waiting for
// one after the other.
type places struct {
	located int // the index in the batch of the first hit whose place is not known
	ring    [placesAhead]place
}

// placesAhead is how many places are found at a time: those of which leases stay in the nearest cache.
const placesAhead = 32

// place is where the lease of a hit is.
type place struct {
	hash     hash
	guess    uint32 // the slot of the lease before the shard was locked; 0: none was found
	isLeased bool   // if not set, the hit is counted exactly, and hash and guess say nothing
	// isRepeated says that the hit before has the same place.
	isRepeated bool
}

// of returns the place of hit i. Hits must be asked for in their order.
func (p *places) of(s *Store, hits []backend.Hit, i int) *place {
	if i == p.located {
		p.locate(s, hits[i:min(i+placesAhead, len(hits))])
		p.located = min(i+placesAhead, len(hits))
	}
	return &p.ring[i%placesAhead]
}

// locate finds the places of hits. The first of them has an index that placesAhead divides.
func (p *places) locate(s *Store, hits []backend.Hit) {
	for i := range hits {
		h, at := &hits[i], &p.ring[i]
		if at.isRepeated = i > 0 && sameCounter(h, &hits[i-1]); at.isRepeated {
			at.hash, at.isLeased = p.ring[i-1].hash, p.ring[i-1].isLeased
		} else if at.isLeased = canLease(h); at.isLeased {
			at.hash = s.seeds.ofHit(h)
		}
	}
	if len(hits) == 1 {
		p.ring[0].guess = 0 // It would be found twice, one after the other.
		return
	}
	for i := range hits {
		if at := &p.ring[i]; at.isLeased && !at.isRepeated {
			s.shards[at.hash.shard].tables.Load().load(at.hash.tag)
		}
	}
	for i := range hits {
		if at := &p.ring[i]; at.isRepeated {
			at.guess = p.ring[i-1].guess
		} else if at.isLeased {
			at.guess = s.shards[at.hash.shard].tables.Load().find(&at.hash)
		}
	}
}

// sameCounter reports whether hits have equal places.
func sameCounter(a, b *backend.Hit) bool {
	return a.Limit == b.Limit && a.SharesKey == b.SharesKey && a.Counting == b.Counting &&
		a.StoresRemaining == b.StoresRemaining && string(a.Key) == string(b.Key)
}

// load starts to load the part of the index that has a tag.
func (t *tables) load(tag uint32) {
	if len(t.index) > 0 {
		t.index[t.home(tag)].Load()
	}
}
