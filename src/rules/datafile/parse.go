package datafile

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind is what the lines of a file have.
type Kind uint8

const (
	Values Kind = iota // a value a line.
	Limits             // a value and its limit a line.
)

// String returns the key of rule files that names files of the kind.
func (k Kind) String() string { return [...]string{"values_from", "limits_from"}[k] }

// bounds are the bounds of a file. They keep a file named by mistake, and one that compresses a great deal, from taking
// all memory.
type bounds struct {
	textBytes      int64 // of compressed files, those of the text that comes out
	lines          int   // also those without a value
	lineBytes      int
	distinctLimits int
	problems       int // the number of problems after which reading stops
}

var defaultBounds = bounds{
	textBytes: 256 << 20, lines: 10_000_000, lineBytes: 4096, distinctLimits: 65_536, problems: 50,
}

// Problem is a mistake in a file. Line and Col count from 1; they are 0 if the problem is of the file as a whole.
type Problem struct {
	Line, Col int
	Message   string
	Fix       string
}

// Parse reads a file, as fast as pacer allows. With problems the table is nil. A name that ends in .gz is that of a
// file that gzip has compressed.
func Parse(name string, data []byte, kind Kind, pacer *Pacer) (*Table, []Problem) {
	return parseWithin(name, data, kind, defaultBounds, pacer)
}

func parseWithin(name string, data []byte, kind Kind, bounds bounds, pacer *Pacer) (*Table, []Problem) {
	p := &parser{kind: kind, bounds: bounds, pacer: pacer}
	if kind == Limits {
		p.limits, p.limitIndexes = []Limit{}, make(map[Numbers]int)
	}
	p.read(name, data)
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	table := p.builder.build(pacer, p.limits, p.line, func(value []byte, first, second int) bool {
		p.line = second
		p.fail(1, "remove one of the two lines", "%s is in line %d already", quote(value), first)
		return !p.stopped
	})
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return table, nil
}

// parser reads the lines of one file.
type parser struct {
	kind           Kind
	bounds         bounds
	pacer          *Pacer
	builder        builder
	line           int // the line that is read, from 1
	problems       []Problem
	stopped        bool   // set by a problem after which nothing is read
	firstValueLine int    // the first line that is no comment and not blank; 0 before it
	unquoted       []byte // the memory of the last value in quotes

	limits       []Limit         // each limit once; nil for a file of values
	limitIndexes map[Numbers]int // into limits
	lastLimit    []byte          // the text of the last limit, because lines often have the limit of the line above
	lastIndex    int             // that of lastLimit
}

// fail adds a problem at a column of the line; 0 stands for the whole line.
func (p *parser) fail(col int, fix, format string, args ...any) {
	p.problems = append(p.problems, Problem{p.line, col, fmt.Sprintf(format, args...), fix})
	if len(p.problems) == p.bounds.problems {
		p.problems = append(p.problems, Problem{p.line, 0, "more lines may have problems: reading stopped here", ""})
		p.stopped = true
	}
}

// stop adds the last problem.
func (p *parser) stop(fix, format string, args ...any) {
	p.fail(0, fix, format, args...)
	p.stopped = true
}

const (
	shrinkFix     = "use several files, each for a descriptor of its own"
	gzipFix       = "compress it again with gzip, or write it without .gz"
	byteOrderMark = "\ufeff" // put before a text in UTF-8 by some editors and spreadsheets.
	blanks        = " \t"
)

// read reads all lines into the builder.
func (p *parser) read(name string, data []byte) {
	text := io.Reader(bytes.NewReader(data))
	if strings.HasSuffix(name, ".gz") {
		unzipped, err := gzip.NewReader(text)
		if err != nil {
			p.stop(gzipFix, "is not compressed by gzip: %v", err)
			return
		}
		text = unzipped
	}
	bounded := &io.LimitedReader{R: text, N: p.bounds.textBytes + 1}
	lines := bufio.NewReaderSize(bounded, p.bounds.lineBytes+len("\r\n"))
	for !p.stopped {
		line, err := lines.ReadSlice('\n')
		if len(line) == 0 && err == io.EOF {
			return
		}
		switch p.line++; {
		case bounded.N == 0:
			p.stop(shrinkFix, "has more than %d bytes of text", p.bounds.textBytes)
		case errors.Is(err, bufio.ErrBufferFull), len(withoutBreak(line)) > p.bounds.lineBytes:
			p.stop("write one value a line", "a line is longer than %d bytes", p.bounds.lineBytes)
		case err != nil && err != io.EOF:
			p.stop(gzipFix, "the compressed text breaks off or is damaged: %v", err)
		case p.line > p.bounds.lines:
			p.stop(shrinkFix, "has more than %d lines", p.bounds.lines)
		default:
			p.readLine(withoutBreak(line))
		}
		if p.line%linesPerStep == 0 {
			p.pacer.Step()
		}
	}
}

