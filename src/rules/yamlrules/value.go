package yamlrules

import (
	"slices"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// Value is a value of any form in a YAML file. Like rule files, it is read by YAML 1.1, with aliases and `<<` resolved.
// If an alias stands for the value, its Pos is that of the alias.
type Value struct {
	rules.Pos
	Scalar
	Fields []Field // those of a map in order, each key once
	Items  []Value // those of a list
}

// Field is a key of a map, with its position and value.
type Field struct {
	rules.Pos
	Name  string
	Value Value
}

// ReadValue reads the first document of a YAML file. The value is nil if the file is empty or not YAML. If there are
// problems, the value is good only for finding more of them.
func ReadValue(file string, data []byte) (*Value, rules.Problems) {
	r := &reader{file: file}
	root := r.readDocument(data)
	if root == nil || len(r.problems) > 0 {
		return nil, append(r.problems, r.warnings...)
	}
	v := r.readAnyValue(root)
	problems := append(r.problems, r.warnings...) // The only warning tells of a second document.
	problems.Sort()
	return &v, slices.Compact(problems) // A problem in a value with several aliases is found once for each.
}

// IsNull reports whether the value is null, or nothing is written behind its key.
func (v *Value) IsNull() bool { return v.Kind == compile.KindNull }

// IsScalar reports whether the value is neither null, nor a map, nor a list.
func (v *Value) IsScalar() bool {
	return v.Kind != compile.KindNull && v.Kind != compile.KindMap && v.Kind != compile.KindList
}

// readAnyValue reads a node and all nodes below it.
func (r *reader) readAnyValue(n *yaml.Node) Value {
	v := Value{Pos: r.posOf(n)}
	n = resolveAlias(n)
	v.Scalar = parseScalar(n)
	switch n.Kind {
	case yaml.MappingNode:
		accept := func(f *field) bool { return r.checkScalarKey(f, "a key") }
		twice := func(_, second *field) bool {
			r.problems.Add(second.keyPos, "remove one of them", "the key %s is here twice", rules.Quote(second.name))
			return false
		}
		for _, f := range r.collectFields(n, accept, twice) {
			v.Fields = append(v.Fields, Field{f.keyPos, f.name, r.readAnyValue(f.unresolvedValue)})
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			v.Items = append(v.Items, r.readAnyValue(item))
		}
	default:
		r.checkUTF8(n, v.Text)
	}
	return v
}
