package rules

import (
	"iter"
	"strings"
	"unicode"
)

// Near returns the one of known that was probably meant by word: equal but for upper case, or else one edit away. Of several it is
// the first in alphabetical order; it is empty if there is none. Words that differ in digits only are not near: 10.0.0.7 is not a
// misspelt 10.0.0.8.
func Near(word string, known iter.Seq[string]) string {
	const short = 3 // shorter words are all alike
	best, bestEqual := "", false
	lower := strings.ToLower(word)
	for k := range known {
		if k == word {
			continue
		}
		equal := strings.EqualFold(k, word)
		near := equal || word != "" && max(len(word), len(k)) >= short && oneEdit(lower, strings.ToLower(k)) && !sameButDigits(word, k)
		if near && (best == "" || equal && !bestEqual || equal == bestEqual && k < best) {
			best, bestEqual = k, equal
		}
	}
	return best
}

func sameButDigits(a, b string) bool {
	strip := func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}
	return strings.Map(strip, a) == strings.Map(strip, b)
}

// oneEdit reports whether at most one insertion, deletion, replacement or swap of neighbours turns a into b.
func oneEdit(a, b string) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a)+len(b) <= 1 || len(a) == 1 && len(b) == 1 ||
		len(a) == 2 && len(b) == 2 && a[0] == b[1] && a[1] == b[0]
}
