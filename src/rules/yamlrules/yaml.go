package yamlrules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// maxExpanded bounds how many values aliases may add to those that a file has,
// which are fewer than its bytes: "a billion laughs" is nine lines of YAML.
const maxExpanded = 1_000_000

// yamlReader turns YAML nodes into configuration and notes what is wrong.
type yamlReader struct {
	file     string
	problems rules.Problems
	warnings rules.Problems
	above    int                 // how many lines of the file stand above the text
	left     int                 // how many values may still be visited, aliases followed
	aliased  bool                // an alias was followed
	open     map[*yaml.Node]bool // aliases being read, to find circles
}

// newYAMLReader returns a reader for a text of so many bytes.
func newYAMLReader(file string, size int) *yamlReader {
	return &yamlReader{file: file, left: size + maxExpanded, open: make(map[*yaml.Node]bool)}
}

// document parses the first document of data; nil when there is nothing in it
// or it is no YAML.
func (r *yamlReader) document(data []byte) *yaml.Node {
	if at, ok := InvalidUTF8(data); ok {
		at.File = r.file
		r.problems.Add(at, "save the file as UTF-8", "the text is not UTF-8")
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
	if len(doc.Content) == 0 {
		return nil
	}
	return doc.Content[0]
}

// decode parses the first document of data. More is where another one begins,
// which is not read and may be anything; nil when there is none.
func decode(data []byte) (first *yaml.Node, more *rules.Pos, err error) {
	defer func() { // yaml.v3 has panicked on odd input before
		if p := recover(); p != nil {
			err = fmt.Errorf("the parser failed: %v", p)
		}
	}()
	first, second := new(yaml.Node), new(yaml.Node)
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(first); err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return first, nil, err
	}
	if err := dec.Decode(second); !errors.Is(err, io.EOF) {
		more = &rules.Pos{Line: second.Line, Col: second.Column}
	}
	return first, more, nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntax notes that data is not YAML. yaml.v3 names the line before the block
// in which it gave up, or none, and no column; the character that made it give up
// is the last of the shortest beginning of data with the same error.
func (r *yamlReader) syntax(data []byte, err error) {
	at, what := rules.Pos{File: r.file}, err.Error()
	if m := yamlLine.FindStringSubmatch(what); m != nil {
		at.Line, _ = strconv.Atoi(m[1]) // no line: 0, unknown
		what = m[2]
	}
	if len(data) <= maxSearched && !IsUTF16(data) {
		same := func(beginning []byte) bool {
			_, _, e := decode(beginning)
			return e != nil && e.Error() == err.Error()
		}
		lines := bytes.SplitAfter(data, []byte{'\n'})
		before := sort.Search(len(lines)-1, func(i int) bool { return same(bytes.Join(lines[:i+1], nil)) })
		if before+1 >= at.Line {
			at.Line = before + 1
			at.Col = syntaxColumn(bytes.Join(lines[:before], nil), lines[before], same)
		}
	}
	at.Line += r.above
	r.problems.Add(at, mendSyntax(what), "not YAML: %s", what)
}

// syntaxColumn returns the column of the character in line, which stands behind
// above, that completes the mistake.
func syntaxColumn(above, line []byte, same func(beginning []byte) bool) int {
	text := bytes.TrimRight(line, "\r\n")
	indent := len(text) - len(bytes.TrimLeft(text, " \t"))
	if tab := bytes.IndexByte(text[:indent], '\t'); tab >= 0 {
		return tab + 1 // no parser takes it there
	}
	n := sort.Search(len(text), func(i int) bool { return same(append(above[:len(above):len(above)], text[:i+1]...)) })
	return max(1, utf8.RuneCount(text[:min(n+1, len(text))]))
}

// maxSearched is the largest file in which the line of a mistake is searched
// for, which takes as many parses as the number of lines has binary digits.
const maxSearched = 1 << 20

// mendSyntax is what usually helps against an error of the YAML parser.
func mendSyntax(what string) string {
	switch {
	case strings.Contains(what, "cannot start any token"):
		return "indent with blanks, not with tabs, and put text that begins with @, % or ` in quotes"
	case strings.Contains(what, "mapping values are not allowed"):
		return "put text that holds a colon and a blank in quotes"
	case strings.Contains(what, "unknown anchor"), strings.Contains(what, "alphabetic or numeric"):
		return "put text that begins with * or & in quotes"
	case strings.Contains(what, "control characters"):
		return "remove the character, or write it as \"\\x00\""
	case strings.Contains(what, "UTF-16"), strings.Contains(what, "surrogate"):
		return "save the file as UTF-8"
	}
	return "look at the indentation, and for a bracket or a quote that is not closed"
}

// isUTF16 looks for the mark in front of UTF-16.
func IsUTF16(data []byte) bool {
	return bytes.HasPrefix(data, []byte{0xFE, 0xFF}) || bytes.HasPrefix(data, []byte{0xFF, 0xFE})
}

// invalidUTF8 finds the first byte of data that is not UTF-8. UTF-16 with its
// mark in front is YAML too.
func InvalidUTF8(data []byte) (rules.Pos, bool) {
	if IsUTF16(data) || utf8.Valid(data) {
		return rules.Pos{}, false
	}
	at := 0
	for {
		c, size := utf8.DecodeRune(data[at:])
		if c == utf8.RuneError && size <= 1 {
			break
		}
		at += size
	}
	lineStart := bytes.LastIndexByte(data[:at], '\n') + 1
	return rules.Pos{Line: bytes.Count(data[:at], []byte{'\n'}) + 1, Col: at - lineStart + 1}, true
}

func (r *yamlReader) pos(n *yaml.Node) rules.Pos {
	return rules.Pos{File: r.file, Line: r.above + n.Line, Col: n.Column}
}

// field is a key of a mapping with its value, aliases followed.
type field struct {
	name string
	at   rules.Pos
	node *yaml.Node
}

// enter follows aliases to the node they stand for, and counts it. It returns
// nil for a circle of aliases and for a file that is too large; both are
// noted.
func (r *yamlReader) enter(n *yaml.Node) *yaml.Node {
	if r.left--; r.left == 0 {
		r.problems.Add(r.pos(n), "use fewer aliases, or several files", "the aliases of the file stand for more than %d values", maxExpanded)
	}
	if r.left <= 0 {
		return nil
	}
	for n.Kind == yaml.AliasNode {
		r.aliased = true
		n = n.Alias
	}
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		if r.open[n] {
			r.problems.Add(r.pos(n), "remove the alias that stands inside its own anchor", "the value contains itself")
			return nil
		}
	}
	return n
}

