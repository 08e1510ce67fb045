package divvy

import "unicode/utf8"

// appendValid appends line with U+FFFD for what is not UTF-8: one for each byte that
// starts no character, and one for each character that is cut off. Node decodes divvy's
// input the same way.
//
// Source: Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts".
func appendValid(dst, line []byte) []byte {
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		dst = utf8.AppendRune(dst, r)
		if r == utf8.RuneError && size == 1 {
			for size < len(line) && !utf8.FullRune(line[:size+1]) {
				size++
			}
		}
		line = line[size:]
	}
	return dst
}
