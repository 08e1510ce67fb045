package memcached

import (
	"encoding/binary"
	"hash/crc32"

	"ratelimit/src/backend/remote"
)

// Hash is how the server of a key is chosen.
type Hash uint8

const (
	// Modulo takes the CRC-32 of the key modulo the number of servers, as
	// gomemcache and with it envoyproxy/ratelimit does. When there is one server
	// more or less, most keys move to another server.
	Modulo Hash = iota
	// Rendezvous gives each server a weight for the key and takes the heaviest.
	// When a server leaves, its keys go to the others, and no others do.
	Rendezvous

	hashes
)

// layout returns which of the servers at addrs has which keys.
func layout(hash Hash, addrs []string) remote.Layout {
	l := remote.Layout{Addrs: addrs}
	if hash == Modulo {
		n := uint32(len(addrs))
		l.Slot = func(key []byte) int { return int(crc32.ChecksumIEEE(key) % n) }
		return l
	}
	weights := make([]uint64, len(addrs))
	for i, addr := range addrs {
		weights[i] = fnv(addr)
	}
	l.Slot = func(key []byte) int { return heaviest(weights, fnv(key)) }
	return l
}

// heaviest returns the index of the server with the greatest weight for a key.
func heaviest(weights []uint64, hash uint64) (best int) {
	most := uint64(0)
	for i, w := range weights {
		if weight := mix(hash ^ w); weight > most {
			best, most = i, weight
		}
	}
	return best
}

// owner returns the address of the server that has key.
func owner(l *remote.Layout, key []byte) string { return l.Addrs[l.Slot(key)] }

// fnv is FNV-1a with 64 bits.
func fnv[T string | []byte](text T) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 0x100000001b3
	}
	return h
}

// mix spreads every bit of h over all of them.
//
// Source: Austin Appleby, MurmurHash3, the 64-bit finalizer.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Change describes a change of the servers.
type Change struct {
	Before, After []string
	// Moved is the share of keys that have another server now, 0 to 1.
	Moved float64
}

// change compares two layouts.
func change(before, after *remote.Layout) Change {
	const samples = 10_000
	moved := 0
	key := make([]byte, 8)
	for i := range uint64(samples) {
		binary.LittleEndian.PutUint64(key, mix(i))
		if owner(before, key) != owner(after, key) {
			moved++
		}
	}
	return Change{Before: before.Addrs, After: after.Addrs, Moved: float64(moved) / samples}
}