// inside runs read with n marked as being read.
func (r *yamlReader) inside(n *yaml.Node, read func()) {
	r.open[n] = true
	read()
	delete(r.open, n)
}

func kindOf(n *yaml.Node) Kind {
	switch n.Kind {
	case yaml.MappingNode:
		return IsMap
	case yaml.SequenceNode:
		return IsList
	default:
		return resolve(n).kind
	}
}

// fields returns the keys of mapping n at the given place, `<<` merged in, the
// last of equal keys winning. It notes keys that are unknown or not text, and a
// second rate_limit or rate_limits: the last one must not silently replace a limit.
func (r *yamlReader) fields(n *yaml.Node, place where) []field {
	var own, merged []field
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], r.enter(n.Content[i+1])
		if k = r.enter(k); k == nil || v == nil {
			continue
		}
		at := r.pos(n.Content[i])
		if isMerge(k) {
			merged = append(merged, r.merge(v, place)...)
			continue
		}
		if kind := kindOf(k); kind != IsString {
			r.problems.Add(at, "put the key in quotes if it is meant as text", "the key %s is %v, not text", rules.Quote(k.Value), kind)
			continue
		}
		meaning, known := keys[k.Value]
		switch {
		case !known:
			r.problems.Add(at, suggest(k.Value, place), "unknown key %s", rules.Quote(k.Value))
			continue
		case meaning&place == 0:
			if place != 0 { // else it is inside a value that was warned of
				r.warnings.Add(at, "move it or remove it", "%s has no effect in %s", k.Value, whereNames[place])
			}
			if !free[k.Value] {
				r.ignored(v)
			}
			continue
		}
		f := field{k.Value, at, v}
		if j := slices.IndexFunc(own, func(o field) bool { return o.name == f.name }); j >= 0 {
			if f.name == "rate_limit" || f.name == "rate_limits" { // a limit would be dropped
				r.problems.Add(at, "keep one of them, or put both limits into one list `rate_limits`",
					"the key %s is here twice, the first is at %v", f.name, own[j].at)
				continue
			}
			r.warnings.Add(at, "remove one of them", "the key %s is here twice; the last one wins", f.name)
			own[j] = f
			continue
		}
		own = append(own, f)
	}
	for _, f := range merged {
		if !slices.ContainsFunc(own, func(o field) bool { return o.name == f.name }) {
			own = append(own, f)
		}
	}
	return own
}

