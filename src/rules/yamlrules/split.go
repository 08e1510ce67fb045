package yamlrules

import (
	"bytes"
	"iter"
	"strings"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// List is a rule file whose list of descriptors, or of rules, is read in parts.
type List struct {
	file   string
	key    string // of the list
	line   int    // of the key
	indent int    // of the items
	frame  []byte // the file with empty lines in place of the list
	list   []byte // from the line below the key to the end of the list
	rest   []byte // the list and everything behind it
}

// Part is what was read of a file.
type Part struct {
	Config             *rules.DomainConfig // nil: nothing to compile
	More               bool                // Config continues that of the part before
	Whole              bool                // the file cannot be read in parts
	Problems, Warnings rules.Problems
}

// Split finds the block list `descriptors` or `rules` at the top level of a file, by indentation alone. The parts find out whether it
// really is that.
func Split(file string, data []byte) (f *List, ok bool) {
	if isUTF16(data) || hasOddBreaks(data) {
		return nil, false
	}
	f = &List{file: file, indent: -1}
	at, lines, header := 0, 0, 0
	for line := range bytes.Lines(data) {
		text := bytes.TrimLeft(line, " ")
		column := len(line) - len(text)
		switch {
		case f.key == "":
			if f.key = listKey(line); f.key != "" {
				f.line, header = lines+1, at+len(line)
			}
		case isBlank(text):
		case f.indent < 0 && !isItem(text):
			return nil, false
		case f.indent < 0:
			f.indent = column
		case column < f.indent, column == f.indent && !isItem(text):
			f.list, f.rest = data[header:at], data[header:]
			f.frame = bytes.Join([][]byte{data[:header], bytes.Repeat([]byte{'\n'}, lines-f.line), data[at:]}, nil)
			return f, column == 0 // else it is not YAML
		}
		at += len(line)
		lines++
	}
	f.list, f.rest, f.frame = data[header:], data[header:], data[:header]
	return f, f.indent >= 0
}

// listKey is the key of a list that starts below line; empty if there is none.
func listKey(line []byte) string {
	key, behind, _ := bytes.Cut(line, []byte{':'})
	if k := string(key); k != "descriptors" && k != "rules" || !isBlank(bytes.TrimLeft(behind, " ")) || len(behind) > 0 && behind[0] == '#' {
		return ""
	}
	return string(key)
}

// isBlank reports whether text, without its indentation, is a comment or nothing.
func isBlank(text []byte) bool {
	return len(text) == 0 || text[0] == '#' || text[0] == '\n' || text[0] == '\r'
}

// isItem reports whether text starts an item of a list.
func isItem(text []byte) bool {
	return len(text) > 0 && text[0] == '-' && (len(text) == 1 || text[1] == ' ' || text[1] == '\n' || text[1] == '\r')
}

// hasOddBreaks reports whether data has line breaks that YAML counts and others do not.
func hasOddBreaks(data []byte) bool {
	return bytes.Count(data, []byte{'\r'}) != bytes.Count(data, []byte("\r\n")) ||
		bytes.Contains(data, []byte("\u0085")) || bytes.Contains(data, []byte("\u2028")) || bytes.Contains(data, []byte("\u2029"))
}

// Parts yields functions that read what is around the list, and then the list in parts of at least size bytes, the last excepted. A
// cut may be wrong where an item has quotes or brackets over several lines that are indented less than YAML demands; then the part
// above cannot be read.
func (f *List) Parts(size int) iter.Seq[func() Part] {
	return func(yield func(func() Part) bool) {
		if !yield(f.readFrame) {
			return
		}
		at, start, lines, above, empty := 0, 0, f.line, f.line, true
		part := func(end int) func() Part {
			text, rest, above := f.list[start:end], f.rest[start:], above
			return func() Part { return f.readPart(text, rest, above) }
		}
		for line := range bytes.Lines(f.list) {
			if text := bytes.TrimLeft(line, " "); len(line)-len(text) == f.indent && isItem(text) {
				if !empty && at-start >= size {
					if !yield(part(at)) {
						return
					}
					start, above = at, lines
				}
				empty = false
			}
			at += len(line)
			lines++
		}
		yield(part(len(f.list)))
	}
}

// readFrame reads what is around the list.
func (f *List) readFrame() (p Part) {
	r := &reader{file: f.file}
	root := r.document(f.frame)
	if len(r.problems) > 0 || !f.hasList(root) {
		return Part{Whole: true}
	}
	p.Config = r.domain(root)
	if f.key == "rules" {
		p.Config.Rules = &rules.Placed[[]rules.RuleConfig]{Pos: rules.Pos{File: f.file, Line: f.line, Col: 1}}
	}
	p.Problems, p.Warnings = r.problems, r.warnings
	return p
}

// hasList reports whether root, read from frame, has the list's key on its line, without a value, and no other list.
func (f *List) hasList(root *yaml.Node) bool {
	found := false
	for i := 0; root != nil && root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		if k.Value != "descriptors" && k.Value != "rules" {
			continue
		}
		if found || k.Value != f.key || k.Line != f.line || k.Column != 1 || v.Kind != yaml.ScalarNode || v.Value != "" || v.Style != 0 || v.Anchor != "" {
			return false
		}
		found = true
	}
	return found && isRuleFile(root)
}

// readPart reads a part of the list: text, with rest from its start to the end of the file, and so many lines above it.
func (f *List) readPart(text, rest []byte, above int) Part {
	r := &reader{file: f.file, above: above}
	first, more, err := decode(text)
	cfg := new(rules.DomainConfig)
	switch {
	case err != nil:
		// A part that ends within an item may be valid together with what follows, and an anchor may be above.
		_, _, wrong := decode(rest)
		if wrong == nil || wrong.Error() != err.Error() || strings.Contains(err.Error(), "anchor") {
			return Part{Whole: true}
		}
		r.syntax(text, err)
	case more != nil || len(first.Content) != 1 || first.Content[0].Kind != yaml.SequenceNode:
		return Part{Whole: true}
	case r.checkAliases(first, len(text)):
		list := field{name: f.key, at: rules.Pos{File: f.file, Line: f.line, Col: 1}, node: first.Content[0]}
		if f.key == "rules" {
			cfg.Rules = r.rules(list)
		} else {
			cfg.Descriptors = r.descriptors(list)
		}
	}
	return Part{Config: cfg, More: true, Whole: r.aliased, Problems: r.problems, Warnings: r.warnings}
}
