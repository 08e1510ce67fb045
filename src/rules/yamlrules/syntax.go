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

// readDocument parses the first document of data and warns if there are more. It returns nil if the document is empty
// or not YAML.
func (r *reader) readDocument(data []byte) *yaml.Node {
	if !isUTF16(data) && !r.problems.CheckUTF8(r.file, data) {
		return nil
	}
	documents, err := decodeDocuments(data, 2)
	if len(documents) == 0 {
		if err != nil {
			r.reportSyntaxError(data, err)
		}
		return nil
	}
	if len(documents) == 2 || err != nil {
		second := rules.Pos{File: r.file}
		if err == nil {
			second = r.posOf(documents[1])
		}
		r.warnings.Add(second, "put it into a file of its own", "only the first document of a file is read")
	}
	first := documents[0]
	if len(first.Content) == 0 || !r.checkAliases(first, len(data)) {
		return nil
	}
	return first.Content[0]
}

// decodeDocuments parses up to most documents of data. The error tells that the document after the returned ones is not
// YAML.
func decodeDocuments(data []byte, most int) (documents []*yaml.Node, err error) {
	if root, ok := parsePlain(data); ok {
		return []*yaml.Node{{Kind: yaml.DocumentNode, Content: []*yaml.Node{root}, Line: root.Line, Column: root.Column}}, nil
	}
	return decodeAnyDocuments(data, most)
}

// decodeAnyDocuments does what decodeDocuments does, with yaml.v3 alone.
func decodeAnyDocuments(data []byte, most int) (documents []*yaml.Node, err error) {
	defer func() { // yaml.v3 has panicked on unusual input before.
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

// yamlErrorPattern matches the text of every error of yaml.v3: the line, which some errors lack, and the mistake.
var yamlErrorPattern = regexp.MustCompile(`(?s)^(?:yaml: (?:line (\d+): )?)?(.*)$`)

// parseYAMLError returns the line and the mistake that an error of yaml.v3 names. The line is 0 if the error names
// none.
func parseYAMLError(err error) (line int, mistake string) {
	m := yamlErrorPattern.FindStringSubmatch(err.Error())
	line, _ = strconv.Atoi(m[1])
	return line, m[2]
}

// maxSearchedSize is the size of the largest file in which reportSyntaxError searches for the position of a mistake. It
// parses beginnings of the file as often as the size has binary digits.
const maxSearchedSize = 1 << 20

// reportSyntaxError reports that data is not YAML. yaml.v3 names no column, and the line only of the block with the
// mistake, if at all. The mistake is at the last character of the shortest beginning of the file that has the same
// error.
func (r *reader) reportSyntaxError(data []byte, err error) {
	line, mistake := parseYAMLError(err)
	at := rules.Pos{File: r.file, Line: line}
	if len(data) <= maxSearchedSize && !isUTF16(data) {
		last := sort.Search(len(data)-1, func(i int) bool {
			_, e := decodeDocuments(data[:i+1], 1)
			return e != nil && e.Error() == err.Error()
		})
		if line, col := syntaxPlace(data, last); line >= at.Line {
			at.Line, at.Col = line, col
		}
	}
	fix := syntaxErrorFix(mistake)
	if strings.HasPrefix(mistake, "mapping values") && isTooDeep(data, at.Line) {
		fix = "indent the line as the keys above it that belong to the same map"
	}
	at.Line += r.linesAbove
	r.problems.Add(at, fix, "not YAML: %s", mistake)
}

// isTooDeep returns whether a line begins with a key and is deeper than the key with a value in the line above it: YAML
// takes the key for more of that value.
func isTooDeep(data []byte, line int) bool {
	if line < 2 {
		return false
	}
	lines := bytes.SplitN(data, []byte{'\n'}, line+1)
	if len(lines) < line {
		return false
	}
	above, text := keyLinePattern.FindSubmatch(lines[line-2]), keyLinePattern.FindSubmatch(lines[line-1])
	return above != nil && text != nil && len(above[2]) > 0 && len(text[1]) > len(above[1])
}

// keyLinePattern matches a line with a key: what indents the key, with the dash of a list, and the first character of
// the value.
var keyLinePattern = regexp.MustCompile(`^([ -]*)[A-Za-z_]+:[ \t\r]*([^ \t\r#]?)`)

// syntaxPlace returns the line and column of data[i], at which the parser failed. If a tab indents that line, it
// returns the place of the tab, because YAML allows none there.
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

// syntaxFixes are the usual fixes for errors of the YAML parser that contain part. The last one is for every error.
var syntaxFixes = [...]struct{ part, fix string }{
	{"cannot start any token", "indent with blanks, not with tabs, and put text that begins with @, % or ` in quotes"},
	{"mapping values are not allowed", "put text that holds a colon and a blank in quotes"},
	{"unknown anchor", "put text that begins with * or & in quotes"},
	{"alphabetic or numeric", "put text that begins with * or & in quotes"},
	{"control characters", "remove the character, or write it as \"\\x00\""},
	{"UTF-16", "save the file as UTF-8"},
	{"surrogate", "save the file as UTF-8"},
	{"", "look at the indentation, and for a bracket or a quote that is not closed"},
}

func syntaxErrorFix(mistake string) string {
	i := 0
	for !strings.Contains(mistake, syntaxFixes[i].part) {
		i++
	}
	return syntaxFixes[i].fix
}

// isUTF16 reports whether data starts with the byte order mark of UTF-16, which YAML allows too.
func isUTF16(data []byte) bool {
	return bytes.HasPrefix(data, []byte{0xFE, 0xFF}) || bytes.HasPrefix(data, []byte{0xFF, 0xFE})
}
