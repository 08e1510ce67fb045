package yamlrules

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// ParseYAML reads one rule file in Envoy's format, or a tree of limits. With any problems the
// configuration is good only for finding more of them; it is nil when the text
// is not YAML at all, and for a file of tests, which may stand among the rules.
// Warnings name what has no effect.
func Parse(file string, data []byte) (cfg *rules.DomainConfig, problems, warnings rules.Problems) {
	r := newYAMLReader(file, len(data))
	root := r.document(data)
	switch {
	case len(r.problems) > 0:
	case root == nil: // empty, or only comments
		cfg = &rules.DomainConfig{Pos: rules.Pos{File: file, Line: 1, Col: 1}}
	default:
		cfg = r.config(root)
	}
	return cfg, r.problems, r.warnings
}

// config reads a document; nil for tests of rules.
func (r *yamlReader) config(root *yaml.Node) *rules.DomainConfig {
	switch {
	case isTests(root):
		return nil
	case isTree(root):
		return r.tree(root)
	}
	return r.domain(root)
}

// isTests tells a file of tests from one of rules by its keys: such a file has
// `tests`, and no `domain`.
func isTests(root *yaml.Node) bool {
	tests := false
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		switch root.Content[i].Value {
		case "domain":
			return false
		case "tests":
			tests = true
		}
	}
	return tests
}

func (r *yamlReader) domain(n *yaml.Node) *rules.DomainConfig {
	cfg := &rules.DomainConfig{Pos: r.pos(n)}
	n = r.enter(n)
	if n == nil {
		return cfg
	}
	switch kind := kindOf(n); kind {
	case IsNull:
		return cfg
	case IsMap:
	default:
		r.problems.Add(cfg.Pos, "begin it with `domain: <name>`", "the file is %v, not a map", kind)
		return nil
	}
	r.inside(n, func() {
		for _, f := range r.fields(n, atRoot) {
			take(r, f, fileKeys, cfg)
			if f.name == "domain" {
				cfg.Pos = f.at
			}
		}
	})
	return cfg
}

// take reads a field into where the table of keys has its place in cfg.
func take[T any](r *yamlReader, f field, keys []key[T], cfg *T) {
	for i := range keys {
		if k := &keys[i]; k.name == f.name {
			r.fill(f, cmp.Or(k.most, math.MaxUint32), k.into(cfg))
			return
		}
	}
}

// fill reads a field as what it is to become; most is the largest number. What
// it knows is what schemaOf knows.
func (r *yamlReader) fill(f field, most int64, into any) {
	switch into := into.(type) {
	case *string:
		*into = r.text(f)
	case *bool:
		*into = r.flag(f)
	case *uint32:
		*into = r.number(f, most)
	case **uint32:
		if n := r.number(f, most); kindOf(f.node) != IsNull {
			*into = &n
		}
	case **rules.Placed[string]:
		*into = placed(r, f, r.text)
	case **rules.Placed[bool]:
		*into = placed(r, f, r.flag)
	case **rules.Placed[uint32]:
		*into = placed(r, f, func(f field) uint32 { return r.number(f, most) })
	case **rules.Placed[time.Duration]:
		*into = placed(r, f, r.duration)
	case *map[string]any:
		*into = r.metadata(f)
	case *[]rules.DescriptorConfig:
		*into = r.descriptors(f)
	case **rules.RateLimitConfig:
		*into = r.rateLimit(f)
	case **rules.Placed[[]rules.RateLimitConfig]:
		*into = r.rateLimits(f)
	case *[]rules.ReplacesConfig:
		*into = r.replaces(f)
	case **rules.Placed[[]rules.RuleConfig]:
		*into = r.rules(f)
	case **rules.Placed[[]rules.PairConfig]:
		*into = r.pairs(f)
	case *[]rules.Placed[string]:
		*into = r.texts(f)
	}
}