// isMerge tells the key `<<` of YAML 1.1 from a text of two signs.
func isMerge(k *yaml.Node) bool {
	return k.Kind == yaml.ScalarNode && k.Value == "<<" && (k.Tag == "!!merge" || k.Style == 0)
}

// merge is what `<<: v` brings in: the fields of a mapping, or of a list of
// them, earlier ones first.
func (r *yamlReader) merge(v *yaml.Node, place where) (fields []field) {
	switch v.Kind {
	case yaml.MappingNode:
		r.inside(v, func() { fields = r.fields(v, place) })
		return fields
	case yaml.SequenceNode:
		r.inside(v, func() {
			for _, item := range v.Content {
				if item = r.enter(item); item != nil && item.Kind == yaml.MappingNode {
					fields = append(fields, r.merge(item, place)...)
				} else if item != nil {
					r.problems.Add(r.pos(item), "", "`<<` needs a map or a list of maps")
				}
			}
		})
		return fields
	}
	r.problems.Add(r.pos(v), "", "`<<` needs a map or a list of maps")
	return nil
}

// ignored checks a value that has no effect where it stands as far as
// envoyproxy/ratelimit would: a fraction is refused wherever it is, and a list
// of anything but maps.
func (r *yamlReader) ignored(n *yaml.Node) {
	switch kindOf(n) {
	case IsFloat, IsBigInt:
		r.problems.Add(r.pos(n), "write a whole number, or put it in quotes", "%s is %v", rules.Quote(n.Value), kindOf(n))
	case IsMap:
		r.inside(n, func() { r.fields(n, 0) })
	case IsList:
		r.inside(n, func() {
			for _, item := range n.Content {
				if item = r.enter(item); item == nil {
					continue
				}
				if kind := kindOf(item); kind != IsMap {
					r.problems.Add(r.pos(item), "remove it", "an item of the list is %v, not a map", kind)
					continue
				}
				r.ignored(item)
			}
		})
	default:
	}
}

// suggest names the key that was probably meant.
func suggest(name string, place where) string {
	if place == 0 {
		return "remove it"
	}
	lower := strings.ReplaceAll(strings.ToLower(name), "-", "_")
	var known []string
	for k, meaning := range keys {
		if meaning&place != 0 {
			known = append(known, k)
		}
	}
	slices.Sort(known) // two may be one letter off
	for _, like := range []func(known string) bool{
		func(k string) bool { return k == lower },
		func(k string) bool { return rules.OneEdit(lower, k) },
	} {
		if i := slices.IndexFunc(known, like); i >= 0 {
			return fmt.Sprintf("did you mean `%s`?", known[i])
		}
	}
	return fmt.Sprintf("known in %s: %s", whereNames[place], strings.Join(known, ", "))
}
