package rules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Pos is a position in a rule file. Line and Col count from 1; 0 is unknown.
type Pos struct {
	File      string
	Line, Col int
}

// String returns file:line:col, or as much of it as is known. It quotes a name with characters that are not printable.
func (p Pos) String() string {
	file := p.File
	if strings.ContainsFunc(file, isUnprintable) {
		file = strconv.Quote(file)
	}
	switch {
	case p.Line == 0:
		return file
	case p.Col == 0:
		return fmt.Sprintf("%s:%d", file, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", file, p.Line, p.Col)
}

// Compare orders positions by file, line and column.
func (p Pos) Compare(q Pos) int {
	return cmp.Or(strings.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Col, q.Col))
}

// Problem is an error or a warning about rules.
type Problem struct {
	Pos
	Message string
	Fix     string // says how to fix it; it may be empty.
}

// String returns "file:line:col: what; fix".
func (p Problem) String() string {
	s := p.Message
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

// maxErrorLines is the most problems in the text of an error, because a generated file can be wrong on each of its
// 100,000 lines.
const maxErrorLines = 50

// Error returns a line for each of the first 50 problems.
func (ps Problems) Error() string {
	var lines []string
	for _, p := range ps[:min(len(ps), maxErrorLines)] {
		lines = append(lines, p.String())
	}
	if more := len(ps) - maxErrorLines; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Sort sorts problems by position. Problems with the same position keep their order.
func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int { return a.Compare(b.Pos) })
}

// OnePerPlace sorts problems, and returns them with the first at each place of a file only. What a reader refuses is
// often missing to the compiler, too, and that is one mistake.
func (ps Problems) OnePerPlace() Problems {
	ps.Sort()
	return slices.CompactFunc(ps, func(a, b Problem) bool { return a.Line > 0 && a.Pos == b.Pos })
}

// ProblemsOf returns the Problems that err is or wraps, or nil.
func ProblemsOf(err error) Problems {
	problems, _ := errors.AsType[Problems](err)
	return problems
}

// FirstProblem returns err in one line: its first problem, or its first line.
func FirstProblem(err error) string {
	if problems := ProblemsOf(err); len(problems) > 1 {
		return problems[0].String() + " (and more, see the log)"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Add appends a problem at a position. format and args say what is wrong.
func (ps *Problems) Add(at Pos, fix, format string, args ...any) {
	*ps = append(*ps, Problem{Pos: at, Message: fmt.Sprintf(format, args...), Fix: fix})
}

// CheckUTF8 reports whether the text of a file is UTF-8. If not, it adds a problem at the first byte that is not.
func (ps *Problems) CheckUTF8(file string, text []byte) bool {
	if utf8.Valid(text) {
		return true
	}
	i := 0
	for c, size := utf8.DecodeRune(text); c != utf8.RuneError || size > 1; c, size = utf8.DecodeRune(text[i:]) {
		i += size
	}
	lineStart := bytes.LastIndexByte(text[:i], '\n') + 1
	at := Pos{File: file, Line: bytes.Count(text[:i], []byte{'\n'}) + 1, Col: i - lineStart + 1}
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

// Shorten returns s for a message. If s is longer than 200 bytes or not printable, it returns what Quote does.
func Shorten(s string) string {
	const most = 200
	if len(s) > most || strings.ContainsFunc(s, isUnprintable) {
		return Quote(s)
	}
	return s
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }

// JoinWithOr returns "a, b or c" for the words a, b and c. There must be at least two.
func JoinWithOr(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