func (r *yamlReader) descriptors(f field) []rules.DescriptorConfig {
	var list []rules.DescriptorConfig
	r.list(f, "- key: ...", "a descriptor", func(item *yaml.Node, at rules.Pos) {
		list = append(list, rules.DescriptorConfig{Pos: at})
		for _, f := range r.fields(item, atDescriptor) {
			take(r, f, descriptorKeys, &list[len(list)-1])
		}
		if r.left <= 0 { // it was not read to its end
			list = list[:len(list)-1]
		}
	})
	return list
}

// list reads a field that is a list of maps; nothing at all is an empty one.
// form is how to write an item, what is what it is called.
func (r *yamlReader) list(f field, form, what string, read func(item *yaml.Node, at rules.Pos)) {
	switch kind := kindOf(f.node); kind {
	case IsNull:
		return
	case IsList:
	default:
		r.problems.Add(f.at, "write `"+form+"` below it", "%s is %v, not a list", f.name, kind)
		return
	}
	r.inside(f.node, func() {
		for _, item := range f.node.Content {
			at := r.pos(item)
			if item = r.enter(item); item == nil {
				continue
			}
			if kind := kindOf(item); kind != IsMap {
				r.problems.Add(at, "write `"+form+"`", "%s is %v, not a map", what, kind)
				continue
			}
			r.inside(item, func() { read(item, at) })
		}
	})
}

// rules reads an ordered list; nil where there is none.
func (r *yamlReader) rules(f field) *rules.Placed[[]rules.RuleConfig] {
	if kindOf(f.node) == IsNull {
		return nil
	}
	list := &rules.Placed[[]rules.RuleConfig]{Pos: f.at}
	r.list(f, "- match: ...", "a rule", func(item *yaml.Node, at rules.Pos) {
		before := len(r.problems)
		cfg := rules.RuleConfig{Pos: at}
		for _, f := range r.fields(item, atRule) {
			take(r, f, ruleKeys, &cfg)
		}
		cfg.Incomplete = len(r.problems) > before
		if r.left > 0 {
			list.Value = append(list.Value, cfg)
		}
	})
	return list
}

// pairs reads a map of text to text. What is wrong with it is noted.
func (r *yamlReader) pairs(f field) *rules.Placed[[]rules.PairConfig] {
	list := &rules.Placed[[]rules.PairConfig]{Pos: f.at}
	switch kind := kindOf(f.node); kind {
	case IsMap:
		r.inside(f.node, func() { list.Value = r.pairsOf(f.node) })
	default:
		r.problems.Add(r.pos(f.node), "write `{key: pattern}`, or `{}` if the rule is for all", "%s is %v, not a map", f.name, kind)
	}
	return list
}

func (r *yamlReader) pairsOf(n *yaml.Node) []rules.PairConfig {
	var own, merged []rules.PairConfig
	seen := make(map[string]int) // where in own
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := r.enter(n.Content[i]), r.enter(n.Content[i+1])
		at := r.pos(n.Content[i])
		switch {
		case k == nil || v == nil:
		case isMerge(k) && v.Kind == yaml.MappingNode:
			r.inside(v, func() { merged = append(merged, r.pairsOf(v)...) })
		case isMerge(k):
			r.problems.Add(at, "", "`<<` needs a map")
		case k.Kind != yaml.ScalarNode:
			r.problems.Add(at, "write text", "a key of match is %v, not text", kindOf(k))
		case kindOf(v) == IsNull:
			r.problems.Add(at, "write \"*\" for any value, or \"\" for an empty one", "no pattern for the key %s", rules.Quote(k.Value))
		default:
			r.checkUTF8(k, resolve(k).text)
			p := rules.PairConfig{Pos: at, Key: resolve(k).text, Pattern: r.text(field{name: k.Value, at: at, node: v})}
			if j, twice := seen[p.Key]; twice {
				r.warnings.Add(at, "remove one of them", "the key %s is here twice; the last one wins", rules.Quote(p.Key))
				own[j] = p
				continue
			}
			seen[p.Key] = len(own)
			own = append(own, p)
		}
	}
	for _, p := range merged {
		if _, mine := seen[p.Key]; !mine {
			seen[p.Key] = len(own)
			own = append(own, p)
		}
	}
	return own
}

