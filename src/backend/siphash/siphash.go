// Package siphash is SipHash-1-3 with an output of 128 bits: a hash whose collisions a caller cannot choose without its
// key.
package siphash

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
)

// Key is the key of a hash. Unlike that of package hash/maphash, it can be saved.
type Key [2]uint64

// RandomKey returns a random key.
func RandomKey() Key {
	var b [16]byte
	_, _ = rand.Read(b[:]) // It never returns an error.
	return Key{binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])}
}

// Sum128 returns the hash of 8 bytes and the message after them: first is these 8 bytes as a little-endian number.
//
// Source: J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF". SipHash-1-3 has one round per 8 bytes
// and three at the end. The hash tables of Rust and Python use it against floods of keys that collide.
func (k Key) Sum128(first uint64, message []byte) (low, high uint64) {
	v0, v1 := k[0]^0x736f6d6570736575, k[1]^0x646f72616e646f6d^0xee
	v2, v3 := k[0]^0x6c7967656e657261, k[1]^0x7465646279746573
	// The last block has the length, modulo 256, and the bytes of an incomplete block.
	lastBlock := uint64(len(message)+8) << 56

	v3 ^= first
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= first
	for len(message) >= 8 {
		block := binary.LittleEndian.Uint64(message)
		message = message[8:]
		v3 ^= block
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0 ^= block
	}
	for i, b := range message {
		lastBlock |= uint64(b) << (8 * i)
	}
	v3 ^= lastBlock
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= lastBlock

	v2 ^= 0xee
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	low = v0 ^ v1 ^ v2 ^ v3
	v1 ^= 0xdd
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	return low, v0 ^ v1 ^ v2 ^ v3
}

// sipRound is one round of SipHash. The compiler inlines it.
func sipRound(v0, v1, v2, v3 uint64) (w0, w1, w2, w3 uint64) {
	v0 += v1
	v2 += v3
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v2 += v1
	v0 = bits.RotateLeft64(v0, 32) + v3
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	return v0, v1, bits.RotateLeft64(v2, 32), v3
}
