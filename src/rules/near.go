package rules

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"unicode"

	"ratelimit/src/settings/nearest"
)

// NearestWord returns the known word that was probably meant by word: one that is equal in lower case, or else one that
// an edit turns into word. It returns the first such word in alphabetical order, or "". Words that differ only in
// digits are not near: 10.0.0.7 is not a misspelt 10.0.0.8.
func NearestWord(word string, known iter.Seq[string]) string {
	const minLength = 3 // Too many of the shorter words are one edit away.
	best, bestEqual := "", false
	lower := strings.ToLower(word)
	for k := range known {
		if k == word {
			continue
		}
		equal := strings.EqualFold(k, word)
		near := equal || word != "" && max(len(word), len(k)) >= minLength &&
			nearest.IsWithin(1, lower, strings.ToLower(k)) && !equalWithoutDigits(word, k)
		if near && (best == "" || equal && !bestEqual || equal == bestEqual && k < best) {
			best, bestEqual = k, equal
		}
	}
	return best
}

// NearestDomain returns the name of the domain that was probably meant by name; empty if there is none.
func (s *Set) NearestDomain(name string) string { return NearestWord(name, maps.Keys(s.domainsByName)) }

// SuggestFix returns the fix for an unknown key or value: the known one that was probably meant, or otherwise.
func SuggestFix(word string, known []string, otherwise string) string {
	near := strings.ReplaceAll(strings.ToLower(word), "-", "_")
	if !slices.Contains(known, near) {
		near = NearestWord(near, slices.Values(known))
	}
	if near == "" {
		return otherwise
	}
	return "did you mean `" + near + "`?"
}

// equalWithoutDigits reports whether a and b are equal without their digits.
func equalWithoutDigits(a, b string) bool {
	strip := func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}
	return strings.Map(strip, a) == strings.Map(strip, b)
}