// texts reads a list of texts.
func (r *yamlReader) texts(f field) (list []rules.Placed[string]) {
	switch kind := kindOf(f.node); kind {
	case IsNull:
		return nil
	case IsList:
	default:
		r.problems.Add(r.pos(f.node), "write ["+rules.Quote(f.node.Value)+"]", "%s is %v, not a list", f.name, kind)
		return nil
	}
	r.inside(f.node, func() {
		for _, item := range f.node.Content {
			at := r.pos(item)
			if item = r.enter(item); item == nil {
				continue
			}
			if kind := kindOf(item); kind == IsNull || kind == IsMap || kind == IsList {
				r.problems.Add(at, "write a key", "an item of %s is %v, not text", f.name, kind)
				continue
			}
			list = append(list, rules.Placed[string]{Pos: at, Value: r.text(field{name: "an item of " + f.name, at: at, node: item})})
		}
	})
	return list
}

func (r *yamlReader) rateLimit(f field) *rules.RateLimitConfig {
	switch kind := kindOf(f.node); kind {
	case IsNull:
		return nil
	case IsMap:
	default:
		r.problems.Add(f.at, "write unit and requests_per_unit below it", "rate_limit is %v, not a map", kind)
		return nil
	}
	cfg := &rules.RateLimitConfig{Pos: f.at, UnitPos: f.at}
	r.inside(f.node, func() { r.limit(f.node, cfg) })
	return cfg
}

// rateLimits reads a list of limits; nil where what is wrong with it was noted.
func (r *yamlReader) rateLimits(f field) *rules.Placed[[]rules.RateLimitConfig] {
	before := len(r.problems)
	list := &rules.Placed[[]rules.RateLimitConfig]{Pos: f.at}
	r.list(f, "- unit: ...", "an item of rate_limits", func(item *yaml.Node, at rules.Pos) {
		cfg := rules.RateLimitConfig{Pos: at, UnitPos: at}
		r.limit(item, &cfg)
		if r.left > 0 {
			list.Value = append(list.Value, cfg)
		}
	})
	if len(list.Value) == 0 && len(r.problems) > before {
		return nil
	}
	return list
}

func (r *yamlReader) limit(n *yaml.Node, cfg *rules.RateLimitConfig) {
	counted, before := false, len(r.problems)
	for _, f := range r.fields(n, atLimit) {
		take(r, f, limitKeys, cfg)
		switch f.name {
		case "unit":
			cfg.UnitPos = r.pos(f.node)
		case "requests_per_unit":
			counted = true
		}
	}
	cfg.Incomplete = len(r.problems) > before
	if !counted && !cfg.Unlimited && (cfg.Period != nil || rules.ParseUnit(cfg.Unit) != rules.UnitUnknown) {
		r.warnings.Add(cfg.Pos, "add it; 0 if that is what you want", "without requests_per_unit everything is refused")
	}
}

// placed reads a field together with its place; nothing at all is nil.
func placed[T any](r *yamlReader, f field, read func(field) T) *rules.Placed[T] {
	if kindOf(f.node) == IsNull {
		return nil
	}
	return &rules.Placed[T]{Pos: r.pos(f.node), Value: read(f)}
}

func (r *yamlReader) replaces(f field) (list []rules.ReplacesConfig) {
	r.list(f, "- name: ...", "an item of replaces", func(item *yaml.Node, at rules.Pos) {
		cfg := rules.ReplacesConfig{Pos: at}
		for _, f := range r.fields(item, atReplaces) {
			take(r, f, replacesKeys, &cfg)
		}
		list = append(list, cfg)
	})
	return list
}

