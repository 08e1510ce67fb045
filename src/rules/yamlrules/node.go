package yamlrules

import (
	"slices"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// maxExpanded bounds how many values aliases may add to those in the file, which are fewer than its bytes: "a billion laughs" is nine
// lines of YAML.
const maxExpanded = 1_000_000

// reader turns the nodes of one file into configuration and collects what is wrong.
type reader struct {
	file     string
	problems rules.Problems
	warnings rules.Problems
	above    int                 // how many lines of the file are above the text
	left     int                 // how many values may still be visited, aliases followed
	aliased  bool                // an alias was followed
	open     map[*yaml.Node]bool // maps and lists that are being read, to find circles of aliases
}

// newReader returns a reader for a text of so many bytes.
func newReader(file string, size int) *reader {
	return &reader{file: file, left: size + maxExpanded, open: make(map[*yaml.Node]bool)}
}

func (r *reader) pos(n *yaml.Node) rules.Pos {
	return rules.Pos{File: r.file, Line: r.above + n.Line, Col: n.Column}
}

// wrong reports a problem at a node.
func (r *reader) wrong(n *yaml.Node, fix, format string, args ...any) {
	r.problems.Add(r.pos(n), fix, format, args...)
}

// enter follows aliases to the node they stand for, and counts it. It returns nil, with a problem, for a circle of aliases and for a
// file that is too large.
func (r *reader) enter(n *yaml.Node) *yaml.Node {
	if r.left--; r.left == 0 {
		r.wrong(n, "use fewer aliases, or several files", "the aliases of the file stand for more than %d values", maxExpanded)
	}
	if r.left <= 0 {
		return nil
	}
	for n.Kind == yaml.AliasNode {
		r.aliased = true
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode && r.open[n] {
		r.wrong(n, "remove the alias that is inside its own anchor", "the value contains itself")
		return nil
	}
	return n
}

// inside runs read with n marked as being read.
func (r *reader) inside(n *yaml.Node, read func()) {
	r.open[n] = true
	read()
	delete(r.open, n)
}

// each calls read for each item of a list, and with where the item is written.
func (r *reader) each(n *yaml.Node, read func(item *yaml.Node, at rules.Pos)) {
	r.inside(n, func() {
		for _, item := range n.Content {
			at := r.pos(item)
			if item = r.enter(item); item != nil {
				read(item, at)
			}
		}
	})
}

// field is a key of a map with its value.
type field struct {
	name string
	at   rules.Pos  // of the key
	key  *yaml.Node // aliases followed
	node *yaml.Node // the value, aliases followed
	raw  *yaml.Node // the value as written, perhaps an alias
}

// mapping says what to do with the keys of a map.
type mapping struct {
	place where
	// accept reports whether to keep a key; it adds the problems.
	accept func(r *reader, place where, f *field) bool
	// twice is called for a key that is there already. It reports whether the second one wins.
	twice func(r *reader, first, second *field) bool
}

// fields returns the keys of n that m accepts: its own in order, and then those that `<<` merges in. Callers read the values inside n.
func (r *reader) fields(n *yaml.Node, m mapping) []field {
	own := make([]field, 0, len(n.Content)/2)
	var merged []field
	var index fieldIndex
	for i := 0; i+1 < len(n.Content); i += 2 {
		before := own
		own = append(own, field{at: r.pos(n.Content[i]), key: r.enter(n.Content[i]), raw: n.Content[i+1]})
		f := &own[len(before)]
		if f.node = r.enter(f.raw); f.key == nil || f.node == nil {
			own = before
			continue
		}
		if f.name = f.key.Value; isMerge(f.key) {
			merged, own = append(merged, r.merge(f.node, m)...), before
			continue
		}
		if !m.accept(r, m.place, f) {
			own = before
		} else if j := index.find(before, f.name); j >= 0 {
			if m.twice(r, &before[j], f) {
				before[j] = *f
			}
			own = before
		}
		index.add(own)
	}
	for _, f := range merged {
		if index.find(own, f.name) < 0 {
			own = append(own, f)
			index.add(own)
		}
	}
	return own
}

// fieldIndex finds fields by name where there are many.
type fieldIndex map[string]int

const manyFields = 16

func (x fieldIndex) find(list []field, name string) int {
	if len(list) <= manyFields {
		return slices.IndexFunc(list, func(f field) bool { return f.name == name })
	}
	if i, found := x[name]; found {
		return i
	}
	return -1
}

// add adds the fields at the end of list that are not in x.
func (x *fieldIndex) add(list []field) {
	if len(list) > manyFields && *x == nil {
		*x = make(fieldIndex, 2*len(list))
	}
	for i := len(*x); len(list) > manyFields && i < len(list); i++ {
		(*x)[list[i].name] = i
	}
}

// isMerge reports whether a key is the `<<` of YAML 1.1; in quotes it is text.
func isMerge(k *yaml.Node) bool {
	return k.Kind == yaml.ScalarNode && k.Value == "<<" && (k.Tag == "!!merge" || k.Style == 0)
}

// merge returns what `<<: v` brings in: the fields of a map, or of a list of maps, earlier ones first.
func (r *reader) merge(v *yaml.Node, m mapping) (fields []field) {
	switch v.Kind {
	case yaml.MappingNode:
		r.inside(v, func() { fields = r.fields(v, m) })
	case yaml.SequenceNode:
		r.each(v, func(item *yaml.Node, _ rules.Pos) { fields = append(fields, r.merge(item, m)...) })
	default:
		r.wrong(v, "", "`<<` needs a map or a list of maps")
	}
	return fields
}

// checkUTF8 reports a text that `!!binary` made of bytes that are not UTF-8: no answer could carry it.
func (r *reader) checkUTF8(n *yaml.Node, text string) {
	if !utf8.ValidString(text) {
		r.wrong(n, "write text, or other bytes", "%s stands for bytes that are not UTF-8", rules.Quote(n.Value))
	}
}
