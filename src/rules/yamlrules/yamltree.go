package yamlrules

import (
	"fmt"
	"math"

	"gopkg.in/yaml.v3"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
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

// tree reads a tree of limits.
func (r *yamlReader) tree(root *yaml.Node) *rules.DomainConfig {
	cfg := &rules.DomainConfig{Pos: rules.Pos{File: r.file, Line: 1, Col: 1}, Domain: rules.BaseName(r.file), Tree: &rules.Placed[[]rules.WordConfig]{}}
	v := r.value(root)
	for i := range v.fields {
		f := &v.fields[i]
		if f.Name != "schema" {
			r.problems.Add(f.Pos, "remove it; a tree of limits has `schema` and nothing else", "unknown key %s", rules.Quote(f.Name))
			continue
		}
		cfg.Tree.Pos = f.Pos
		if f.Value.kind != IsMap {
			r.problems.Add(f.Pos, "write names below it", "schema is %v, not a map", f.Value.kind)
			continue
		}
		cfg.Tree.Value = r.words(f.Value.fields, 1)
	}
	return cfg
}

func (r *yamlReader) words(fields []Field, depth int) (list []rules.WordConfig) {
	if depth > rules.MaxDepth && len(fields) > 0 { // one is enough for the compiler to say so
		return []rules.WordConfig{{Pos: fields[0].Pos, Word: fields[0].Name}}
	}
	for i := range fields {
		f := &fields[i]
		cfg := rules.WordConfig{Pos: f.Pos, Word: f.Name}
		if f.Name == "" {
			r.problems.Add(f.Pos, "write a name, or `*`", "a name is empty")
		}
		if f.Value.kind != IsMap {
			r.problems.Add(f.Pos, "write `limits: [burst, count, period]` or `children` below it", "%s is %v, not a map", rules.Quote(f.Name), f.Value.kind)
			continue
		}
		before := len(r.problems)
		for j := range f.Value.fields {
			switch in := &f.Value.fields[j]; in.Name {
			case "limits":
				cfg.Limits = r.bucket(in)
			case "children":
				if !in.Value.Null() && in.Value.kind != IsMap {
					r.problems.Add(in.Pos, "write names below it", "children is %v, not a map", in.Value.kind)
				}
				cfg.Children = r.words(in.Value.fields, depth+1)
			default:
				r.problems.Add(in.Pos, suggestOf(in.Name, "limits", "children"), "unknown key %s", rules.Quote(in.Name))
			}
		}
		if cfg.Limits == nil && len(cfg.Children) == 0 && len(r.problems) == before {
			r.problems.Add(f.Pos, "add one, or remove it", "%s has neither limits nor children", rules.Quote(f.Name))
		}
		list = append(list, cfg)
	}
	return list
}

// suggestOf names the one of known that was probably meant.
func suggestOf(name string, known ...string) string {
	for _, k := range known {
		if rules.OneEdit(name, k) {
			return fmt.Sprintf("did you mean `%s`?", k)
		}
	}
	return "known here: " + rules.OneOf(known)
}

// bucket reads [burst, count, period]; nil for none, and for what was noted.
func (r *yamlReader) bucket(f *Field) *rules.BucketConfig {
	const mend = "write [burst, count, seconds], such as [15, 30, 60]"
	if f.Value.Null() {
		return nil
	}
	if n := len(f.Value.items); f.Value.kind != IsList || n != 3 {
		what := f.Value.kind.String()
		if f.Value.kind == IsList {
			what = fmt.Sprintf("a list of %d", n)
		}
		r.problems.Add(f.Pos, mend, "limits is %s, where three whole numbers belong", what)
		return nil
	}
	b := &rules.BucketConfig{Pos: f.Pos}
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
	case v.kind == IsInt && least <= v.int && v.int <= most:
		return v.int
	case v.kind == IsInt || v.kind == IsBigInt:
		r.problems.Add(v.Pos, fmt.Sprintf("write %d to %d", least, most), "the %s in limits is out of range: %s", name, rules.Quote(v.text))
	case v.kind == IsFloat:
		r.problems.Add(v.Pos, "write a whole number", "the %s in limits is a fraction: %s", name, rules.Quote(v.text))
	default:
		r.problems.Add(v.Pos, "write a whole number", "the %s in limits is %v, not a number", name, v.kind)
	}
	return 0
}
