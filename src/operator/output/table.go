package output

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// Column is a column of a table.
type Column struct {
	Title string
	// IsNumber says that cells are aligned to the right, and never shortened.
	IsNumber bool
}

// Columns returns columns of text with these titles.
func Columns(titles ...string) []Column { return columns(false, titles) }

// Numbers returns columns of numbers with these titles.
func Numbers(titles ...string) []Column { return columns(true, titles) }

func columns(areNumbers bool, titles []string) (list []Column) {
	for _, title := range titles {
		list = append(list, Column{title, areNumbers})
	}
	return list
}

// minTextCells is how far a column of text is shortened before columns are left out.
const minTextCells = 12

// columnGap stands between two columns.
const columnGap = "  "

// Table returns the lines of a table, the titles first. It quotes cells that are not printable. If lines would need
// more than maxCells cells of a terminal, it shortens the widest texts, and then leaves out the last columns. With 0
// there is no bound.
func Table(maxCells int, columns []Column, rows [][]string) []string {
	t := newTable(columns, rows)
	if maxCells > 0 {
		t.fit(maxCells)
	}
	return t.lines()
}

// GrowingTable is a table whose rows arrive over time. A column grows with its cells, so lines that follow later stay
// aligned with it.
type GrowingTable struct {
	Columns []Column
	widths  []int
}

// Lines returns the lines of more rows, before the first ones the titles.
func (g *GrowingTable) Lines(rows [][]string) []string {
	t := newTable(g.Columns, rows)
	isFirst := g.widths == nil
	for i, width := range g.widths {
		t.widths[i] = max(t.widths[i], width)
	}
	g.widths = t.widths
	if isFirst {
		return t.lines()
	}
	return t.lines()[1:]
}

// table has the rows of a table, titles included, and the cells that each column needs.
type table struct {
	columns []Column
	rows    [][]string
	widths  []int
}

func newTable(columns []Column, rows [][]string) *table {
	t := &table{columns: columns, rows: make([][]string, 1, len(rows)+1), widths: make([]int, len(columns))}
	for _, c := range columns {
		t.rows[0] = append(t.rows[0], c.Title)
	}
	for _, row := range rows {
		clean := make([]string, len(row))
		for i, cell := range row {
			clean[i] = Printable(cell)
		}
		t.rows = append(t.rows, clean)
	}
	for _, row := range t.rows {
		for i, cell := range row {
			t.widths[i] = max(t.widths[i], Cells(cell))
		}
	}
	return t
}

// fit makes the lines at most maxCells cells wide. It keeps the first columns that fit with shortened texts, at least
// one. Lines stay wider only if a first column of numbers is.
func (t *table) fit(maxCells int) {
	least := -len(columnGap)
	for i, c := range t.columns {
		if c.IsNumber {
			least += t.widths[i]
		} else {
			least += min(t.widths[i], minTextCells)
		}
		if least += len(columnGap); i > 0 && least > maxCells {
			t.columns, t.widths = t.columns[:i], t.widths[:i]
			break
		}
	}
	for t.lineCells() > maxCells {
		widest := -1
		for i, c := range t.columns {
			if !c.IsNumber && t.widths[i] > 1 && (widest < 0 || t.widths[i] > t.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		t.widths[widest]--
	}
}

func (t *table) lineCells() int {
	n := -len(columnGap)
	for _, w := range t.widths {
		n += w + len(columnGap)
	}
	return n
}

func (t *table) lines() []string {
	lines := make([]string, len(t.rows))
	for i, row := range t.rows {
		var b strings.Builder
		for j, c := range t.columns {
			cell := Shorten(row[j], t.widths[j])
			blanks := strings.Repeat(" ", t.widths[j]-Cells(cell))
			if j > 0 {
				b.WriteString(columnGap)
			}
			if c.IsNumber {
				b.WriteString(blanks + cell)
			} else {
				b.WriteString(cell + blanks)
			}
		}
		lines[i] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// Cells returns how many cells of a terminal text needs: two for each wide character of East Asian scripts, none for a
// combining mark, and one for any other.
func Cells(text string) (n int) {
	for _, r := range text {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Wrap returns text in at most maxLines lines of maxCells cells, broken at blanks where that is possible. Lines after
// the first are indented. The last line is shortened if there is more. With 0 cells there is one line.
func Wrap(text string, maxCells, maxLines int) (lines []string) {
	const indent = "  "
	for rest := text; ; {
		if maxCells <= 2*len(indent) || len(lines) == maxLines-1 || Cells(rest) <= maxCells {
			if maxCells > 0 {
				rest = Shorten(rest, maxCells)
			}
			return append(lines, rest)
		}
		end, cells := 0, 0
		for i, r := range rest {
			if cells += runeCells(r); cells > maxCells {
				end = i
				break
			}
		}
		if blank := strings.LastIndexByte(rest[:end], ' '); blank > len(indent) {
			end = blank
		}
		lines = append(lines, strings.TrimRight(rest[:end], " "))
		rest = indent + strings.TrimLeft(rest[end:], " ")
	}
}

// DistinctParts returns what distinguishes names: without the words, ended by dots, colons, hyphens or slashes, that
// all have at their start, for which "…" stands. One name stays as it is.
func DistinctParts(names []string) []string {
	if len(names) < 2 {
		return names
	}
	common := names[0]
	for _, name := range names[1:] {
		n := 0
		for n < len(common) && n < len(name) && common[n] == name[n] {
			n++
		}
		common = common[:n]
	}
	cut := strings.LastIndexAny(common, ".:-/") + 1
	if cut < 2 {
		return names
	}
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = "…" + name[cut:]
	}
	return parts
}

// Shorten returns text, or if it needs more than maxCells cells, its start with "…" in at most maxCells cells.
func Shorten(text string, maxCells int) string {
	switch {
	case Cells(text) <= maxCells:
		return text
	case maxCells < 1:
		return ""
	}
	n := 0
	for i, r := range text {
		if n += runeCells(r); n > maxCells-1 {
			return text[:i] + "…"
		}
	}
	return text
}
