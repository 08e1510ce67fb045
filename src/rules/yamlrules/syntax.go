package yamlrules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// document parses the first document of data. It returns nil if there is nothing in it, or if it is not YAML.
func (r *reader) document(data []byte) *yaml.Node {
	if !isUTF16(data) && !r.problems.CheckUTF8(r.file, data) {
		return nil
	}
	doc, more, err := decode(data)
	if err != nil {
		r.syntax(data, err)
		return nil
	}
	if more != nil {
		more.File = r.file
		r.warnings.Add(*more, "put it into a file of its own", "only the first document of a file is read")
	}
	if len(doc.Content) == 0 || !r.checkAliases(doc, len(data)) {
		return nil
	}
	return doc.Content[0]
}

// decode parses the first document of data. More is where another one starts, whatever is in it; nil if there is none.
func decode(data []byte) (first *yaml.Node, more *rules.Pos, err error) {
	documents, err := decodeAll(data, 2)
	switch {
	case len(documents) == 0:
		return new(yaml.Node), nil, err
	case len(documents) == 2 || err != nil:
		more = &rules.Pos{}
		if len(documents) == 2 {
			more.Line, more.Col = documents[1].Line, documents[1].Column
		}
	}
	return documents[0], more, nil
}

// decodeAll parses documents of data until there is none, or one that is not YAML, or there are so many.
func decodeAll(data []byte, most int) (documents []*yaml.Node, err error) {
	defer func() { // yaml.v3 has panicked on odd input before
		if p := recover(); p != nil {
			err = fmt.Errorf("the parser failed: %v", p)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for len(documents) < most {
		doc := new(yaml.Node)
		if err := dec.Decode(doc); errors.Is(err, io.EOF) {
			return documents, nil
		} else if err != nil {
			return documents, err
		}
		documents = append(documents, doc)
	}
	return documents, nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// parseError is an error of yaml.v3 in parts; line is 0 if it is unknown.
func parseError(err error) (line int, what string) {
	what = err.Error()
	if m := yamlLine.FindStringSubmatch(what); m != nil {
		line, _ = strconv.Atoi(m[1])
		what = m[2]
	}
	return line, what
}

// maxSearched is the largest file in which the place of a syntax error is searched for. The search parses beginnings of the file as
// often as its length has binary digits.
const maxSearched = 1 << 20

// syntax reports that data is not YAML. yaml.v3 names the line before the block in which it failed, or none, and no column. The
// character that it failed at is the last of the shortest beginning of data with the same error.
func (r *reader) syntax(data []byte, err error) {
	at := rules.Pos{File: r.file}
	line, what := parseError(err)
	at.Line = line
	if len(data) <= maxSearched && !isUTF16(data) {
		last := sort.Search(len(data)-1, func(i int) bool {
			_, _, e := decode(data[:i+1])
			return e != nil && e.Error() == err.Error()
		})
		if line, col := syntaxPlace(data, last); line >= at.Line {
			at.Line, at.Col = line, col
		}
	}
	at.Line += r.above
	r.problems.Add(at, fixSyntax(what), "not YAML: %s", what)
}

// syntaxPlace returns the place of the character at data[i], at which the parser failed, or of a tab that the line is indented with:
// YAML has no tabs there.
func syntaxPlace(data []byte, i int) (line, col int) {
	start := bytes.LastIndexByte(data[:i], '\n') + 1
	text, _, _ := bytes.Cut(data[start:], []byte{'\n'})
	text = bytes.TrimRight(text, "\r")
	line = bytes.Count(data[:start], []byte{'\n'}) + 1
	indent := len(text) - len(bytes.TrimLeft(text, " \t"))
	if tab := bytes.IndexByte(text[:indent], '\t'); tab >= 0 {
		return line, tab + 1
	}
	return line, max(1, utf8.RuneCount(text[:min(i-start+1, len(text))]))
}

// fixes are what usually helps against errors of the YAML parser, by a part of their text.
var fixes = [...]struct{ part, fix string }{
	{"cannot start any token", "indent with blanks, not with tabs, and put text that begins with @, % or ` in quotes"},
	{"mapping values are not allowed", "put text that holds a colon and a blank in quotes"},
	{"unknown anchor", "put text that begins with * or & in quotes"},
	{"alphabetic or numeric", "put text that begins with * or & in quotes"},
	{"control characters", "remove the character, or write it as \"\\x00\""},
	{"UTF-16", "save the file as UTF-8"},
	{"surrogate", "save the file as UTF-8"},
	{"", "look at the indentation, and for a bracket or a quote that is not closed"},
}

func fixSyntax(what string) string {
	i := 0
	for !strings.Contains(what, fixes[i].part) {
		i++
	}
	return fixes[i].fix
}

// isUTF16 looks for the mark in front of UTF-16, which is YAML too.
func isUTF16(data []byte) bool {
	return bytes.HasPrefix(data, []byte{0xFE, 0xFF}) || bytes.HasPrefix(data, []byte{0xFF, 0xFE})
}
