package yamlrules

import (
	"fmt"
	"time"

	"gopkg.in/yaml.v3"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// readLimitTree reads a tree of limits. Its domain is the name of the file.
func (r *reader) readLimitTree(root *yaml.Node) *compile.DomainConfig {
	cfg := &compile.DomainConfig{
		Pos: rules.Pos{File: r.file, Line: 1, Col: 1}, Domain: compile.BaseName(r.file),
		LimitTree: &compile.Positioned[[]compile.LimitNodeConfig]{},
	}
	v := r.readAnyValue(root)
	for i := range v.Fields {
		f := &v.Fields[i]
		if f.Name != "schema" {
			r.problems.Add(f.Pos, "remove it; a tree of limits has `schema` and nothing else", "unknown key %s",
				rules.Quote(f.Name))
			continue
		}
		cfg.LimitTree.Pos = f.Pos
		if f.Value.Kind != compile.KindMap {
			r.problems.Add(f.Pos, "write names below it", "schema is %v, not a map", f.Value.Kind)
			continue
		}
		cfg.LimitTree.Value = r.readLimitNodes(f.Value.Fields, 1)
	}
	return cfg
}

// readLimitNodes reads the nodes of one level of a tree of limits. depth counts the levels from 1.
func (r *reader) readLimitNodes(fields []Field, depth int) (list []compile.LimitNodeConfig) {
	if depth > rules.MaxTreeDepth && len(fields) > 0 { // One node is enough for the compiler to report the depth.
		return []compile.LimitNodeConfig{{Pos: fields[0].Pos, Word: fields[0].Name}}
	}
	for i := range fields {
		f := &fields[i]
		if f.Name == "" {
			r.problems.Add(f.Pos, "write a name, or `*`", "a name is empty")
		}
		if f.Value.Kind != compile.KindMap {
			r.problems.Add(f.Pos, "write `limits: [burst, count, period]` or `children` below it", "%s is %v, not a map",
				rules.Quote(f.Name), f.Value.Kind)
			continue
		}
		list = append(list, r.readLimitNode(f, depth))
	}
	return list
}

func (r *reader) readLimitNode(f *Field, depth int) compile.LimitNodeConfig {
	cfg := compile.LimitNodeConfig{Pos: f.Pos, Word: f.Name}
	before := len(r.problems)
	for i := range f.Value.Fields {
		switch in := &f.Value.Fields[i]; in.Name {
		case "limits":
			cfg.Limit = r.readLimitTriple(in)
		case "children":
			if !in.Value.IsNull() && in.Value.Kind != compile.KindMap {
				r.problems.Add(in.Pos, "write names below it", "children is %v, not a map", in.Value.Kind)
			}
			cfg.Children = r.readLimitNodes(in.Value.Fields, depth+1)
		default:
			r.problems.Add(in.Pos, rules.SuggestFix(in.Name, []string{"limits", "children"}, "known here: limits or children"),
				"unknown key %s", rules.Quote(in.Name))
		}
	}
	if cfg.Limit == nil && len(cfg.Children) == 0 && len(r.problems) == before {
		r.problems.Add(f.Pos, "add one, or remove it", "%s has neither limits nor children", rules.Quote(f.Name))
	}
	return cfg
}

// readLimitTriple reads a limit in the form [burst, count, seconds]. It returns nil for null, or if there is a problem.
func (r *reader) readLimitTriple(f *Field) *compile.RateLimitConfig {
	const fix = "write [burst, count, seconds], such as [15, 30, 60]"
	if f.Value.IsNull() {
		return nil
	}
	if n := len(f.Value.Items); f.Value.Kind != compile.KindList || n != 3 {
		what := f.Value.Kind.String()
		if f.Value.Kind == compile.KindList {
			what = fmt.Sprintf("a list of %d", n)
		}
		r.problems.Add(f.Pos, fix, "limits is %s, where three whole numbers belong", what)
		return nil
	}
	before := len(r.problems)
	number := func(i int, name string, least, most int64) int64 {
		return r.checkNumber(f.Value.Items[i].Scalar, f.Value.Items[i].Pos, "the "+name+" in limits", least, most)
	}
	burst := number(0, "burst", 0, algorithm.MaxCapacity-1)
	count := number(1, "count", 1, algorithm.MaxCapacity)
	seconds := number(2, "period", 1, int64(algorithm.MaxPeriod.Seconds()))
	if len(r.problems) > before {
		return nil
	}
	return &compile.RateLimitConfig{
		Pos: f.Pos, UnitPos: f.Pos,
		RequestsPerUnit: uint64(count),
		Algorithm:       &compile.Positioned[string]{Pos: f.Pos, Value: algorithm.GCRA.String()},
		Period:          &compile.Positioned[time.Duration]{Pos: f.Pos, Value: time.Duration(seconds) * time.Second},
		Burst:           &compile.Positioned[uint64]{Pos: f.Pos, Value: uint64(burst)},
	}
}
