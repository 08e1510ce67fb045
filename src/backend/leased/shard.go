package leased

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const (
	numShards = 256
	// chunkLeases is how many leases a shard makes room for at a time.
	chunkLeases = 32
	// maxKeyBytes is the longest key of a counter that is leased. Others are counted exactly.
	maxKeyBytes = 1024
	// maxKeyHead is the most bytes before a key in shard.keys.
	maxKeyHead = 2 * binary.MaxVarintLen16
	chunkBytes = int(unsafe.Sizeof(chunk{}))
)

// shard has the leases of a part of the counters. All fields but tables are guarded by mu, which is held for as long as
// a decision takes, and never while the store is asked.
type shard struct {
	mu       sync.Mutex
	tables   atomic.Pointer[tables] // never nil. Written with mu held
	limits   *limitTable
	leases   int    // how many there are
	free     uint32 // the number of the first slot without a lease, whose keyAt is that of the next; 0: there is none
	hand     uint32 // the slot at which eviction looks next
	keys     []byte // the keys of all leases, and those that were freed, as appendKey writes them
	deadKeys int    // the bytes of keys that belong to no lease

	held   uint64 // the units of all leases
	served uint64 // counts the hits that were decided without the store
	_      [32]byte
}

// tables are what a lease is found by. They can be read without a lock: then what is found is a guess.
type tables struct {
	// index is an open-addressed hash table with linear probing. An entry has hash.tag in its high half, and the number of
	// a slot in the low half; 0 is an empty entry. At most three quarters are taken.
	index  []atomic.Uint64
	chunks []*chunk // slot number n is chunks[(n-1)/chunkLeases][(n-1)%chunkLeases]
}

type chunk [chunkLeases]record

// hash is what tells counters apart: 104 bits, which also give the shard.
type hash struct {
	record uint64 // the half that records have
	tag    uint32
	shard  uint8
}

// hashSeeds are the keys of two hashes, which callers do not know.
type hashSeeds [2]maphash.Seed

// of returns the hash of the counter under key of a limit with that kind and period. sharesKey is that of backend.Hit.
func (s *hashSeeds) of(key []byte, kind algorithm.Kind, period time.Duration, sharesKey bool) hash {
	const k1, k2 = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
	window := uint64(period) ^ uint64(kind)<<56
	if sharesKey {
		window ^= 1 << 63
	}
	window *= k1
	window ^= window >> 29
	low := (maphash.Bytes(s[0], key) ^ window) * k2
	return hash{record: (maphash.Bytes(s[1], key) ^ window) * k2, tag: uint32(low >> 32), shard: uint8(low >> 24)}
}

func (s *hashSeeds) ofHit(h *backend.Hit) hash {
	return s.of(h.Key, h.Limit.Kind, h.Limit.Period, h.SharesKey)
}

// ref names a lease. It finds none after the lease was freed.
type ref struct {
	shard      *shard
	slot       uint32
	generation uint8
}

// lease returns the lease of r; none if it was freed. The caller holds mu of the shard.
func (r ref) lease() lease {
	if l := r.shard.at(r.slot); !l.isNone() && l.generation == r.generation {
		return l
	}
	return lease{}
}

// at returns the lease in a slot; none if the slot is free.
func (sh *shard) at(slot uint32) lease {
	r := sh.tables.Load().at(slot)
	if r.limitID == 0 {
		return lease{}
	}
	return lease{r, sh.limits.at(r.limitID)}
}

func (t *tables) at(slot uint32) *record {
	return &t.chunks[(slot-1)/chunkLeases][(slot-1)%chunkLeases]
}

// home returns where the search for a tag starts.
func (t *tables) home(tag uint32) int { return int(uint64(tag) * uint64(len(t.index)) >> 32) }

// find returns the slot of the counter with a hash; 0 if there is none.
func (t *tables) find(h *hash) (slot uint32) {
	i := t.home(h.tag)
	for range t.index { // Without the lock, there may be no empty entry.
		e := t.index[i].Load()
		if e == 0 {
			return 0
		}
		if uint32(e>>32) == h.tag {
			if slot = uint32(e); int(slot-1)/chunkLeases < len(t.chunks) && t.at(slot).hash.Load() == h.record {
				return slot
			}
		}
		if i++; i == len(t.index) {
			i = 0
		}
	}
	return 0
}

