package siphash

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"testing"
)

// plainSIPHash is SipHash-c-d with an output of 128 bits, as the paper writes it down: slow, and for any number of
// rounds.
func plainSIPHash(c, d int, key Key, message []byte) (low, high uint64) {
	v := [4]uint64{
		key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d ^ 0xee, key[0] ^ 0x6c7967656e657261,
		key[1] ^ 0x7465646279746573,
	}
	rounds := func(n int) {
		for range n {
			v[0], v[2] = v[0]+v[1], v[2]+v[3]
			v[1], v[3] = bits.RotateLeft64(v[1], 13), bits.RotateLeft64(v[3], 16)
			v[1], v[3] = v[1]^v[0], v[3]^v[2]
			v[0] = bits.RotateLeft64(v[0], 32)
			v[2], v[0] = v[2]+v[1], v[0]+v[3]
			v[1], v[3] = bits.RotateLeft64(v[1], 17), bits.RotateLeft64(v[3], 21)
			v[1], v[3] = v[1]^v[2], v[3]^v[0]
			v[2] = bits.RotateLeft64(v[2], 32)
		}
	}
	padded := append(append([]byte(nil), message...), make([]byte, 8-len(message)%8)...)
	padded[len(padded)-1] = byte(len(message))
	for ; len(padded) > 0; padded = padded[8:] {
		block := binary.LittleEndian.Uint64(padded)
		v[3] ^= block
		rounds(c)
		v[0] ^= block
	}
	v[2] ^= 0xee
	rounds(d)
	low = v[0] ^ v[1] ^ v[2] ^ v[3]
	v[1] ^= 0xdd
	rounds(d)
	return low, v[0] ^ v[1] ^ v[2] ^ v[3]
}

// paperKey is the key of the published examples: the bytes 0 to 15.
var paperKey = Key{0x0706050403020100, 0x0f0e0d0c0b0a0908}

// The plain version has the published value of SipHash-2-4 of the empty message.
func TestPlainSIPHash(t *testing.T) {
	low, high := plainSIPHash(2, 4, paperKey, nil)
	got := hex.EncodeToString(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, low), high))
	if want := "a3817f04ba25a8e66df67214c7550293"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSipHash(t *testing.T) {
	var message []byte
	for n := range 300 {
		message = append(message, byte(n*7))
		low, high := paperKey.Sum128(binary.LittleEndian.Uint64(append([]byte(nil), "8 bytes."...)), message)
		wantLow, wantHigh := plainSIPHash(1, 3, paperKey, append([]byte("8 bytes."), message...))
		if low != wantLow || high != wantHigh {
			t.Fatalf("%d bytes: %x %x, want %x %x", n+1, low, high, wantLow, wantHigh)
		}
	}
	if one, other := RandomKey(), RandomKey(); one == other {
		t.Error("two stores have the same key")
	}
}

func BenchmarkSipHash(b *testing.B) {
	for _, n := range []int{16, 24, 40, 80} {
		b.Run(fmt.Sprint("bytes=", n), func(b *testing.B) {
			message, sum := make([]byte, n), uint64(0)
			for b.Loop() {
				low, high := paperKey.Sum128(sum&1, message)
				sum += low ^ high
			}
		})
	}
}
