package simulate

import (
	"container/heap"
	"hash/maphash"
)

// busiest finds the key with the most hits in bounded memory. It is exact for up to
// maxCounted keys. A further key replaces the key with the fewest hits and continues its
// count, so a count is too high by at most those hits. Any key with more than a
// maxCounted-th of all hits is kept.
//
// Source: Metwally et al., "Efficient Computation of Frequent and Top-k Elements
// in Data Streams" (Space-Saving).
type busiest struct {
	places map[uint64]int // of keys in heap, by their hash
	heap   []counted      // a container/heap with the fewest hits first
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
		heap.Fix(b, at)
	case len(b.heap) < maxCounted:
		if b.places == nil {
			b.places = make(map[uint64]int)
		}
		heap.Push(b, counted{key: short(key), hash: hash, hits: n})
	default:
		fewest := &b.heap[0]
		delete(b.places, fewest.hash)
		*fewest = counted{key: short(key), hash: hash, hits: fewest.hits + n, above: fewest.hits}
		b.places[hash] = 0
		heap.Fix(b, 0)
	}
}

func short(key []byte) string {
	if len(key) > maxShown {
		return string(key[:maxShown]) + "..."
	}
	return string(key)
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (b *busiest) Len() int           { return len(b.heap) }
func (b *busiest) Less(i, j int) bool { return b.heap[i].hits < b.heap[j].hits }

func (b *busiest) Swap(i, j int) {
	b.heap[i], b.heap[j] = b.heap[j], b.heap[i]
	b.places[b.heap[i].hash], b.places[b.heap[j].hash] = i, j
}

func (b *busiest) Push(c any) {
	b.places[c.(counted).hash] = len(b.heap)
	b.heap = append(b.heap, c.(counted))
}

func (b *busiest) Pop() any { panic("keys are replaced, never removed") }

// most returns the busiest key; of equals the first in the alphabet. exact says that its
// hits are not an estimate.
func (b *busiest) most() (key string, hits uint64, exact bool) {
	var top counted
	for _, c := range b.heap {
		if c.hits > top.hits || c.hits == top.hits && c.key < top.key {
			top = c
		}
	}
	return top.key, top.hits, top.above == 0
}
