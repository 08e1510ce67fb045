package rules

import (
	"bytes"
	"strings"
)

// pattern is a compiled wildcard. Each `*` stands for zero or more bytes; there is no escape.
type pattern struct {
	prefix, suffix []byte    // before the first `*`, behind the last
	middle         []literal // between them in order, without empty ones
}

// compilePattern compiles text, which holds at least one `*`.
func compilePattern(text string) pattern {
	parts := strings.Split(text, "*")
	last := len(parts) - 1
	p := pattern{prefix: []byte(parts[0]), suffix: []byte(parts[last])}
	for _, part := range parts[1:last] {
		if part != "" {
			p.middle = append(p.middle, newLiteral(part))
		}
	}
	return p
}

// match takes the leftmost place for each middle part. If any choice of places matches, that one does, so nothing is tried twice and
// the time is linear in the length of text.
func (p *pattern) match(text []byte) bool {
	if len(text) < len(p.prefix)+len(p.suffix) ||
		!bytes.HasPrefix(text, p.prefix) || !bytes.HasSuffix(text, p.suffix) {
		return false
	}
	rest := text[len(p.prefix) : len(text)-len(p.suffix)]
	for i := range p.middle {
		end := p.middle[i].search(rest)
		if end < 0 {
			return false
		}
		rest = rest[end:]
	}
	return true
}

// literal is the text between two `*`.
type literal struct {
	text    []byte
	borders []int32 // borders[i] is the length of the longest proper suffix of text[:i+1] that is a prefix of text; nil: text is short
}

// shortLiteral is the longest literal, in bytes, for which bytes.Index is used. For longer ones it may not be linear.
const shortLiteral = 32

func newLiteral(text string) literal {
	l := literal{text: []byte(text)}
	if len(text) <= shortLiteral {
		return l
	}
	l.borders = make([]int32, len(text))
	n := int32(0)
	for i := 1; i < len(text); i++ {
		for n > 0 && text[i] != text[n] {
			n = l.borders[n-1]
		}
		if text[i] == text[n] {
			n++
		}
		l.borders[i] = n
	}
	return l
}

// search returns the end of the first l in text, or -1. Long literals are found by the method of Knuth, Morris and Pratt.
func (l *literal) search(text []byte) int {
	if l.borders == nil {
		at := bytes.Index(text, l.text)
		if at < 0 {
			return -1
		}
		return at + len(l.text)
	}
	n := int32(0) // bytes of l that end before text[i]
	for i := 0; i < len(text); i++ {
		if n == 0 {
			skip := bytes.IndexByte(text[i:], l.text[0])
			if skip < 0 {
				return -1
			}
			i += skip
			n = 1
			continue
		}
		for n > 0 && text[i] != l.text[n] {
			n = l.borders[n-1]
		}
		if text[i] == l.text[n] {
			if n++; int(n) == len(l.text) {
				return i + 1
			}
		}
	}
	return -1
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
