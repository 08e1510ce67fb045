package rules

import (
	"fmt"
	"math"

	"gopkg.in/yaml.v3"

	"ratelimit/src/algorithm"
)

// isTree tells a tree of limits from rules by its keys: it has `schema`, and no
// `domain`.
func isTree(root *yaml.Node) bool {
	tree := false
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		switch root.Content[i].Value {
		case "domain":
			return false
		case "schema":
			tree = true
		}
	}
	return tree
}

// treeKey is a key of a tree of limits, for the schema and the test of docs/rule-keys.md.
type treeKey struct{ name, place, says string }

var treeKeys = []treeKey{
	{"schema", "a tree of limits", "A tree of limits: names of the first words of requests, and what is below them."},
	{"limits", "a name in it", "[burst, count, period]: count in period seconds, and burst beyond the first at once."},
	{"children", "a name in it", "Names of the next word; `*` stands for every other one, each counted apart."},
}

// tree reads a tree of limits.
func (r *yamlReader) tree(root *yaml.Node) *DomainConfig {
	cfg := &DomainConfig{Pos: Pos{File: r.file, Line: 1, Col: 1}, Domain: baseName(r.file), Tree: &Placed[[]WordConfig]{}}
	v := r.value(root)
	for i := range v.fields {
		f := &v.fields[i]
		if f.Name != "schema" {
			r.problems.add(f.Pos, "remove it; a tree of limits has `schema` and nothing else", "unknown key %s", brief(f.Name))
			continue
		}
		cfg.Tree.Pos = f.Pos
		if f.Value.kind != isMap {
			r.problems.add(f.Pos, "write names below it", "schema is %v, not a map", f.Value.kind)
			continue
		}
		cfg.Tree.Value = r.words(f.Value.fields, 1)
	}
	return cfg
}

func (r *yamlReader) words(fields []Field, depth int) (list []WordConfig) {
	if depth > maxDepth && len(fields) > 0 { // one is enough for the compiler to say so
		return []WordConfig{{Pos: fields[0].Pos, Word: fields[0].Name}}
	}
	for i := range fields {
		f := &fields[i]
		cfg := WordConfig{Pos: f.Pos, Word: f.Name}
		if f.Name == "" {
			r.problems.add(f.Pos, "write a name, or `*`", "a name is empty")
		}
		if f.Value.kind != isMap {
			r.problems.add(f.Pos, "write `limits: [burst, count, period]` or `children` below it", "%s is %v, not a map", brief(f.Name), f.Value.kind)
			continue
		}
		before := len(r.problems)
		for j := range f.Value.fields {
			switch in := &f.Value.fields[j]; in.Name {
			case "limits":
				cfg.Limits = r.bucket(in)
			case "children":
				if !in.Value.Null() && in.Value.kind != isMap {
					r.problems.add(in.Pos, "write names below it", "children is %v, not a map", in.Value.kind)
				}
				cfg.Children = r.words(in.Value.fields, depth+1)
			default:
				r.problems.add(in.Pos, suggestOf(in.Name, "limits", "children"), "unknown key %s", brief(in.Name))
			}
		}
		if cfg.Limits == nil && len(cfg.Children) == 0 && len(r.problems) == before {
			r.problems.add(f.Pos, "add one, or remove it", "%s has neither limits nor children", brief(f.Name))
		}
		list = append(list, cfg)
	}
	return list
}

// suggestOf names the one of known that was probably meant.
func suggestOf(name string, known ...string) string {
	for _, k := range known {
		if oneEdit(name, k) {
			return fmt.Sprintf("did you mean `%s`?", k)
		}
	}
	return "known here: " + oneOf(known)
}

// bucket reads [burst, count, period]; nil for none, and for what was noted.
func (r *yamlReader) bucket(f *Field) *BucketConfig {
	const mend = "write [burst, count, seconds], such as [15, 30, 60]"
	if f.Value.Null() {
		return nil
	}
	if n := len(f.Value.items); f.Value.kind != isList || n != 3 {
		what := f.Value.kind.String()
		if f.Value.kind == isList {
			what = fmt.Sprintf("a list of %d", n)
		}
		r.problems.add(f.Pos, mend, "limits is %s, where three whole numbers belong", what)
		return nil
	}
	b := &BucketConfig{Pos: f.Pos}
	before := len(r.problems)
	longest := int64(algorithm.MaxPeriod.Seconds())
	b.Burst = uint32(r.part(&f.Value.items[0], "burst", 0, math.MaxUint32-1))
	b.Count = uint32(r.part(&f.Value.items[1], "count", 1, math.MaxUint32))
	b.Seconds = r.part(&f.Value.items[2], "period", 1, longest)
	if len(r.problems) > before {
		return nil
	}
	return b
}

func (r *yamlReader) part(v *Value, name string, least, most int64) int64 {
	switch {
	case v.kind == isInt && least <= v.int && v.int <= most:
		return v.int
	case v.kind == isInt || v.kind == isBigInt:
		r.problems.add(v.Pos, fmt.Sprintf("write %d to %d", least, most), "the %s in limits is out of range: %s", name, brief(v.text))
	case v.kind == isFloat:
		r.problems.add(v.Pos, "write a whole number", "the %s in limits is a fraction: %s", name, brief(v.text))
	default:
		r.problems.add(v.Pos, "write a whole number", "the %s in limits is %v, not a number", name, v.kind)
	}
	return 0
}
