package yamlrules

import (
	"slices"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// Value is a value in a YAML file of any form, read as rule files are read:
// YAML 1.1, aliases and `<<` followed. Its Pos is where it was written.
type Value struct {
	rules.Pos
	scalar
	fields []Field
	items  []Value
}

// Field is a key of a map, where it stands, and its value.
type Field struct {
	rules.Pos
	Name  string
	Value Value
}

// ReadValue reads the first document of a YAML file. The value is nil if there
// is none. With problems it is good only for finding more of them.
func ReadValue(file string, data []byte) (*Value, rules.Problems) {
	r := newYAMLReader(file, len(data))
	root := r.document(data)
	problems := append(r.problems, r.warnings...) // of a second document
	if root == nil || len(r.problems) > 0 {
		return nil, problems
	}
	r.problems = problems
	v := r.value(root)
	r.problems.Sort()
	return &v, slices.Compact(r.problems) // an alias is read where it stands, with all that is wrong in it
}

// Type is what the value is, in words: "text", "a whole number", "a map".
func (v *Value) Type() string { return v.kind.String() }

// Null reports whether there is nothing where a value could be.
func (v *Value) Null() bool { return v.kind == IsNull }

// Text is a scalar as it was written, quotes undone; not ok for anything else.
func (v *Value) Text() (text string, ok bool) {
	return v.text, v.kind != IsNull && v.kind != IsMap && v.kind != IsList
}

// Bool is the truth value; not ok for anything else.
func (v *Value) Bool() (value, ok bool) { return v.bool, v.kind == IsBool }

// Int is the whole number; not ok for anything else.
func (v *Value) Int() (n int64, ok bool) { return v.int, v.kind == IsInt }

// Items are those of a list, nothing at all being an empty one; not ok for
// anything else.
func (v *Value) Items() (items []Value, ok bool) {
	return v.items, v.kind == IsList || v.kind == IsNull
}

// Fields are those of a map, in order, each key once; not ok for anything else.
func (v *Value) Fields() (fields []Field, ok bool) { return v.fields, v.kind == IsMap }

// value reads a node with all that is in it.
func (r *yamlReader) value(n *yaml.Node) Value {
	v := Value{Pos: r.pos(n)}
	v.kind = IsNull
	if n = r.enter(n); n == nil {
		return v
	}
	switch n.Kind {
	case yaml.MappingNode:
		v.kind = IsMap
		r.inside(n, func() { v.fields = r.valueFields(n) })
	case yaml.SequenceNode:
		v.kind = IsList
		r.inside(n, func() {
			for _, item := range n.Content {
				if r.left <= 0 {
					return
				}
				v.items = append(v.items, r.value(item))
			}
		})
	default:
		v.scalar = resolve(n)
		r.checkUTF8(n, v.text)
	}
	return v
}

func (r *yamlReader) valueFields(n *yaml.Node) (fields []Field) {
	var merged []Field
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content) && r.left > 0; i += 2 {
		at := r.pos(n.Content[i])
		k := r.enter(n.Content[i])
		if k == nil {
			continue
		}
		v := r.value(n.Content[i+1])
		switch {
		case isMerge(k):
			merged = append(merged, r.merged(&v)...)
		case k.Kind != yaml.ScalarNode:
			r.problems.Add(at, "write text", "a key is %v, not text", kindOf(k))
		case seen[k.Value]:
			r.problems.Add(at, "remove one of them", "the key %s is here twice", rules.Quote(k.Value))
		default:
			seen[k.Value] = true
			fields = append(fields, Field{at, k.Value, v})
		}
	}
	for _, f := range merged {
		if !seen[f.Name] {
			seen[f.Name] = true
			fields = append(fields, f)
		}
	}
	return fields
}

// merged is what `<<: v` brings in.
func (r *yamlReader) merged(v *Value) (fields []Field) {
	switch v.kind {
	case IsMap:
		return v.fields
	case IsList:
		for i := range v.items {
			fields = append(fields, r.merged(&v.items[i])...)
		}
		return fields
	}
	r.problems.Add(v.Pos, "", "`<<` needs a map or a list of maps")
	return nil
}