// find returns the lease of the counter of h, whose hash is given; none if there is none. guess is where find has found
// it before, without the lock, or 0. The caller holds mu. mayAdd is false if another counter has the same hash.
func (sh *shard) find(hash *hash, guess uint32, h *backend.Hit) (l lease, slot uint32, mayAdd bool) {
	slot, t := guess, sh.tables.Load()
	if slot == 0 || t.at(slot).hash.Load() != hash.record || t.at(slot).limitID == 0 {
		if slot = t.find(hash); slot == 0 {
			return lease{}, 0, true
		}
	}
	r := t.at(slot)
	if l = (lease{r, sh.limits.at(r.limitID)}); !sameWindows(l.limit, h.Limit) {
		return lease{}, 0, false
	}
	return l, slot, true
}

// sameWindows reports whether limits have equal windows; see algorithm.Window.
func sameWindows(a, b *algorithm.Limit) bool {
	return a == b || a.Window() == b.Window()
}

// sameLimit reports whether limits with equal windows are equal.
func sameLimit(a, b *algorithm.Limit) bool {
	return a == b || a.Max == b.Max && a.Burst == b.Burst && a.CountBlocked == b.CountBlocked
}

// add makes a lease of the counter of h, with the interned limit. The caller holds mu, and has found none.
func (sh *shard) add(hash *hash, h *backend.Hit, limitID uint32) (l lease, slot uint32) {
	if sh.free == 0 {
		sh.addChunk()
	}
	t := sh.tables.Load()
	if !t.hasRoom(sh.leases + 1) {
		index := slices.Grow([]atomic.Uint64(nil), indexSize(len(t.index)))
		t = &tables{index: index[:cap(index)], chunks: t.chunks}
		for i := range sh.tables.Load().index {
			if e := sh.tables.Load().index[i].Load(); e != 0 {
				t.insert(e)
			}
		}
		sh.tables.Store(t)
	}
	slot = sh.free
	r := t.at(slot)
	sh.free = r.keyAt
	sh.leases++
	r.hash.Store(hash.record)
	r.state = state{limitID: limitID, generation: r.generation + 1, keyAt: sh.addKey(h)}
	t.insert(uint64(hash.tag)<<32 | uint64(slot))
	return sh.at(slot), slot
}

// addChunk adds chunkLeases free slots.
func (sh *shard) addChunk() {
	old := sh.tables.Load()
	t := &tables{index: old.index, chunks: append(old.chunks, new(chunk))}
	first := uint32(len(old.chunks))*chunkLeases + 1
	for slot := first + chunkLeases - 1; slot >= first; slot-- {
		t.at(slot).keyAt, sh.free = sh.free, slot
	}
	sh.tables.Store(t)
}

// hasRoom reports whether the index may have n entries.
func (t *tables) hasRoom(n int) bool { return n*4 <= len(t.index)*3 }

// indexSize returns how many entries the index gets when size are too few.
func indexSize(size int) int { return size + size/4 + 8 }

// insert adds an entry to the index, which has room.
func (t *tables) insert(e uint64) {
	i := t.home(uint32(e >> 32))
	for t.index[i].Load() != 0 {
		if i++; i == len(t.index) {
			i = 0
		}
	}
	t.index[i].Store(e)
}

// delete removes the entry of a slot from the index, and moves those behind it that were kept from their home.
func (t *tables) delete(tag, slot uint32) {
	i, n := t.home(tag), len(t.index)
	for t.index[i].Load() != uint64(tag)<<32|uint64(slot) {
		i = (i + 1) % n
	}
	for j := (i + 1) % n; ; j = (j + 1) % n {
		e := t.index[j].Load()
		if e == 0 {
			break
		}
		if home := t.home(uint32(e >> 32)); (j-home+n)%n >= (j-i+n)%n {
			t.index[i].Store(e)
			i = j
		}
	}
	t.index[i].Store(0)
}

// addKey appends the key of h to keys, and returns where it is.
func (sh *shard) addKey(h *backend.Hit) (at uint32) {
	if room := sh.keyRoom(len(h.Key)); room > 0 {
		if sh.hasManyDeadKeys() {
			sh.compactKeys(room)
		} else {
			sh.keys = append(slices.Grow([]byte(nil), room), sh.keys...)
		}
	}
	at = uint32(len(sh.keys))
	sh.keys = appendKey(sh.keys, h.Key, h.TagLength, h.SharesKey)
	return at
}

