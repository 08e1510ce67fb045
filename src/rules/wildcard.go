package rules

import (
	"bytes"
	"strings"
)

// pattern is a compiled text with `*`. Each `*` matches zero or more bytes; there is no escape. "a*b*c" has the prefix "a", the middle
// part "b" and the suffix "c".
type pattern struct {
	prefix, suffix []byte   // the text before the first `*` and after the last
	middle         [][]byte // the texts between two `*`, in order, without empty ones
}

// compilePattern compiles text, which has at least one `*`.
func compilePattern(text string) pattern {
	parts := bytes.Split([]byte(text), []byte{'*'})
	last := len(parts) - 1
	p := pattern{prefix: parts[0], suffix: parts[last]}
	for _, part := range parts[1:last] {
		if len(part) > 0 {
			p.middle = append(p.middle, part)
		}
	}
	return p
}

// match reports whether p matches all of text. It takes the leftmost place for each middle part: if any choice of places matches,
// this one does. So it never goes back, and the time is linear in the length of text.
func (p *pattern) match(text []byte) bool {
	if len(text) < len(p.prefix)+len(p.suffix) || !bytes.HasPrefix(text, p.prefix) || !bytes.HasSuffix(text, p.suffix) {
		return false
	}
	rest := text[len(p.prefix) : len(text)-len(p.suffix)]
	for _, part := range p.middle {
		at := bytes.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}
	return true
}

// covers reports whether p matches every text that the pattern in other matches: "a*" covers "ab*". A `*` of other can only be matched
// by a `*` of p, so it is enough to match other as text.
func (p *pattern) covers(other string) bool { return p.match([]byte(other)) }

// hides reports whether p matches every composite name "key_value" that the pattern in other matches. If p comes first in a file, no
// request can then reach other. Composite names always contain a `_`, so p may demand one that other does not: "p*_*" hides "p*".
func (p *pattern) hides(other string) bool {
	if p.covers(other) {
		return true
	}
	const maxStars = 8 // patterns with more are not compared
	if stars := strings.Count(other, "*"); stars > maxStars || strings.Contains(other, "_") {
		return false
	}
	for i := range len(other) { // the `_` is in the text that one of the stars matches
		if other[i] == '*' && !p.covers(other[:i]+"*_*"+other[i+1:]) {
			return false
		}
	}
	return true
}
