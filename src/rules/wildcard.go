package rules

import (
	"bytes"
	"strings"
)

// pattern is a compiled wildcard. Each `*` stands for zero or more bytes; there is no escape.
type pattern struct {
	prefix, suffix []byte   // before the first `*`, behind the last
	middle         [][]byte // between them in order, without empty ones
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

// match takes the leftmost place for each middle part. If any choice of places matches, that one does, so nothing is tried twice, and
// the time grows with the length of text only.
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

// covers reports whether p matches everything that the pattern written as text matches. A `*` in text can only be matched by a `*`.
func (p *pattern) covers(text string) bool { return p.match([]byte(text)) }

// hides reports whether p matches every key_value that the pattern written as text matches. These always have a `_`: if text has
// none, it is in place of one of the stars, so p*_* hides p*.
func (p *pattern) hides(text string) bool {
	if p.covers(text) {
		return true
	}
	const most = 8 // stars; texts with more are not compared
	if stars := strings.Count(text, "*"); stars > most || strings.Contains(text, "_") {
		return false
	}
	for i := range len(text) {
		if text[i] == '*' && !p.covers(text[:i]+"*_*"+text[i+1:]) {
			return false
		}
	}
	return true
}
