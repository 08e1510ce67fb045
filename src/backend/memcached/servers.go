package memcached

import (
	"encoding/binary"
	"hash/crc32"

	"ratelimit/src/backend/remote"
)

// HashMethod is how the server of a key is chosen.
type HashMethod uint8

const (
	// Modulo chooses by the CRC-32 of the key modulo the number of servers, as gomemcache and
	// thus envoyproxy/ratelimit do. If the number of servers changes, most keys move.
	Modulo HashMethod = iota
	// Rendezvous gives each server a weight for the key and chooses the heaviest. If a server
	// leaves, its keys go to the others, and no other keys move.
	Rendezvous

	hashMethods // hashMethods is how many values of HashMethod there are.
)

func newLayout(hash HashMethod, addrs []string) remote.Layout {
	l := remote.Layout{Addrs: addrs}
	if hash == Modulo {
		n := uint32(len(addrs))
		l.SlotOfKey = func(key []byte) int { return int(crc32.ChecksumIEEE(key) % n) }
		return l
	}
	weights := make([]uint64, len(addrs))
	for i, addr := range addrs {
		weights[i] = fnv1a(addr)
	}
	l.SlotOfKey = func(key []byte) int { return heaviestServer(weights, fnv1a(key)) }
	return l
}

// heaviestServer returns the index of the server with the greatest weight for a key.
func heaviestServer(weights []uint64, hash uint64) (best int) {
	most := uint64(0)
	for i, w := range weights {
		if weight := mixBits(hash ^ w); weight > most {
			best, most = i, weight
		}
	}
	return best
}

func addrOfKey(l *remote.Layout, key []byte) string { return l.Addrs[l.SlotOfKey(key)] }

// fnv1a returns the 64-bit FNV-1a hash of text.
func fnv1a[T string | []byte](text T) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 0x100000001b3
	}
	return h
}

// mixBits returns a hash of h, each bit of which depends on all bits of h.
//
// Source: Austin Appleby, MurmurHash3, the 64-bit finalizer.
func mixBits(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// ServersChange describes a change of the servers.
type ServersChange struct {
	Before, After []string
	// MovedKeyShare is the share of keys that have another server now, from 0 to 1.
	MovedKeyShare float64
}

func compareLayouts(before, after *remote.Layout) ServersChange {
	const samples = 10_000
	moved := 0
	key := make([]byte, 8)
	for i := range uint64(samples) {
		binary.LittleEndian.PutUint64(key, mixBits(i))
		if addrOfKey(before, key) != addrOfKey(after, key) {
			moved++
		}
	}
	return ServersChange{Before: before.Addrs, After: after.Addrs, MovedKeyShare: float64(moved) / samples}
}
