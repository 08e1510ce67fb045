package simulate

import "hash/maphash"

// busiest finds the key with the most hits in bounded memory. As long as there
// are no more than maxCounted keys it is exact. Beyond that a newcomer takes the
// place of the key with the fewest and goes on from its count, so counts are too
// high by at most that, and any key with more than a maxCounted-th of all hits
// is there.
//
// Source: Metwally et al., "Efficient Computation of Frequent and Top-k Elements
// in Data Streams" (Space-Saving).
type busiest struct {
	places map[uint64]int // of keys in heap, by their hash
	heap   []counted      // the fewest first
}

// maxCounted is how many keys are counted at a time.
const maxCounted = 1000

// maxShown is how much of a key is kept, in bytes: one may have a megabyte.
const maxShown = 120

// counted is one key.
type counted struct {
	key   string // up to maxShown
	hash  uint64
	hits  uint64
	above uint64 // how much too high hits may be
}

var seed = maphash.MakeSeed()

// add counts n hits on key.
func (b *busiest) add(key []byte, n uint64) {
	hash := maphash.Bytes(seed, key)
	at, known := b.places[hash]
	switch {
	case known:
		b.heap[at].hits += n
	case len(b.heap) < maxCounted:
		if b.places == nil {
			b.places = make(map[uint64]int)
		}
		b.heap = append(b.heap, counted{key: short(key), hash: hash, hits: n})
		b.up(len(b.heap) - 1)
		return
	default:
		fewest := b.heap[0].hits
		delete(b.places, b.heap[0].hash)
		b.heap[0] = counted{key: short(key), hash: hash, hits: fewest + n, above: fewest}
		at = 0
	}
	b.down(at)
}

func short(key []byte) string {
	if len(key) > maxShown {
		return string(key[:maxShown]) + "..."
	}
	return string(key)
}

// up moves the last place to where it belongs.
func (b *busiest) up(at int) {
	for at > 0 {
		parent := (at - 1) / 2
		if b.heap[parent].hits <= b.heap[at].hits {
			break
		}
		b.heap[parent], b.heap[at] = b.heap[at], b.heap[parent]
		b.places[b.heap[at].hash] = at
		at = parent
	}
	b.places[b.heap[at].hash] = at
}

// down moves place at, which grew, to where it belongs.
func (b *busiest) down(at int) {
	for {
		least := 2*at + 1
		if least >= len(b.heap) {
			break
		}
		if right := least + 1; right < len(b.heap) && b.heap[right].hits < b.heap[least].hits {
			least = right
		}
		if b.heap[at].hits <= b.heap[least].hits {
			break
		}
		b.heap[least], b.heap[at] = b.heap[at], b.heap[least]
		b.places[b.heap[at].hash] = at
		at = least
	}
	b.places[b.heap[at].hash] = at
}

// most is the busiest key; of equals the first in the alphabet. Exact says that
// its hits are not an estimate.
func (b *busiest) most() (key string, hits uint64, exact bool) {
	var top counted
	for _, c := range b.heap {
		if c.hits > top.hits || c.hits == top.hits && c.key < top.key {
			top = c
		}
	}
	return top.key, top.hits, top.above == 0
}
