package rules

import (
	"iter"
	"strings"
	"unicode"
)

// Near is the one of known that was probably meant by word: the same in other
// letters' case, else what is one letter off. It is empty if there is none.
// Numbers are not misspelt: 10.0.0.7 was not meant by 10.0.0.8.
func Near(word string, known iter.Seq[string]) string {
	const short = 3 // of such words all are alike
	best, exact := "", false
	lower := strings.ToLower(word)
	for k := range known {
		if k == word {
			continue
		}
		same := strings.EqualFold(k, word)
		like := same || word != "" && max(len(word), len(k)) >= short && OneEdit(lower, strings.ToLower(k)) && !sameButDigits(word, k)
		if like && (best == "" || same && !exact || same == exact && k < best) {
			best, exact = k, same
		}
	}
	return best
}

func sameButDigits(a, b string) bool {
	strip := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsDigit(r) {
				return -1
			}
			return r
		}, s)
	}
	return strip(a) == strip(b)
}

// OneEdit reports whether one insertion, deletion, replacement or swap of
// neighbours turns a into b.
func OneEdit(a, b string) bool {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return len(a)+len(b) <= 1 || len(a) == 1 && len(b) == 1 ||
		len(a) == 2 && len(b) == 2 && a[0] == b[1] && a[1] == b[0]
}
