// Package nearest finds the known word that is most similar to a mistyped word.
package nearest

// minLength is the length of the shortest words that are compared, in bytes.
const minLength = 3

// Word returns the word of known that differs from word in the fewest edits; of several, the
// first. An edit inserts, deletes or replaces a byte, or swaps two adjacent bytes. Word allows
// two edits, and one for three to five bytes; it returns "" if no word of known is that close.
func Word(word string, known []string) string {
	best, fewest := "", min(2, len(word)/3)+1
	if len(word) < minLength {
		return ""
	}
	for _, k := range known {
		if n := edits(word, k, fewest); n < fewest && len(k) >= minLength {
			best, fewest = k, n
		}
	}
	return best
}

// edits returns the number of edits that turn a into b, or most if it is larger.
func edits(a, b string, most int) int {
	if len(a)-len(b) >= most || len(b)-len(a) >= most {
		return most
	}
	// row[j] is the number of edits that turn a[:i] into b[:j].
	beforeLast, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], beforeLast[j-2]+1)
			}
		}
		beforeLast, last, row = last, row, beforeLast
	}
	return min(last[len(b)], most)
}