// metadata reads a field of free form: a map of whatever JSON knows.
func (r *yamlReader) metadata(f field) map[string]any {
	switch kind := kindOf(f.node); kind {
	case IsNull:
		return nil
	case IsMap:
		v, _ := r.free(f.node).(map[string]any) // nil where a problem was noted
		return v
	default:
		r.problems.Add(f.at, "write keys and values below it", "metadata is %v, not a map", kind)
		return nil
	}
}

// free reads a value of any type: maps with text as keys (numbers and the like
// are taken as written), lists, text, float64, bool and nil.
func (r *yamlReader) free(n *yaml.Node) (v any) {
	switch n.Kind {
	case yaml.MappingNode:
		r.inside(n, func() { v = r.freeMap(n) })
		return v
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		r.inside(n, func() {
			for _, item := range n.Content {
				if item = r.enter(item); item != nil {
					list = append(list, r.free(item))
				}
			}
		})
		return list
	}
	s := resolve(n)
	switch s.kind {
	case IsNull:
		return nil
	case IsBool:
		return s.bool
	case IsInt:
		return float64(s.int)
	case IsBigInt, IsFloat:
		number, err := strconv.ParseFloat(strings.ReplaceAll(s.text, "_", ""), 64)
		if err != nil || math.IsInf(number, 0) || math.IsNaN(number) {
			r.problems.Add(r.pos(n), "write a finite number, or put it in quotes", "%s cannot be sent in an answer", rules.Quote(s.text))
			return nil
		}
		return number
	default:
		r.checkUTF8(n, s.text)
		return s.text
	}
}

func (r *yamlReader) freeMap(n *yaml.Node) map[string]any {
	m := make(map[string]any, len(n.Content)/2)
	var merged []map[string]any
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := r.enter(n.Content[i]), r.enter(n.Content[i+1])
		switch {
		case k == nil || v == nil:
		case isMerge(k) && v.Kind != yaml.ScalarNode:
			merged = append(merged, mapsOf(r.free(v))...)
		case k.Kind != yaml.ScalarNode:
			r.problems.Add(r.pos(n.Content[i]), "write text", "a key of metadata is %v, not text", kindOf(k))
		default:
			m[k.Value] = r.free(v)
		}
	}
	for _, other := range merged {
		for k, v := range other {
			if _, own := m[k]; !own {
				m[k] = v
			}
		}
	}
	return m
}

// mapsOf is v as a list of maps: v itself, or its items.
func mapsOf(v any) (list []map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		return []map[string]any{v}
	case []any:
		for _, item := range v {
			list = append(list, mapsOf(item)...)
		}
	}
	return list
}

// text reads a field that is text. Numbers, truth values and dates are taken
// as they are written; nothing at all is the empty text.
func (r *yamlReader) text(f field) string {
	switch kind := kindOf(f.node); kind {
	case IsNull:
		return ""
	case IsFloat, IsBigInt:
		r.problems.Add(r.pos(f.node), fmt.Sprintf("write %q, in quotes", f.node.Value),
			"%s is %v, not text: %s", f.name, kind, rules.Quote(f.node.Value))
		return f.node.Value // stands in, so that one mistake is one problem
	case IsMap, IsList:
		r.problems.Add(r.pos(f.node), "write `"+f.name+": <text>`", "%s is %v, not text", f.name, kind)
		return r.pos(f.node).String() // stands in, as above
	default:
		text := resolve(f.node).text
		r.checkUTF8(f.node, text)
		return text
	}
}

// checkUTF8 notes a text that `!!binary` made of bytes that are none: no answer
// could carry it.
func (r *yamlReader) checkUTF8(n *yaml.Node, text string) {
	if !utf8.ValidString(text) {
		r.problems.Add(r.pos(n), "write text, or other bytes", "%s stands for bytes that are not UTF-8", rules.Quote(n.Value))
	}
}

