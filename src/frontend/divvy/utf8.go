package divvy

import "unicode/utf8"

// appendValid appends line with U+FFFD in the place of what is not UTF-8: one
// for each byte that begins no character, and one for the beginning of a character
// that breaks off. So node decodes a stream, and divvy with it.
//
// Lines are decoded whole, so a character may be cut by packets.
//
// Source: Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts".
func appendValid(dst, line []byte) []byte {
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		dst = utf8.AppendRune(dst, r)
		if r == utf8.RuneError && size == 1 {
			size = max(1, unfinished(line))
		}
		line = line[size:]
	}
	return dst
}

// unfinished is how many bytes at the front of s could have become a character.
func unfinished(s []byte) int {
	n := 0
	for n < len(s) && !utf8.FullRune(s[:n+1]) {
		n++
	}
	return n
}
