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
	above    int  // how many lines of the file are above the text
	aliased  bool // the text has an alias
}

func (r *reader) pos(n *yaml.Node) rules.Pos {
	return rules.Pos{File: r.file, Line: r.above + n.Line, Col: n.Column}
}

// wrong reports a problem at a node.
func (r *reader) wrong(n *yaml.Node, fix, format string, args ...any) {
	r.problems.Add(r.pos(n), fix, format, args...)
}

// target is the node that n stands for: n itself, unless it is an alias.
func target(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// checkAliases reports a circle of aliases, and aliases that stand for too many values. Other functions follow aliases without care,
// so they must not read a document that it refused. Size is that of the text in bytes.
func (r *reader) checkAliases(document *yaml.Node, size int) bool {
	left := size + maxExpanded
	open := make(map[*yaml.Node]bool) // anchors whose values are being checked
	var check func(n *yaml.Node) bool
	check = func(n *yaml.Node) bool {
		if left--; left == 0 {
			r.wrong(n, "use fewer aliases, or several files", "the aliases of the file stand for more than %d values", maxExpanded)
			return false
		}
		r.aliased = r.aliased || n.Kind == yaml.AliasNode
		n = target(n)
		if open[n] {
			r.wrong(n, "remove the alias that is inside its own anchor", "the value contains itself")
			return false
		}
		if n.Anchor != "" {
			open[n] = true
			defer delete(open, n)
		}
		return !slices.ContainsFunc(n.Content, func(n *yaml.Node) bool { return !check(n) })
	}
	return check(document)
}

// field is a key of a map with its value.
type field struct {
	name string
	at   rules.Pos  // of the key
	key  *yaml.Node // aliases followed
	node *yaml.Node // the value, aliases followed
	raw  *yaml.Node // the value as written, perhaps an alias
	from int        // tells apart the map itself and those that `<<` merges in
}

// manyFields is from how many on fields are found by a map, and not one by one.
const manyFields = 16

// fields returns the keys of a map that accept takes: its own in order, and then those that `<<` merges in. For a key that the same
// map has twice, twice reports whether the second one wins.
func (r *reader) fields(n *yaml.Node, accept func(*field) bool, twice func(first, second *field) bool) []field {
	all := r.merged(make([]field, 0, len(n.Content)/2), n)
	list := all[:0]
	var index map[string]int
	if len(all) > manyFields {
		index = make(map[string]int, len(all))
	}
	for k := range all {
		f := &all[k]
		if !accept(f) {
			continue
		}
		i, found := index[f.name]
		if index == nil {
			i = slices.IndexFunc(list, func(other field) bool { return other.name == f.name })
			found = i >= 0
		}
		switch {
		case !found:
			if index != nil {
				index[f.name] = len(list)
			}
			list = append(list, *f)
		case list[i].from == f.from && twice(&list[i], f):
			list[i] = *f
		}
	}
	return list
}

// merged appends the fields of a map, and behind them those that its `<<` merge in.
func (r *reader) merged(list []field, n *yaml.Node) []field {
	from := len(list)
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := target(n.Content[i]), target(n.Content[i+1])
		if isMerge(key) {
			merges = append(merges, value)
			continue
		}
		list = append(list, field{key.Value, r.pos(n.Content[i]), key, value, n.Content[i+1], from})
	}
	for _, value := range merges {
		list = r.merge(list, value)
	}
	return list
}

// merge appends what `<<: n` brings in: the fields of a map, or of a list of maps, earlier ones first.
func (r *reader) merge(list []field, n *yaml.Node) []field {
	switch n.Kind {
	case yaml.MappingNode:
		return r.merged(list, n)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			list = r.merge(list, target(item))
		}
	default:
		r.wrong(n, "", "`<<` needs a map or a list of maps")
	}
	return list
}

// isMerge reports whether a key is the `<<` of YAML 1.1; in quotes it is text.
func isMerge(k *yaml.Node) bool {
	return k.Kind == yaml.ScalarNode && k.Value == "<<" && (k.Tag == "!!merge" || k.Style == 0)
}

// checkUTF8 reports a text that `!!binary` made of bytes that are not UTF-8: no answer could carry it.
func (r *reader) checkUTF8(n *yaml.Node, text string) {
	if !utf8.ValidString(text) {
		r.wrong(n, "write text, or other bytes", "%s stands for bytes that are not UTF-8", rules.Quote(n.Value))
	}
}