func withoutBreak(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte{'\n'}), []byte{'\r'})
}

// readLine reads a line without its line break.
func (p *parser) readLine(line []byte) {
	text := line
	if p.line == 1 {
		text = bytes.TrimPrefix(line, []byte(byteOrderMark))
	}
	if len(bytes.TrimLeft(text, blanks)) == 0 || text[0] == '#' {
		return
	}
	p.firstValueLine = cmp.Or(p.firstValueLine, p.line)
	col := len(line) - len(text) + 1
	value, rest, ok := p.readValue(text, col)
	isHeader := ok && p.kind == Limits && p.line == p.firstValueLine && p.readHeader(rest[1:])
	if !ok || isHeader || !p.checkValue(value, text[0] == '"', col) {
		return
	}
	limit := 0
	if p.kind == Limits {
		limit = p.readLimit(rest[1:], len(line)-len(rest)+2)
	}
	if limit >= 0 {
		p.builder.add(value, limit, p.line)
	}
}

var (
	// nameWords matches the words of a name: requests, Per and unit in requestsPer_unit.
	nameWords = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)
	// limitWords are words of which a header's second name has one. With any name, a line with a mistake would be taken
	// for a header: acme,none.
	limitWords = strings.Fields("limit limits request requests rate quota max maximum allowed allowance count hits calls " +
		"rps rpm rph rpd")
)

// maxRequests is the largest number of requests of a limit, algorithm.MaxCapacity.
const maxRequests = 1 << 48

const headerFix = "; a header's second name has a word such as limit, requests, rate, quota or max"

// readHeader reports whether the first line of a file of limits names its columns, such as tenant,limit. rest is behind
// the first comma. It adds a problem if the line names columns that such a file does not have.
func (p *parser) readHeader(rest []byte) bool {
	name, others, hasOthers := strings.Cut(string(rest), ",")
	isLimitWord := func(word string) bool { return slices.Contains(limitWords, strings.ToLower(word)) }
	if strings.ContainsAny(name, "0123456789") || !slices.ContainsFunc(nameWords.FindAllString(name, -1), isLimitWord) {
		return false
	}
	if hasOthers && strings.ToLower(strings.Trim(others, blanks+`"`)) != "burst" {
		p.fail(0, "remove the other columns", "a file of limits has the columns value, requests_per_unit and burst, not %s",
			quote([]byte(others)))
	}
	return true
}

// readValue returns the value at the start of text, which is at a column of the line, and the rest of the line. In a
// file of limits the rest starts with a comma. It is not ok after a problem.
func (p *parser) readValue(text []byte, col int) (value, rest []byte, ok bool) {
	if text[0] == '"' {
		return p.readQuoted(text, col)
	}
	if p.kind == Values {
		return text, nil, true
	}
	end := bytes.IndexByte(text, ',')
	if end < 0 {
		p.fail(col+len(text), "write value,requests_per_unit or value,unlimited", "the line has no limit: %s", quote(text))
		return nil, nil, false
	}
	return text[:end], text[end:], true
}

// readQuoted is readValue for a value in quotes. A quote in it is written twice.
func (p *parser) readQuoted(text []byte, col int) (value, rest []byte, ok bool) {
	const fix = "write a quote that is part of the value twice, and quotes around the value"
	p.unquoted = p.unquoted[:0]
	for at := 1; ; at++ {
		end := bytes.IndexByte(text[at:], '"')
		if end < 0 {
			p.fail(col, "add the closing quote on the same line, or "+fix, "the quote is not closed")
			return nil, nil, false
		}
		p.unquoted = append(p.unquoted, text[at:at+end]...)
		if at += end + 1; at == len(text) || text[at] != '"' {
			value, rest, col = p.unquoted, text[at:], col+at
			break
		}
		p.unquoted = append(p.unquoted, '"')
	}
	switch {
	case p.kind == Values && len(rest) > 0:
		p.fail(col, "remove it, or "+fix, "text after the closing quote: %s", quote(rest))
		return nil, nil, false
	case p.kind == Limits && (len(rest) == 0 || rest[0] != ','):
		p.fail(col, "write a comma and the limit, or "+fix, "no comma after the closing quote")
		return nil, nil, false
	}
	return value, rest, true
}

