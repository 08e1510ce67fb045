package yamlrules

import (
	"slices"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// maxAliasedValues is the most values that the aliases of a file may stand for, beyond one value for each byte of the
// file. Nine lines of YAML can otherwise stand for a billion values.
const maxAliasedValues = 1_000_000

// reader turns the YAML nodes of one file, or of a part of it, into configuration, and collects problems.
type reader struct {
	file       string
	problems   rules.Problems
	warnings   rules.Problems
	linesAbove int  // those of the file above the part that is read
	hasAlias   bool // set if the part has an alias
}

func (r *reader) posOf(n *yaml.Node) rules.Pos {
	return rules.Pos{File: r.file, Line: r.linesAbove + n.Line, Col: n.Column}
}

func (r *reader) addProblem(n *yaml.Node, fix, format string, args ...any) {
	r.problems.Add(r.posOf(n), fix, format, args...)
}

// resolveAlias returns the node that n stands for: the anchored node if n is an alias, else n.
func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// checkAliases reports a circle of aliases, and aliases that stand for too many values. Other functions follow aliases
// without a bound, so they must not read a document for which it returns false. size is that of the text in bytes.
func (r *reader) checkAliases(document *yaml.Node, size int) bool {
	left := size + maxAliasedValues
	open := make(map[*yaml.Node]bool) // the anchored values that contain the one that is being checked.
	var check func(n *yaml.Node) bool
	check = func(n *yaml.Node) bool {
		if left--; left == 0 {
			r.addProblem(n, "use fewer aliases, or several files", "the aliases of the file stand for more than %d values",
				maxAliasedValues)
			return false
		}
		r.hasAlias = r.hasAlias || n.Kind == yaml.AliasNode
		n = resolveAlias(n)
		if open[n] {
			r.addProblem(n, "remove the alias that is inside its own anchor", "the value contains itself")
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
	name            string
	keyPos          rules.Pos
	keyNode         *yaml.Node // the target of the key, if that is an alias
	valueNode       *yaml.Node // the target of the value, if that is an alias
	unresolvedValue *yaml.Node // the value as written
	sourceMap       int        // a number that tells apart the map's own fields and those of each map that `<<` merges in
}

// maxFieldsWithoutIndex is the most fields of a map among which duplicate keys are searched one by one. For more, an
// index is faster.
const maxFieldsWithoutIndex = 16

// collectFields returns the fields of a map for which accept returns true: first the map's own, then those that `<<`
// merges in. If one map has a key twice, the second value replaces the first if twice returns true.
func (r *reader) collectFields(n *yaml.Node, accept func(*field) bool, twice func(first, second *field) bool) []field {
	all := r.appendFields(make([]field, 0, len(n.Content)/2), n)
	list := all[:0]
	var index map[string]int
	if len(all) > maxFieldsWithoutIndex {
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
		case list[i].sourceMap == f.sourceMap && twice(&list[i], f):
			list[i] = *f
		}
	}
	return list
}

// appendFields appends the fields of a map to list, and behind them those that its `<<` merge in.
func (r *reader) appendFields(list []field, n *yaml.Node) []field {
	origin := len(list)
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolveAlias(n.Content[i]), resolveAlias(n.Content[i+1])
		if isMergeKey(key) {
			merges = append(merges, value)
			continue
		}
		list = append(list, field{key.Value, r.posOf(n.Content[i]), key, value, n.Content[i+1], origin})
	}
	for _, value := range merges {
		list = r.appendMergedFields(list, value)
	}
	return list
}

// appendMergedFields appends the fields that `<<: n` merges in: those of a map, or of each map of a list.
func (r *reader) appendMergedFields(list []field, n *yaml.Node) []field {
	switch n.Kind {
	case yaml.MappingNode:
		return r.appendFields(list, n)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			list = r.appendMergedFields(list, resolveAlias(item))
		}
	default:
		r.addProblem(n, "", "`<<` needs a map or a list of maps")
	}
	return list
}

// isMergeKey reports whether a key is the `<<` of YAML 1.1. In quotes `<<` is an ordinary key.
func isMergeKey(k *yaml.Node) bool {
	return k.Kind == yaml.ScalarNode && k.Value == "<<" && (k.Tag == "!!merge" || k.Style == 0)
}

// checkUTF8 reports text that is not UTF-8, which only `!!binary` can produce. Answers of the service could not carry
// such text.
func (r *reader) checkUTF8(n *yaml.Node, text string) {
	if !utf8.ValidString(text) {
		r.addProblem(n, "write text, or other bytes", "%s stands for bytes that are not UTF-8", rules.Quote(n.Value))
	}
}
