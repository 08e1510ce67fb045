package rules

import (
	"bytes"
	"strings"
)

// pattern is a compiled wildcard. Each `*` stands for zero or more bytes; the
// text before the first is anchored at the start, the text behind the last at
// the end. There is no escape.
type pattern struct {
	prefix, suffix []byte
	middle         [][]byte // in order, without empty ones
}

// compilePattern compiles text, which holds at least one `*`.
func compilePattern(text string) pattern {
	parts := strings.Split(text, "*")
	last := len(parts) - 1
	p := pattern{prefix: []byte(parts[0]), suffix: []byte(parts[last])}
	for _, part := range parts[1:last] {
		if part != "" {
			p.middle = append(p.middle, []byte(part))
		}
	}
	return p
}

// match takes the leftmost place for each middle part: if any choice of places
// matches, that one does, so nothing is tried twice.
func (p *pattern) match(text []byte) bool {
	if len(text) < len(p.prefix)+len(p.suffix) ||
		!bytes.HasPrefix(text, p.prefix) || !bytes.HasSuffix(text, p.suffix) {
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

// covers reports whether p matches everything that the pattern written as text
// matches. A `*` in text can only be taken up by a `*` of p, which has no
// literal one.
func (p *pattern) covers(text string) bool { return p.match([]byte(text)) }

// hides reports whether p matches every key_value that the pattern written as
// text matches. There is always a `_` in it: where text has none, one of its
// stars takes it up, so that p*_* hides p*.
func (p *pattern) hides(text string) bool {
	if p.covers(text) {
		return true
	}
	const most = 8 // of them are looked at, however long the text is
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
