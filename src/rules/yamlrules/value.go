package yamlrules

import (
	"slices"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// Value is a value of any form in a YAML file, read as rule files are: YAML 1.1, aliases and `<<` followed. Its Pos is where it was
// written, perhaps as an alias.
type Value struct {
	rules.Pos
	scalar
	fields []Field
	items  []Value
}

// Field is a key of a map, where it is, and its value.
type Field struct {
	rules.Pos
	Name  string
	Value Value
}

// ReadValue reads the first document of a YAML file. The value is nil if there is none. If there are problems it is good only for
// finding more of them.
func ReadValue(file string, data []byte) (*Value, rules.Problems) {
	r := &reader{file: file}
	root := r.document(data)
	if root == nil || len(r.problems) > 0 {
		return nil, append(r.problems, r.warnings...)
	}
	v := r.value(root)
	problems := append(r.problems, r.warnings...) // that there is a second document
	problems.Sort()
	return &v, slices.Compact(problems) // problems inside an alias are found each time that it is read
}

// Type is what the value is, in words: "text", "a whole number", "a map".
func (v *Value) Type() string { return v.kind.String() }

// Null reports whether there is nothing where a value could be.
func (v *Value) Null() bool { return v.kind == isNull }

// Text is a scalar as written, quotes undone; not ok for anything else.
func (v *Value) Text() (text string, ok bool) {
	return v.text, v.kind != isNull && v.kind != isMap && v.kind != isList
}

// Bool is the truth value; not ok for anything else.
func (v *Value) Bool() (value, ok bool) { return v.bool, v.kind == isBool }

// Int is the whole number; not ok for anything else.
func (v *Value) Int() (n int64, ok bool) { return v.int, v.kind == isInt }

// Items returns the items of a list, and none for null; ok is false for other kinds.
func (v *Value) Items() (items []Value, ok bool) {
	return v.items, v.kind == isList || v.kind == isNull
}

// Fields returns the fields of a map in order, each key once; ok is false for other kinds.
func (v *Value) Fields() (fields []Field, ok bool) { return v.fields, v.kind == isMap }

// value reads a node with everything in it.
func (r *reader) value(n *yaml.Node) Value {
	v := Value{Pos: r.pos(n)}
	n = target(n)
	v.scalar = resolve(n)
	switch n.Kind {
	case yaml.MappingNode:
		accept := func(f *field) bool { return r.isScalar(f, "a key") }
		twice := func(_, second *field) bool {
			r.problems.Add(second.at, "remove one of them", "the key %s is here twice", rules.Quote(second.name))
			return false
		}
		for _, f := range r.fields(n, accept, twice) {
			v.fields = append(v.fields, Field{f.at, f.name, r.value(f.raw)})
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			v.items = append(v.items, r.value(item))
		}
	default:
		r.checkUTF8(n, v.text)
	}
	return v
}
