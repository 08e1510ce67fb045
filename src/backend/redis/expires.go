package redis

import (
	"hash/maphash"
	"math"
	"slices"
	"sync"
)

// expireCache remembers the keys for which EXPIRE was sent, so that it is not sent with
// every hit. A key that was forgotten gets another EXPIRE, which does no harm.
//
// All connections to a server share one cache. If the batch with the EXPIRE comes later than
// another batch that creates the key, or never, then exchange.keysWithoutTTL has the key.
type expireCache struct {
	hashSeed maphash.Seed
	mu       sync.Mutex // guards sets
	sets     []expireCacheSet
}

// expireCacheSet has the keys whose hashes belong to one set, the newest first.
type expireCacheSet struct {
	keyHashes [keysPerSet]uint64
	maxTTLs   [keysPerSet]uint32 // the longest time to live that was sent for each key, in seconds
}

// A cache has maxCachedKeys keys, in 1.5 MiB. Each key may use any of the keysPerSet places of
// its set, so that two keys that are hit in turns do not evict each other.
const (
	maxCachedKeys = 1 << 17
	keysPerSet    = 4
)

func newExpireCache() *expireCache { return &expireCache{hashSeed: maphash.MakeSeed()} }

// hashOfKey returns the hash under which the cache knows a key.
func (e *expireCache) hashOfKey(key []byte) uint64 { return maphash.Bytes(e.hashSeed, key) }

// setOfHash returns the set of a hash. The caller holds mu.
func (e *expireCache) setOfHash(hash uint64) *expireCacheSet {
	if e.sets == nil {
		e.sets = make([]expireCacheSet, maxCachedKeys/keysPerSet)
	}
	return &e.sets[hash%uint64(len(e.sets))]
}

// needsExpire reports whether the key with this hash needs an EXPIRE, because none with at least
// minTTL seconds was sent. It then remembers ttl, the seconds that the caller must send now.
// A key can be in windows of several lengths, of which only a longer one needs an EXPIRE.
func (e *expireCache) needsExpire(hash uint64, minTTL, ttl int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	set := e.setOfHash(hash)
	seconds := uint32(min(max(ttl, 0), math.MaxUint32))
	if i := slices.Index(set.keyHashes[:], hash); i >= 0 {
		if int64(set.maxTTLs[i]) >= minTTL {
			return false
		}
		set.maxTTLs[i] = seconds
		return true
	}
	copy(set.keyHashes[1:], set.keyHashes[:])
	copy(set.maxTTLs[1:], set.maxTTLs[:])
	set.keyHashes[0], set.maxTTLs[0] = hash, seconds
	return true
}

// forgetKey removes the key with this hash.
func (e *expireCache) forgetKey(hash uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	set := e.setOfHash(hash)
	if i := slices.Index(set.keyHashes[:], hash); i >= 0 {
		set.keyHashes[i] = 0
	}
}