// flag reads a field that is true or false; nothing at all is false.
func (r *yamlReader) flag(f field) bool {
	switch kind := kindOf(f.node); kind {
	case IsBool:
		return resolve(f.node).bool
	case IsNull:
		return false
	default:
		mend := "write true or false"
		if _, word := boolWords[f.node.Value]; word {
			mend = "remove the quotes"
		}
		r.problems.Add(r.pos(f.node), mend, "%s is %v, not true or false", f.name, kind)
		return false
	}
}

// octalForm and digitsForm are whole numbers that YAML 1.1 reads as floats: 08, and
// those of more than 64 bits.
var (
	octalForm  = regexp.MustCompile(`^0[0-9_]*[89][0-9_]*$`)
	digitsForm = regexp.MustCompile(`^[-+]?[0-9_]{20,}$`)
)

// number reads a field that is a whole number of 32 bits, up to most; nothing
// at all is 0.
func (r *yamlReader) number(f field, most int64) uint32 {
	s := scalar{kind: kindOf(f.node)}
	if f.node.Kind == yaml.ScalarNode {
		s = resolve(f.node)
	}
	switch {
	case s.kind == IsNull:
		return 0
	case s.kind == IsInt && 0 <= s.int && s.int <= most:
		return uint32(s.int)
	case s.kind == IsFloat && octalForm.MatchString(s.text):
		r.problems.Add(r.pos(f.node), "remove the 0 in front", "%s begins with 0 as octal numbers do, and is none: %s", f.name, rules.Quote(s.text))
	case s.kind == IsInt, s.kind == IsBigInt, s.kind == IsFloat && digitsForm.MatchString(s.text):
		r.problems.Add(r.pos(f.node), fmt.Sprintf("write 0 to %d", most), "%s is out of range: %s", f.name, rules.Quote(s.text))
	case s.kind == IsFloat:
		mend := "write a whole number"
		if f.name == "requests_per_unit" {
			mend += "; for less than one per unit use a longer unit or unit_multiplier"
		}
		r.problems.Add(r.pos(f.node), mend, "%s is a fraction: %s", f.name, rules.Quote(s.text))
	case s.kind == IsString && isNumber(s.text):
		r.problems.Add(r.pos(f.node), "remove the quotes", "%s is text, not a number: %s", f.name, rules.Quote(s.text))
	default:
		r.problems.Add(r.pos(f.node), "write a whole number", "%s is %v, not a number", f.name, s.kind)
	}
	return 1 // stands in: 0 would be a second problem
}

// durationForm is what time.ParseDuration takes, but for its size and a zero
// without a unit.
var durationForm = regexp.MustCompile(`^[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`)

const mendDuration = "write hours, minutes, seconds or milliseconds: 720h (30 days), 1h30m, 15s, 1500ms"

// duration reads a field that is a length of time as Go writes it.
func (r *yamlReader) duration(f field) time.Duration {
	at, kind := r.pos(f.node), kindOf(f.node)
	text := f.node.Value
	if kind == IsString {
		text = resolve(f.node).text
		if text != "" {
			kind, _ = number(text) // in quotes a number has no unit either
		}
	}
	switch d, err := time.ParseDuration(text); {
	case kind == IsInt || kind == IsBigInt || kind == IsFloat:
		r.problems.Add(at, "say of what: 90s, 1500ms, 1h30m", "%s has no unit of time: %s", f.name, rules.Quote(text))
	case kind != IsString:
		r.problems.Add(at, mendDuration, "%s is %v, not a duration", f.name, kind)
	case !durationForm.MatchString(text):
		r.problems.Add(at, mendDuration, "%s is not a duration: %s", f.name, rules.Quote(text))
	case err != nil:
		r.problems.Add(at, "write 876000h or less", "%s is longer than 100 years: %s", f.name, rules.Quote(text))
	default:
		return d
	}
	return time.Hour // stands in, as all algorithms take it
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 32)
	return err == nil
}