// checkValue reports whether a request can have the value. If not, it adds a problem.
func (p *parser) checkValue(value []byte, quoted bool, col int) bool {
	switch {
	case len(value) == 0:
		p.fail(col, "write a value, or remove the line", "the value is empty")
	case !quoted && len(bytes.Trim(value, blanks)) < len(value):
		p.fail(col, "remove the blanks, or write quotes around the value", "the value begins or ends with a blank: %s",
			quote(value))
	case !utf8.Valid(value):
		p.fail(col, "save the file as UTF-8", "the value is not UTF-8: %s", quote(value))
	default:
		return true
	}
	return false
}

// readLimit returns the index of the limit that text is: requests_per_unit, or with a comma and burst. col is the
// column of text. The index is -1 after a problem.
func (p *parser) readLimit(text []byte, col int) (index int) {
	if len(p.limits) > 0 && bytes.Equal(text, p.lastLimit) {
		return p.lastIndex
	}
	l, ok := p.parseLimit(text, col)
	if !ok {
		return -1
	}
	index, known := p.limitIndexes[l.Numbers]
	if !known {
		if index = len(p.limits); index == p.bounds.distinctLimits {
			p.stop("round them, or use several files", "has more than %d different limits", p.bounds.distinctLimits)
			return -1
		}
		p.limits, p.limitIndexes[l.Numbers] = append(p.limits, l), index
	}
	p.lastLimit, p.lastIndex = append(p.lastLimit[:0], text...), index
	return index
}

// parseLimit parses a limit. If that is not possible, it adds a problem.
func (p *parser) parseLimit(text []byte, col int) (l Limit, ok bool) {
	requests, burst, hasBurst := bytes.Cut(text, []byte{','})
	requests, burst = bytes.Trim(requests, blanks), bytes.Trim(burst, blanks)
	l = Limit{Line: p.line, Col: col}
	problem := ""
	if l.Unlimited = string(requests) == "unlimited"; !l.Unlimited {
		l.Requests, problem = parseNumber(requests, maxRequests)
	}
	burstCol := col + bytes.IndexByte(text, ',') + 1
	switch {
	case problem != "":
		fix := fmt.Sprintf("write a whole number from 0 to %d, or unlimited", uint64(maxRequests))
		if p.line == p.firstValueLine {
			fix += headerFix
		}
		p.fail(col, fix, "requests_per_unit %s", problem)
		return l, false
	case !hasBurst || len(burst) == 0:
		return l, true
	case l.Unlimited:
		p.fail(burstCol, "remove one of them", "unlimited and burst exclude each other")
		return l, false
	}
	l.HasBurst = true
	if l.Burst, problem = parseNumber(burst, maxRequests-1); problem != "" {
		p.fail(burstCol, fmt.Sprintf("write a whole number from 0 to %d", uint64(maxRequests-1)), "burst %s", problem)
	}
	return l, problem == ""
}

// parseNumber returns a number up to most, or what is wrong with the text.
func parseNumber(text []byte, most uint64) (n uint64, problem string) {
	value, err := strconv.ParseUint(string(text), 10, 64)
	if err == nil && value > most {
		err = strconv.ErrRange
	}
	switch {
	case err == nil:
	case len(text) == 0:
		problem = "is missing"
	case errors.Is(err, strconv.ErrRange):
		problem = "is out of range: " + quote(text)
	default:
		problem = "is not a whole number: " + quote(text)
	}
	return value, problem
}

// quote returns text in quotes for a message, cut to 60 bytes.
func quote(text []byte) string {
	const most = 60
	if len(text) > most {
		return fmt.Sprintf("%q... (%d bytes)", strings.ToValidUTF8(string(text[:most]), ""), len(text))
	}
	return fmt.Sprintf("%q", text)
}
