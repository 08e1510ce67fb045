package rls

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// repairRoom is how large dst must be for repair: "a\xff" becomes "a\uFFFD", and the
// last words are written whole.
func repairRoom(text int) int { return 2*text + 16 }

// repair writes text to dst with each run of bytes that is not UTF-8 as one U+FFFD,
// as bytes.ToValidUTF8 does, and returns how many bytes of dst that took. dst must
// have repairRoom(len(text)) bytes.
func repair(dst, text []byte) int {
	const high = 0x8080808080808080 // set in bytes that are not ASCII
	n := 0
	for i := 0; i < len(text); {
		if text[i] < utf8.RuneSelf {
			if i+8 > len(text) || text[i+1] >= utf8.RuneSelf {
				dst[n] = text[i]
				i, n = i+1, n+1
				continue
			}
			word := binary.LittleEndian.Uint64(text[i:]) // up to eight bytes of ASCII at once
			binary.LittleEndian.PutUint64(dst[n:], word)
			ascii := bits.TrailingZeros64(word&high) / 8
			i, n = i+ascii, n+ascii
			continue
		}
		size := runeLen(text[i:])
		if size == 0 {
			for i++; i < len(text) && (begins[text[i]] == 0 || text[i] >= utf8.RuneSelf && runeLen(text[i:]) == 0); i++ {
			}
			binary.LittleEndian.PutUint32(dst[n:], 0xBDBFEF) // U+FFFD, and a byte that is overwritten
			n += 3
			continue
		}
		copy(dst[n:n+size], text[i:])
		i, n = i+size, n+size
	}
	return n
}

// begins has 1 for the bytes that a character can begin with.
var begins = func() (table [256]byte) {
	for b := range table {
		if b < 0x80 || b >= 0xC2 && b <= 0xF4 {
			table[b] = 1
		}
	}
	return table
}()

// runeLen returns how many bytes the first character of text has, 2 to 4, or 0 if
// text does not begin with one. The first byte must not be ASCII. It is
// utf8.DecodeRune without the rune.
func runeLen(text []byte) int {
	b := text[0]
	if begins[b] == 0 || len(text) < 2 {
		return 0
	}
	low, high := byte(0x80), byte(0xBF) // of the second byte
	switch b {
	case 0xE0:
		low = 0xA0 // else it were shorter
	case 0xED:
		high = 0x9F // surrogates
	case 0xF0:
		low = 0x90
	case 0xF4:
		high = 0x8F // the last is U+10FFFF
	}
	switch second := text[1]; {
	case second < low || second > high:
		return 0
	case b < 0xE0:
		return 2
	case len(text) < 3 || text[2]&0xC0 != 0x80:
		return 0
	case b < 0xF0:
		return 3
	case len(text) < 4 || text[3]&0xC0 != 0x80:
		return 0
	}
	return 4
}
