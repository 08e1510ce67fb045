package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// Problem is one thing that is wrong, or odd, in a rule file.
type Problem struct {
	Pos
	What string // what is wrong
	Fix  string // how to mend it; may be empty
}

// String is "file:line:col: what; how to mend it".
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

// Problems is everything that is wrong with a set of rule files, in file and
// line order. It is the error of a refused set.
type Problems []Problem

// maxListed bounds the text of an error: a generated file can be wrong on each
// of its 100,000 lines.
const maxListed = 50

// Error is one line per problem, the first 50 of them.
func (ps Problems) Error() string {
	var b strings.Builder
	for i, p := range ps {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == maxListed {
			fmt.Fprintf(&b, "and %d more", len(ps)-maxListed)
			break
		}
		b.WriteString(p.String())
	}
	return b.String()
}

func (ps Problems) Sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
}

func (ps *Problems) Add(at Pos, mend, format string, args ...any) {
	*ps = append(*ps, Problem{Pos: at, What: fmt.Sprintf(format, args...), Fix: mend})
}

// brief is s in quotes for a message, cut so that a value of a megabyte does
// not become a log line of a megabyte.
func Quote(s string) string {
	const most = 60
	if len(s) > most {
		return fmt.Sprintf("%q... (%d bytes)", strings.ToValidUTF8(s[:most], ""), len(s))
	}
	return fmt.Sprintf("%q", s)
}