// keyRoom returns the bytes of keys to allocate for one more key; 0 if it has room.
func (sh *shard) keyRoom(key int) int {
	n := len(sh.keys) + maxKeyHead + key
	if n <= cap(sh.keys) {
		return 0
	}
	if sh.hasManyDeadKeys() {
		n -= sh.deadKeys
	}
	return n + n/8 + 128
}

func (sh *shard) hasManyDeadKeys() bool { return sh.deadKeys > len(sh.keys)/8 }

// appendKey appends the key of a counter with its length, and what a hit says of it: the length of its tag, and whether
// limits share it.
func appendKey(dst, key []byte, tagLength int, sharesKey bool) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	tag := uint64(tagLength) << 1
	if sharesKey {
		tag++
	}
	return append(binary.AppendUvarint(dst, tag), key...)
}

// counterKey is what appendKey has written.
type counterKey struct {
	bytes     []byte
	tagLength int
	sharesKey bool
}

// key returns the key of l. Its bytes are valid while the caller holds mu.
func (sh *shard) key(l lease) counterKey {
	k, _ := sh.keyAt(l.keyAt)
	return k
}

// keyAt returns the key that begins at a byte of keys, and its size with what is before it.
func (sh *shard) keyAt(at uint32) (k counterKey, size int) {
	text := sh.keys[at:]
	length, n := binary.Uvarint(text)
	tag, m := binary.Uvarint(text[n:])
	size = n + m + int(length)
	return counterKey{text[n+m : size : size], int(tag >> 1), tag&1 != 0}, size
}

// bytes returns the memory of the shard. The caller holds mu.
func (sh *shard) bytes() int {
	t := sh.tables.Load()
	return len(t.chunks)*chunkBytes + cap(t.chunks)*8 + len(t.index)*8 + cap(sh.keys)
}

// bytesWith returns at least the memory of the shard once a lease with a key of that many bytes is added. The caller
// holds mu.
func (sh *shard) bytesWith(key int) int {
	n, t := sh.bytes(), sh.tables.Load()
	if sh.free == 0 {
		n += chunkBytes
		if len(t.chunks) == cap(t.chunks) {
			n += roundedUp(cap(t.chunks)*16+8) - cap(t.chunks)*8 // append doubles it at most.
		}
	}
	if !t.hasRoom(sh.leases + 1) {
		n += roundedUp(indexSize(len(t.index))*8) - len(t.index)*8
	}
	if room := sh.keyRoom(key); room > 0 {
		n += roundedUp(room) - cap(sh.keys)
	}
	return n
}

// roundedUp returns at least what n bytes take: the runtime rounds them up to a size class, or to pages.
func roundedUp(n int) int {
	const largestClass, pageBytes = 32 << 10, 8 << 10
	if n > largestClass {
		return (n + pageBytes - 1) &^ (pageBytes - 1)
	}
	return n + n/5 + 32
}

// remove frees the slot of a lease. The caller holds mu, and gives its units back.
func (sh *shard) remove(hash *hash, slot uint32) {
	t := sh.tables.Load()
	r := t.at(slot)
	sh.held -= uint64(r.held)
	_, size := sh.keyAt(r.keyAt)
	sh.deadKeys += size
	sh.leases--
	t.delete(hash.tag, slot)
	r.state = state{generation: r.generation, keyAt: sh.free}
	sh.free = slot
	if sh.deadKeys > len(sh.keys)/2+4096 {
		sh.compactKeys(len(sh.keys) - sh.deadKeys)
	}
}

// forEach calls f with all leases. f may remove the one that it is called with. The caller holds mu.
func (sh *shard) forEach(f func(l lease, slot uint32)) {
	for slot := range uint32(sh.numSlots()) {
		if l := sh.at(slot + 1); !l.isNone() {
			f(l, slot+1)
		}
	}
}

// numSlots returns how many slots there are: their numbers begin with 1.
func (sh *shard) numSlots() int { return len(sh.tables.Load().chunks) * chunkLeases }

// compactKeys copies the keys of all leases to a place of so many bytes, and drops the others.
func (sh *shard) compactKeys(room int) {
	keys := slices.Grow([]byte(nil), room)
	sh.forEach(func(l lease, _ uint32) {
		_, size := sh.keyAt(l.keyAt)
		keys = append(keys, sh.keys[l.keyAt:][:size]...)
		l.keyAt = uint32(len(keys) - size)
	})
	sh.keys, sh.deadKeys = keys, 0
}
