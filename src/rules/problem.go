package rules

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Pos is a place in a rule file. Line and Col count from 1; 0 is unknown.
type Pos struct {
	File      string
	Line, Col int
}

// String is file:line:col, as far as it is known.
func (p Pos) String() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.Col == 0:
		return fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col)
}

// compare orders places by file, line and column.
func (p Pos) compare(q Pos) int {
	return cmp.Or(strings.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Col, q.Col))
}

// Problem is an error or a warning about rules.
type Problem struct {
	Pos
	What string // what is wrong
	Fix  string // how to fix it; may be empty
}

// String is "file:line:col: what; fix".
func (p Problem) String() string {
	s := p.What
	if place := p.Pos.String(); place != "" {
		s = place + ": " + s
	}
	if p.Fix != "" {
		s += "; " + p.Fix
	}
	return s
}

// Problems is everything that is wrong with a set of rules, in file and line order. It is the error of a refused set.
type Problems []Problem

// maxListed bounds the text of an error: a generated file can be wrong on each of its 100,000 lines.
const maxListed = 50

// Error is one line per problem, the first 50 of them.
func (ps Problems) Error() string {
	var lines []string
	for _, p := range ps[:min(len(ps), maxListed)] {
		lines = append(lines, p.String())
	}
	if more := len(ps) - maxListed; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Sort sorts by place. Problems at one place keep their order.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int { return a.compare(b.Pos) })
}

// Add appends a problem; the format says what is wrong.
func (ps *Problems) Add(at Pos, fix, format string, args ...any) {
	*ps = append(*ps, Problem{Pos: at, What: fmt.Sprintf(format, args...), Fix: fix})
}

// CheckUTF8 reports whether the text of a file is UTF-8. If it is not, that is a problem at the first byte that is wrong.
func (ps *Problems) CheckUTF8(file string, text []byte) bool {
	if utf8.Valid(text) {
		return true
	}
	i := 0
	for c, size := utf8.DecodeRune(text); c != utf8.RuneError || size > 1; c, size = utf8.DecodeRune(text[i:]) {
		i += size
	}
	line := bytes.LastIndexByte(text[:i], '\n') + 1
	at := Pos{File: file, Line: bytes.Count(text[:i], []byte{'\n'}) + 1, Col: i - line + 1}
	ps.Add(at, "save the file as UTF-8", "the text is not UTF-8")
	return false
}

// Quote returns s in quotes for a message, cut to 60 bytes.
func Quote(s string) string {
	const most = 60
	if len(s) > most {
		return fmt.Sprintf("%q... (%d bytes)", strings.ToValidUTF8(s[:most], ""), len(s))
	}
	return fmt.Sprintf("%q", s)
}

// Shorten returns s for a message: as it is, or as Quote does if it is longer than 200 bytes or not printable.
func Shorten(s string) string {
	const most = 200
	if len(s) > most || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return Quote(s)
	}
	return s
}

// OneOf returns "a, b or c".
func OneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
