package yamlrules

import (
	"math"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// Parse reads a rule file in Envoy's format, or a tree of limits. If there are problems, the configuration is good only for finding
// more of them. It is nil if the text is not YAML, and for a file of tests. Warnings name what has no effect.
func Parse(file string, data []byte) (cfg *rules.DomainConfig, problems, warnings rules.Problems) {
	r := &reader{file: file}
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

// ParseMore reads the documents behind the first of a file, which never take effect. It reads nothing if the first is not YAML.
func ParseMore(file string, data []byte) (configs []rules.DomainConfig, problems, warnings rules.Problems) {
	documents, err := decodeAll(data, math.MaxInt)
	r := &reader{file: file}
	for i, doc := range documents {
		if i == 0 || len(doc.Content) == 0 || kindOf(doc.Content[0]) == isNull || !r.checkAliases(doc, len(data)) {
			continue
		}
		if cfg := r.config(doc.Content[0]); cfg != nil {
			configs = append(configs, *cfg)
		}
	}
	if err != nil && len(documents) > 0 {
		line, what := parseError(err)
		r.problems.Add(rules.Pos{File: file, Line: line}, fixSyntax(what), "not YAML: %s", what)
	}
	return configs, r.problems, r.warnings
}

// config reads a document; nil for tests of rules.
func (r *reader) config(root *yaml.Node) *rules.DomainConfig {
	switch {
	case isRuleFile(root):
		return r.domain(root)
	case hasKey(root, "tests"):
		return nil
	default:
		return r.tree(root)
	}
}

// isRuleFile reports whether a document has rules in Envoy's format. With `domain` at the top it always has.
func isRuleFile(root *yaml.Node) bool {
	return hasKey(root, "domain") || !hasKey(root, "tests") && !hasKey(root, "schema")
}

// hasKey reports whether a document has the key at its top.
func hasKey(root *yaml.Node, key string) bool {
	for i := 0; root.Kind == yaml.MappingNode && i < len(root.Content); i += 2 {
		if root.Content[i].Value == key {
			return true
		}
	}
	return false
}

func (r *reader) domain(root *yaml.Node) *rules.DomainConfig {
	cfg := &rules.DomainConfig{Pos: r.pos(root)}
	switch kind := kindOf(root); kind {
	case isNull:
		return cfg
	case isMap:
	default:
		r.problems.Add(cfg.Pos, "begin it with `domain: <name>`", "the file is %v, not a map", kind)
		return nil
	}
	for _, f := range r.read(root, atRoot, cfg) {
		if f.name == "domain" {
			cfg.Pos = f.at
		}
	}
	return cfg
}

// isOf reports whether a field is of a kind. It is not if there is nothing, or something else, which is a problem.
func (r *reader) isOf(f field, want kind, fix string) bool {
	kind := kindOf(f.node)
	if kind != want && kind != isNull {
		r.problems.Add(f.at, fix, "%s is %v, not %v", f.name, kind, want)
	}
	return kind == want
}

// items reads a field that is a list of maps; what is what an item is called, form how to write one.
func items[T any](r *reader, f field, form, what string, read func(item *yaml.Node, at rules.Pos, into *T)) (list []T) {
	if !r.isOf(f, isList, "write `"+form+"` below it") {
		return nil
	}
	for _, item := range f.node.Content {
		at := r.pos(item)
		item = target(item)
		if kind := kindOf(item); kind != isMap {
			r.problems.Add(at, "write `"+form+"`", "%s is %v, not a map", what, kind)
			continue
		}
		list = append(list, *new(T))
		read(item, at, &list[len(list)-1])
	}
	return list
}

func (r *reader) descriptors(f field) []rules.DescriptorConfig {
	return items(r, f, "- key: ...", "a descriptor", func(item *yaml.Node, at rules.Pos, cfg *rules.DescriptorConfig) {
		cfg.Pos = at
		r.read(item, atDescriptor, cfg)
	})
}

func (r *reader) rules(f field) *rules.Placed[[]rules.RuleConfig] {
	if kindOf(f.node) == isNull {
		return nil
	}
	list := items(r, f, "- match: ...", "a rule", func(item *yaml.Node, at rules.Pos, cfg *rules.RuleConfig) {
		before := len(r.problems)
		cfg.Pos = at
		r.read(item, atRule, cfg)
		cfg.Incomplete = len(r.problems) > before
	})
	return &rules.Placed[[]rules.RuleConfig]{Pos: f.at, Value: list}
}

func (r *reader) rateLimit(f field) *rules.RateLimitConfig {
	if !r.isOf(f, isMap, "write unit and requests_per_unit below it") {
		return nil
	}
	cfg := new(rules.RateLimitConfig)
	r.limit(f.node, f.at, cfg)
	return cfg
}

// rateLimits reads a list of limits; nil if it is empty because of problems.
func (r *reader) rateLimits(f field) *rules.Placed[[]rules.RateLimitConfig] {
	before := len(r.problems)
	list := items(r, f, "- unit: ...", "an item of rate_limits", r.limit)
	if len(list) == 0 && len(r.problems) > before {
		return nil
	}
	return &rules.Placed[[]rules.RateLimitConfig]{Pos: f.at, Value: list}
}

func (r *reader) limit(n *yaml.Node, at rules.Pos, cfg *rules.RateLimitConfig) {
	cfg.Pos, cfg.UnitPos = at, at
	counted, before := false, len(r.problems)
	for _, f := range r.read(n, atLimit, cfg) {
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

func (r *reader) replaces(f field) []rules.Placed[string] {
	return items(r, f, "- name: ...", "an item of replaces", func(item *yaml.Node, at rules.Pos, name *rules.Placed[string]) {
		name.Pos = at
		for _, f := range r.known(item, atReplaces) {
			name.Value = r.text(f)
		}
	})
}

// texts reads a list of texts.
func (r *reader) texts(f field) (list []rules.Placed[string]) {
	switch kind := kindOf(f.node); kind {
	case isNull:
		return nil
	case isList:
	default:
		r.wrong(f.node, "write ["+rules.Quote(f.node.Value)+"]", "%s is %v, not a list", f.name, kind)
		return nil
	}
	name := "an item of " + f.name
	for _, item := range f.node.Content {
		at := r.pos(item)
		item = target(item)
		if kind := kindOf(item); kind == isNull || kind == isMap || kind == isList {
			r.problems.Add(at, "write a key", "%s is %v, not text", name, kind)
			continue
		}
		list = append(list, rules.Placed[string]{Pos: at, Value: r.text(field{name: name, at: at, node: item})})
	}
	return list
}

// pairs reads a map of text to text.
func (r *reader) pairs(f field) *rules.Placed[[]rules.PairConfig] {
	list := &rules.Placed[[]rules.PairConfig]{Pos: f.at}
	if kind := kindOf(f.node); kind != isMap {
		r.wrong(f.node, "write `{key: pattern}`, or `{}` if the rule is for all", "%s is %v, not a map", f.name, kind)
		return list
	}
	accept := func(f *field) bool {
		switch {
		case !r.isScalar(f, "a key of match"):
			return false
		case kindOf(f.node) == isNull:
			r.problems.Add(f.at, "write \"*\" for any value, or \"\" for an empty one", "no pattern for the key %s", rules.Quote(f.name))
			return false
		}
		f.name = resolve(f.key).text
		r.checkUTF8(f.key, f.name)
		return true
	}
	twice := func(_, second *field) bool {
		r.warnings.Add(second.at, "remove one of them", "the key %s is here twice; the last one wins", rules.Quote(second.name))
		return true
	}
	for _, f := range r.fields(f.node, accept, twice) {
		list.Value = append(list.Value, rules.PairConfig{Pos: f.at, Key: f.name, Pattern: r.text(f)})
	}
	return list
}

// isScalar reports a key that is a map or a list; what is what the key is called.
func (r *reader) isScalar(f *field, what string) bool {
	if f.key.Kind != yaml.ScalarNode {
		r.problems.Add(f.at, "write text", "%s is %v, not text", what, kindOf(f.key))
	}
	return f.key.Kind == yaml.ScalarNode
}

// metadata reads a map of anything that JSON can express.
func (r *reader) metadata(f field) map[string]any {
	if !r.isOf(f, isMap, "write keys and values below it") {
		return nil
	}
	v, _ := r.free(f.node).(map[string]any)
	return v
}

// free reads a value of any type: maps, lists, text, float64, bool and nil. Keys are text as written.
func (r *reader) free(n *yaml.Node) any {
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		accept := func(f *field) bool { return r.isScalar(f, "a key of metadata") }
		for _, f := range r.fields(n, accept, func(_, _ *field) bool { return true }) {
			m[f.name] = r.free(f.node)
		}
		return m
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			list = append(list, r.free(target(item)))
		}
		return list
	default:
		return r.freeScalar(n)
	}
}
