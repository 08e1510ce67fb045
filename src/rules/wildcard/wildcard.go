// Package wildcard compares texts with patterns in which each `*` stands for zero or more bytes.
package wildcard

import (
	"bytes"
	"strings"
)

// Pattern is a compiled text with `*`. Each `*` matches zero or more bytes; there is no escape. "a*b*c" has the prefix
// "a", the middle part "b" and the suffix "c".
type Pattern struct {
	prefix, suffix []byte   // the text before the first `*`, suffix that after the last
	middleParts    [][]byte // the texts between two `*`, in order, without empty ones
}

// Compile compiles text, which has at least one `*`.
func Compile(text string) Pattern {
	parts := bytes.Split([]byte(text), []byte{'*'})
	last := len(parts) - 1
	p := Pattern{prefix: parts[0], suffix: parts[last]}
	for _, part := range parts[1:last] {
		if len(part) > 0 {
			p.middleParts = append(p.middleParts, part)
		}
	}
	return p
}

// Matches reports whether p matches all of text. It takes the leftmost place for each middle part: if any choice of
// places matches, this one does. So it never goes back, and the time is linear in the length of text.
func (p *Pattern) Matches(text []byte) bool {
	if len(text) < len(p.prefix)+len(p.suffix) || !bytes.HasPrefix(text, p.prefix) || !bytes.HasSuffix(text, p.suffix) {
		return false
	}
	rest := text[len(p.prefix) : len(text)-len(p.suffix)]
	for _, part := range p.middleParts {
		at := bytes.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return true
}

// Covers reports whether p matches every text that the pattern in other matches: "a*" covers "ab*". A `*` of other can
// only be matched by a `*` of p, so it is enough to match other as text.
func (p *Pattern) Covers(other string) bool { return p.Matches([]byte(other)) }

// Hides reports whether p matches every composite name "key_value" that the pattern in other matches. If p comes first
// in a file, no request can then reach other. Composite names always contain a `_`, so p may demand one that other does
// not: "p*_*" hides "p*".
func (p *Pattern) Hides(other string) bool {
	if p.Covers(other) {
		return true
	}
	const maxStars = 8 // Patterns with more stars are not compared, because that takes long.
	if stars := strings.Count(other, "*"); stars > maxStars || strings.Contains(other, "_") {
		return false
	}
	for i := range len(other) { // One of the stars matches the text with the `_`.
		if other[i] == '*' && !p.Covers(other[:i]+"*_*"+other[i+1:]) {
			return false
		}
	}
	return true
}
