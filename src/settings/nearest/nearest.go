// Package nearest finds the known word that is most similar to a mistyped word.
package nearest

// minComparedLength is the length of the shortest words that are compared, in bytes.
const minComparedLength = 3

// Word returns the word of known that differs from word in the fewest edits; of several, the first. An edit inserts,
// deletes or replaces a byte, or swaps two adjacent bytes. Word allows two edits, and one for words of three to five
// bytes. It returns "" if no word of known is that close.
func Word(word string, known []string) string {
	if len(word) < minComparedLength {
		return ""
	}
	for edits := range min(2, len(word)/3) + 1 {
		for _, k := range known {
			if len(k) >= minComparedLength && IsWithin(edits, word, k) {
				return k
			}
		}
	}
	return ""
}

// IsWithin reports whether a number of edits or fewer, see Word, turn a into b.
func IsWithin(edits int, a, b string) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if edits == 0 || a == "" || b == "" {
		return max(len(a), len(b)) <= edits
	}
	return IsWithin(edits-1, a[1:], b) || IsWithin(edits-1, a, b[1:]) || IsWithin(edits-1, a[1:], b[1:]) ||
		len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] && IsWithin(edits-1, a[2:], b[2:])
}
