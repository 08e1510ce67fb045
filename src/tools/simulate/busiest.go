package simulate

import (
	"container/heap"
	"hash/maphash"
)

// keyCounts finds the key with the most hits in bounded memory. Counts are exact for up to maxCountedKeys keys. A
// further key replaces the key with the fewest hits and continues its count, so a count is too high by at most those
// hits. A key with more than one in maxCountedKeys of all hits is never replaced.
//
// Source: Metwally et al., "Efficient Computation of Frequent and Top-k Elements in Data Streams" (Space-Saving).
type keyCounts struct {
	fewestFirst []keyCount     // a heap, ordered by container/heap.
	indexByHash map[uint64]int // the index in fewestFirst of each key, by the key's hash.
}

const (
	maxCountedKeys = 1000
	maxKeyBytes    = 120 // of a key are kept for the summary, since a key may have a megabyte.
)

type keyCount struct {
	key  string // cut to maxKeyBytes.
	hash uint64 // of the whole key.
	hits uint64
	// tooHigh is the largest possible error of hits: the count that the key took over.
	tooHigh uint64
}

var hashSeed = maphash.MakeSeed()

func (k *keyCounts) add(key []byte, n uint64) {
	hash := maphash.Bytes(hashSeed, key)
	i, known := k.indexByHash[hash]
	switch {
	case known:
		k.fewestFirst[i].hits += n
		heap.Fix(k, i)
	case len(k.fewestFirst) < maxCountedKeys:
		if k.indexByHash == nil {
			k.indexByHash = make(map[uint64]int)
		}
		heap.Push(k, keyCount{key: cutKey(key), hash: hash, hits: n})
	default:
		fewest := &k.fewestFirst[0]
		delete(k.indexByHash, fewest.hash)
		*fewest = keyCount{key: cutKey(key), hash: hash, hits: fewest.hits + n, tooHigh: fewest.hits}
		k.indexByHash[hash] = 0
		heap.Fix(k, 0)
	}
}

func cutKey(key []byte) string {
	if len(key) > maxKeyBytes {
		return string(key[:maxKeyBytes]) + "..."
	}
	return string(key)
}

// Len, Less, Swap, Push and Pop make keyCounts a heap.Interface.
func (k *keyCounts) Len() int           { return len(k.fewestFirst) }
func (k *keyCounts) Less(i, j int) bool { return k.fewestFirst[i].hits < k.fewestFirst[j].hits }

func (k *keyCounts) Swap(i, j int) {
	k.fewestFirst[i], k.fewestFirst[j] = k.fewestFirst[j], k.fewestFirst[i]
	k.indexByHash[k.fewestFirst[i].hash], k.indexByHash[k.fewestFirst[j].hash] = i, j
}

func (k *keyCounts) Push(count any) {
	k.indexByHash[count.(keyCount).hash] = len(k.fewestFirst)
	k.fewestFirst = append(k.fewestFirst, count.(keyCount))
}

func (k *keyCounts) Pop() any { panic("keys are replaced, never removed") }

// busiest returns the key with the most hits, the first in the alphabet of several. tooHigh bounds the error of hits.
func (k *keyCounts) busiest() (key string, hits, tooHigh uint64) {
	var top keyCount
	for _, c := range k.fewestFirst {
		if c.hits > top.hits || c.hits == top.hits && c.key < top.key {
			top = c
		}
	}
	return top.key, top.hits, top.tooHigh
}
