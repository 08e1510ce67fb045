package rules

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
)

// ParseYAML reads one rule file in Envoy's format, or a tree of limits. With any problems the
// configuration is good only for finding more of them; it is nil when the text
// is not YAML at all, and for a file of tests, which may stand among the rules.
// Warnings name what has no effect.
func ParseYAML(file string, data []byte) (cfg *DomainConfig, problems, warnings Problems) {
	r := newYAMLReader(file, len(data))
	root := r.document(data)
	switch {
	case len(r.problems) > 0:
	case root == nil: // empty, or only comments
		cfg = &DomainConfig{Pos: Pos{File: file, Line: 1, Col: 1}}
	default:
		cfg = r.config(root)
	}
	return cfg, r.problems, r.warnings
}

// config reads a document; nil for tests of rules.
func (r *yamlReader) config(root *yaml.Node) *DomainConfig {
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

func (r *yamlReader) domain(n *yaml.Node) *DomainConfig {
	cfg := &DomainConfig{Pos: r.pos(n)}
	n = r.enter(n)
	if n == nil {
		return cfg
	}
	switch kind := kindOf(n); kind {
	case isNull:
		return cfg
	case isMap:
	default:
		r.problems.add(cfg.Pos, "begin it with `domain: <name>`", "the file is %v, not a map", kind)
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
		if n := r.number(f, most); kindOf(f.node) != isNull {
			*into = &n
		}
	case **Placed[string]:
		*into = placed(r, f, r.text)
	case **Placed[bool]:
		*into = placed(r, f, r.flag)
	case **Placed[uint32]:
		*into = placed(r, f, func(f field) uint32 { return r.number(f, most) })
	case **Placed[time.Duration]:
		*into = placed(r, f, r.duration)
	case *map[string]any:
		*into = r.metadata(f)
	case *[]DescriptorConfig:
		*into = r.descriptors(f)
	case **RateLimitConfig:
		*into = r.rateLimit(f)
	case **Placed[[]RateLimitConfig]:
		*into = r.rateLimits(f)
	case *[]ReplacesConfig:
		*into = r.replaces(f)
	case **Placed[[]RuleConfig]:
		*into = r.rules(f)
	case **Placed[[]PairConfig]:
		*into = r.pairs(f)
	case *[]Placed[string]:
		*into = r.texts(f)
	}
}

func (r *yamlReader) descriptors(f field) []DescriptorConfig {
	var list []DescriptorConfig
	r.list(f, "- key: ...", "a descriptor", func(item *yaml.Node, at Pos) {
		list = append(list, DescriptorConfig{Pos: at})
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
func (r *yamlReader) list(f field, form, what string, read func(item *yaml.Node, at Pos)) {
	switch kind := kindOf(f.node); kind {
	case isNull:
		return
	case isList:
	default:
		r.problems.add(f.at, "write `"+form+"` below it", "%s is %v, not a list", f.name, kind)
		return
	}
	r.inside(f.node, func() {
		for _, item := range f.node.Content {
			at := r.pos(item)
			if item = r.enter(item); item == nil {
				continue
			}
			if kind := kindOf(item); kind != isMap {
				r.problems.add(at, "write `"+form+"`", "%s is %v, not a map", what, kind)
				continue
			}
			r.inside(item, func() { read(item, at) })
		}
	})
}

// rules reads an ordered list; nil where there is none.
func (r *yamlReader) rules(f field) *Placed[[]RuleConfig] {
	if kindOf(f.node) == isNull {
		return nil
	}
	list := &Placed[[]RuleConfig]{Pos: f.at}
	r.list(f, "- match: ...", "a rule", func(item *yaml.Node, at Pos) {
		before := len(r.problems)
		cfg := RuleConfig{Pos: at}
		for _, f := range r.fields(item, atRule) {
			take(r, f, ruleKeys, &cfg)
		}
		cfg.refused = len(r.problems) > before
		if r.left > 0 {
			list.Value = append(list.Value, cfg)
		}
	})
	return list
}

// pairs reads a map of text to text. What is wrong with it is noted.
func (r *yamlReader) pairs(f field) *Placed[[]PairConfig] {
	list := &Placed[[]PairConfig]{Pos: f.at}
	switch kind := kindOf(f.node); kind {
	case isMap:
		r.inside(f.node, func() { list.Value = r.pairsOf(f.node) })
	default:
		r.problems.add(r.pos(f.node), "write `{key: pattern}`, or `{}` if the rule is for all", "%s is %v, not a map", f.name, kind)
	}
	return list
}

func (r *yamlReader) pairsOf(n *yaml.Node) []PairConfig {
	var own, merged []PairConfig
	seen := make(map[string]int) // where in own
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := r.enter(n.Content[i]), r.enter(n.Content[i+1])
		at := r.pos(n.Content[i])
		switch {
		case k == nil || v == nil:
		case isMerge(k) && v.Kind == yaml.MappingNode:
			r.inside(v, func() { merged = append(merged, r.pairsOf(v)...) })
		case isMerge(k):
			r.problems.add(at, "", "`<<` needs a map")
		case k.Kind != yaml.ScalarNode:
			r.problems.add(at, "write text", "a key of match is %v, not text", kindOf(k))
		case kindOf(v) == isNull:
			r.problems.add(at, "write \"*\" for any value, or \"\" for an empty one", "no pattern for the key %s", brief(k.Value))
		default:
			r.checkUTF8(k, resolve(k).text)
			p := PairConfig{at, resolve(k).text, r.text(field{name: k.Value, at: at, node: v})}
			if j, twice := seen[p.Key]; twice {
				r.warnings.add(at, "remove one of them", "the key %s is here twice; the last one wins", brief(p.Key))
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
func (r *yamlReader) texts(f field) (list []Placed[string]) {
	switch kind := kindOf(f.node); kind {
	case isNull:
		return nil
	case isList:
	default:
		r.problems.add(r.pos(f.node), "write ["+brief(f.node.Value)+"]", "%s is %v, not a list", f.name, kind)
		return nil
	}
	r.inside(f.node, func() {
		for _, item := range f.node.Content {
			at := r.pos(item)
			if item = r.enter(item); item == nil {
				continue
			}
			if kind := kindOf(item); kind == isNull || kind == isMap || kind == isList {
				r.problems.add(at, "write a key", "an item of %s is %v, not text", f.name, kind)
				continue
			}
			list = append(list, Placed[string]{at, r.text(field{name: "an item of " + f.name, at: at, node: item})})
		}
	})
	return list
}

func (r *yamlReader) rateLimit(f field) *RateLimitConfig {
	switch kind := kindOf(f.node); kind {
	case isNull:
		return nil
	case isMap:
	default:
		r.problems.add(f.at, "write unit and requests_per_unit below it", "rate_limit is %v, not a map", kind)
		return nil
	}
	cfg := &RateLimitConfig{Pos: f.at, UnitPos: f.at}
	r.inside(f.node, func() { r.limit(f.node, cfg) })
	return cfg
}

// rateLimits reads a list of limits; nil where what is wrong with it was noted.
func (r *yamlReader) rateLimits(f field) *Placed[[]RateLimitConfig] {
	before := len(r.problems)
	list := &Placed[[]RateLimitConfig]{Pos: f.at}
	r.list(f, "- unit: ...", "an item of rate_limits", func(item *yaml.Node, at Pos) {
		cfg := RateLimitConfig{Pos: at, UnitPos: at}
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

func (r *yamlReader) limit(n *yaml.Node, cfg *RateLimitConfig) {
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
	cfg.guessed = len(r.problems) > before
	if !counted && !cfg.Unlimited && (cfg.Period != nil || parseUnit(cfg.Unit) != UnitUnknown) {
		r.warnings.add(cfg.Pos, "add it; 0 if that is what you want", "without requests_per_unit everything is refused")
	}
}

// placed reads a field together with its place; nothing at all is nil.
func placed[T any](r *yamlReader, f field, read func(field) T) *Placed[T] {
	if kindOf(f.node) == isNull {
		return nil
	}
	return &Placed[T]{r.pos(f.node), read(f)}
}

func (r *yamlReader) replaces(f field) (list []ReplacesConfig) {
	r.list(f, "- name: ...", "an item of replaces", func(item *yaml.Node, at Pos) {
		cfg := ReplacesConfig{Pos: at}
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
	case isNull:
		return nil
	case isMap:
		v, _ := r.free(f.node).(map[string]any) // nil where a problem was noted
		return v
	default:
		r.problems.add(f.at, "write keys and values below it", "metadata is %v, not a map", kind)
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
	case isNull:
		return nil
	case isBool:
		return s.bool
	case isInt:
		return float64(s.int)
	case isBigInt, isFloat:
		number, err := strconv.ParseFloat(strings.ReplaceAll(s.text, "_", ""), 64)
		if err != nil || math.IsInf(number, 0) || math.IsNaN(number) {
			r.problems.add(r.pos(n), "write a finite number, or put it in quotes", "%s cannot be sent in an answer", brief(s.text))
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
			r.problems.add(r.pos(n.Content[i]), "write text", "a key of metadata is %v, not text", kindOf(k))
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
	case isNull:
		return ""
	case isFloat, isBigInt:
		r.problems.add(r.pos(f.node), fmt.Sprintf("write %q, in quotes", f.node.Value),
			"%s is %v, not text: %s", f.name, kind, brief(f.node.Value))
		return f.node.Value // stands in, so that one mistake is one problem
	case isMap, isList:
		r.problems.add(r.pos(f.node), "write `"+f.name+": <text>`", "%s is %v, not text", f.name, kind)
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
		r.problems.add(r.pos(n), "write text, or other bytes", "%s stands for bytes that are not UTF-8", brief(n.Value))
	}
}

// flag reads a field that is true or false; nothing at all is false.
func (r *yamlReader) flag(f field) bool {
	switch kind := kindOf(f.node); kind {
	case isBool:
		return resolve(f.node).bool
	case isNull:
		return false
	default:
		mend := "write true or false"
		if _, word := boolWords[f.node.Value]; word {
			mend = "remove the quotes"
		}
		r.problems.add(r.pos(f.node), mend, "%s is %v, not true or false", f.name, kind)
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
	case s.kind == isNull:
		return 0
	case s.kind == isInt && 0 <= s.int && s.int <= most:
		return uint32(s.int)
	case s.kind == isFloat && octalForm.MatchString(s.text):
		r.problems.add(r.pos(f.node), "remove the 0 in front", "%s begins with 0 as octal numbers do, and is none: %s", f.name, brief(s.text))
	case s.kind == isInt, s.kind == isBigInt, s.kind == isFloat && digitsForm.MatchString(s.text):
		r.problems.add(r.pos(f.node), fmt.Sprintf("write 0 to %d", most), "%s is out of range: %s", f.name, brief(s.text))
	case s.kind == isFloat:
		mend := "write a whole number"
		if f.name == "requests_per_unit" {
			mend += "; for less than one per unit use a longer unit or unit_multiplier"
		}
		r.problems.add(r.pos(f.node), mend, "%s is a fraction: %s", f.name, brief(s.text))
	case s.kind == isString && isNumber(s.text):
		r.problems.add(r.pos(f.node), "remove the quotes", "%s is text, not a number: %s", f.name, brief(s.text))
	default:
		r.problems.add(r.pos(f.node), "write a whole number", "%s is %v, not a number", f.name, s.kind)
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
	if kind == isString {
		text = resolve(f.node).text
		if text != "" {
			kind, _ = number(text) // in quotes a number has no unit either
		}
	}
	switch d, err := time.ParseDuration(text); {
	case kind == isInt || kind == isBigInt || kind == isFloat:
		r.problems.add(at, "say of what: 90s, 1500ms, 1h30m", "%s has no unit of time: %s", f.name, brief(text))
	case kind != isString:
		r.problems.add(at, mendDuration, "%s is %v, not a duration", f.name, kind)
	case !durationForm.MatchString(text):
		r.problems.add(at, mendDuration, "%s is not a duration: %s", f.name, brief(text))
	case err != nil:
		r.problems.add(at, "write 876000h or less", "%s is longer than 100 years: %s", f.name, brief(text))
	default:
		return d
	}
	return time.Hour // stands in, as all algorithms take it
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 32)
	return err == nil
}
