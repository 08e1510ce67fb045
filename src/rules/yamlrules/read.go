package yamlrules

import (
	"math"
	"reflect"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
)

// Parse reads a rule file in Envoy's format, or a tree of limits. If there are problems, the configuration is good only
// for finding more of them. It is nil if the text is not YAML, and for a file of tests. Warnings name parts of the file
// that have no effect.
func Parse(file string, data []byte) (cfg *compile.DomainConfig, problems, warnings rules.Problems) {
	r := &reader{file: file}
	ok := false
	if len(data) >= 2*minPartBytes && utf8.Valid(data) {
		cfg, ok = r.readInParts(data, minPartBytes)
	}
	if !ok {
		cfg = r.readWhole(data)
	}
	return cfg, r.problems, r.warnings
}

func (r *reader) readWhole(data []byte) *compile.DomainConfig {
	root := r.readDocument(data)
	switch {
	case len(r.problems) > 0:
		return nil
	case root == nil: // The file is empty or has only comments.
		return &compile.DomainConfig{Pos: rules.Pos{File: r.file, Line: 1, Col: 1}}
	default:
		return r.readConfig(root)
	}
}

// ParseLaterDocuments reads all documents of a file but the first. These never take effect. If the first is not YAML,
// it returns nothing.
func ParseLaterDocuments(file string, data []byte) (configs []compile.DomainConfig, problems, warnings rules.Problems) {
	documents, err := decodeDocuments(data, math.MaxInt)
	r := &reader{file: file}
	for i, doc := range documents {
		if i == 0 || len(doc.Content) == 0 || kindOf(doc.Content[0]) == compile.KindNull || !r.checkAliases(doc, len(data)) {
			continue
		}
		if cfg := r.readConfig(doc.Content[0]); cfg != nil {
			configs = append(configs, *cfg)
		}
	}
	if err != nil && len(documents) > 0 {
		line, mistake := parseYAMLError(err)
		r.problems.Add(rules.Pos{File: file, Line: line}, syntaxErrorFix(mistake), "not YAML: %s", mistake)
	}
	return configs, r.problems, r.warnings
}

// readConfig reads a document of any kind. It returns nil for tests of rules, and for what holds no rules.
func (r *reader) readConfig(root *yaml.Node) *compile.DomainConfig {
	switch {
	case hasTopKey(root, "apiVersion") && hasTopKey(root, "kind") && !hasTopKey(root, "domain"):
		r.reportKubernetesObject(root)
		return nil
	case isRuleFile(root):
		return r.readRuleFile(root)
	case hasTopKey(root, "tests"):
		return nil
	default:
		return r.readLimitTree(root)
	}
}

// isRuleFile reports whether a document has rules in Envoy's format: it has the key `domain`, or neither `tests` nor
// `schema`.
func isRuleFile(root *yaml.Node) bool {
	return hasTopKey(root, "domain") || !hasTopKey(root, "tests") && !hasTopKey(root, "schema")
}

// reportKubernetesObject reports that a document is an object of Kubernetes, such as a ConfigMap, and says where rules
// belong instead.
func (r *reader) reportKubernetesObject(root *yaml.Node) {
	kind, version := resolveAlias(valueOfKey(root, "kind")).Value, resolveAlias(valueOfKey(root, "apiVersion")).Value
	fix := "apply it to the cluster, where a controller reads it; a rule file begins with `domain: " +
		"<name>`"
	if kind == "ConfigMap" {
		fix = "write each text below `data` to a file of its own and check these; the service reads a ConfigMap that is " +
			"mounted as its directory"
	}
	r.problems.Add(r.posOf(root), fix, "the file is a Kubernetes object, %s of %s, not a rule file", rules.Quote(kind),
		rules.Quote(version))
}

// hasTopKey reports whether a document has the key at its top.
func hasTopKey(root *yaml.Node, key string) bool { return valueOfKey(root, key) != nil }

// readRuleFile reads a document with rules in Envoy's format.
func (r *reader) readRuleFile(root *yaml.Node) *compile.DomainConfig {
	cfg := &compile.DomainConfig{Pos: r.posOf(root)}
	switch kind := kindOf(root); kind {
	case compile.KindNull:
		return cfg
	case compile.KindMap:
	default:
		r.problems.Add(cfg.Pos, "begin it with `domain: <name>`", "the file is %v, not a map", kind)
		return nil
	}
	for _, f := range r.readMap(root, fileMapKind, cfg) {
		if f.name == "domain" {
			cfg.Pos = f.keyPos
		}
	}
	return cfg
}

// checkKind reports whether the value of f has the wanted kind. A value of another kind is a problem, except null.
func (r *reader) checkKind(f field, want compile.ValueKind, fix string) bool {
	kind := kindOf(f.valueNode)
	if kind != want && kind != compile.KindNull {
		r.problems.Add(f.keyPos, fix, "%s is %v, not %v", f.name, kind, want)
	}
	return kind == want
}

// readItems reads a field that is a list of maps. read reads one item into its config. name is that of an item in
// messages, and form shows how to write one.
func readItems[T any](r *reader, f field, form, name string,
	read func(item *yaml.Node, at rules.Pos, config *T),
) (list []T) {
	if !r.checkKind(f, compile.KindList, "write `"+form+"` below it") {
		return nil
	}
	for _, item := range f.valueNode.Content {
		at := r.posOf(item)
		item = resolveAlias(item)
		if kind := kindOf(item); kind != compile.KindMap {
			r.problems.Add(at, "write `"+form+"`", "%s is %v, not a map", name, kind)
			continue
		}
		list = append(list, *new(T))
		read(item, at, &list[len(list)-1])
	}
	return list
}

func (r *reader) readDescriptors(f field) []compile.DescriptorConfig {
	return readItems(r, f, "- key: ...", "a descriptor",
		func(item *yaml.Node, at rules.Pos, cfg *compile.DescriptorConfig) {
			cfg.Pos = at
			for _, f := range r.readMap(item, descriptorMapKind, cfg) {
				r.checkEmptyValue(f, cfg)
				r.checkEmptyLimit(f, item, descriptorMapKind)
			}
		})
}

// checkEmptyLimit reports a rate_limit without a value in the map n if keys of a limit stand beside it: they were meant
// to stand below it. An empty rate_limit without such keys is none, as in envoyproxy/ratelimit.
func (r *reader) checkEmptyLimit(f field, n *yaml.Node, kind *mapKind) {
	if f.name != "rate_limit" || kindOf(f.valueNode) != compile.KindNull {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolveAlias(n.Content[i]).Value
		if limitMapKind.hasKey(key) && !kind.hasKey(key) {
			r.problems.Add(f.keyPos, "indent the keys of the limit more than rate_limit",
				"rate_limit is empty, and %s stands beside it, where it limits nothing", key)
			return
		}
	}
}

// checkEmptyValue warns of an empty value: it matches every value, as in envoyproxy/ratelimit, and may be meant as the
// empty one.
func (r *reader) checkEmptyValue(f field, cfg *compile.DescriptorConfig) {
	const forEmpty = "write `exact: \"\"` for the empty value"
	hasOther := cfg.Exact != nil || cfg.CIDR != nil || cfg.Regex != nil || cfg.ValuesFrom != nil || cfg.LimitsFrom != nil
	switch {
	case f.name == "exact" && kindOf(f.valueNode) == compile.KindNull:
		r.problems.Add(f.keyPos, forEmpty, "exact has no value")
	case f.name == "value" && cfg.Value == "" && !hasOther:
		r.warnings.Add(f.keyPos, "remove it if that is meant; "+forEmpty, "an empty value matches every value of the key %s",
			rules.Quote(cfg.Key))
	}
}

func (r *reader) readRules(f field) *compile.Positioned[[]compile.RuleConfig] {
	if kindOf(f.valueNode) == compile.KindNull {
		return nil
	}
	list := readItems(r, f, "- match: ...", "a rule", func(item *yaml.Node, at rules.Pos, cfg *compile.RuleConfig) {
		before := len(r.problems)
		cfg.Pos = at
		for _, f := range r.readMap(item, ruleMapKind, cfg) {
			r.checkEmptyLimit(f, item, ruleMapKind)
		}
		cfg.HasReadProblem = len(r.problems) > before
	})
	return &compile.Positioned[[]compile.RuleConfig]{Pos: f.keyPos, Value: list}
}

func (r *reader) readRateLimit(f field) *compile.RateLimitConfig {
	if !r.checkKind(f, compile.KindMap, "write unit and requests_per_unit below it") {
		return nil
	}
	cfg := new(compile.RateLimitConfig)
	r.readLimitMap(f.valueNode, f.keyPos, cfg)
	return cfg
}

// readRateLimits reads a list of limits. It returns nil if problems left no limit in the list.
func (r *reader) readRateLimits(f field) *compile.Positioned[[]compile.RateLimitConfig] {
	before := len(r.problems)
	list := readItems(r, f, "- unit: ...", "an item of rate_limits", r.readLimitMap)
	if len(list) == 0 && len(r.problems) > before {
		return nil
	}
	return &compile.Positioned[[]compile.RateLimitConfig]{Pos: f.keyPos, Value: list}
}

func (r *reader) readLimitMap(n *yaml.Node, at rules.Pos, cfg *compile.RateLimitConfig) {
	cfg.Pos, cfg.UnitPos = at, at
	hasRequests, before := false, len(r.problems)
	for _, f := range r.readMap(n, limitMapKind, cfg) {
		switch f.name {
		case "unit":
			cfg.UnitPos = r.posOf(f.valueNode)
		case "requests_per_unit":
			hasRequests = true
		}
	}
	cfg.HasReadProblem = len(r.problems) > before
	cfg.LacksRequests = !hasRequests
}

func (r *reader) readReplaces(f field) []compile.Positioned[string] {
	return readItems(r, f, "- name: ...", "an item of replaces",
		func(item *yaml.Node, at rules.Pos, name *compile.Positioned[string]) {
			name.Pos = at
			for _, f := range r.readKnownFields(item, replacesMapKind) {
				name.Value = r.readText(f)
			}
		})
}

func (r *reader) readTexts(f field) (list []compile.Positioned[string]) {
	switch kind := kindOf(f.valueNode); kind {
	case compile.KindNull:
		return nil
	case compile.KindList:
	default:
		r.addProblem(f.valueNode, "write ["+rules.Quote(f.valueNode.Value)+"]", "%s is %v, not a list", f.name, kind)
		return nil
	}
	name := "an item of " + f.name
	for _, item := range f.valueNode.Content {
		at := r.posOf(item)
		item = resolveAlias(item)
		if kind := kindOf(item); kind == compile.KindNull || kind == compile.KindMap || kind == compile.KindList {
			r.problems.Add(at, "write text", "%s is %v, not text", name, kind)
			continue
		}
		list = append(list, compile.Positioned[string]{
			Pos:   at,
			Value: r.readText(field{name: name, keyPos: at, valueNode: item}),
		})
	}
	return list
}

// readNetworks reads a field that is a text or a list of texts.
func (r *reader) readNetworks(f field) *compile.Positioned[[]compile.Positioned[string]] {
	list := &compile.Positioned[[]compile.Positioned[string]]{Pos: r.posOf(f.valueNode)}
	switch kindOf(f.valueNode) {
	case compile.KindNull:
		return nil
	case compile.KindList:
		list.Value = r.readTexts(f)
	default:
		list.Value = []compile.Positioned[string]{{Pos: list.Pos, Value: r.readText(f)}}
	}
	return list
}

// readSubMap reads a field that is a map into a T, which has a position. form shows how to write one.
func readSubMap[T any](r *reader, f field, kind *mapKind, form string) *T {
	if !r.checkKind(f, compile.KindMap, "write `"+form+"`") {
		return nil
	}
	cfg := new(T)
	reflect.ValueOf(cfg).Elem().FieldByName("Pos").Set(reflect.ValueOf(r.posOf(f.valueNode)))
	r.readMap(f.valueNode, kind, cfg)
	return cfg
}

// readEstimate reads a number of units, or the word learned.
func (r *reader) readEstimate(f field) compile.Estimate {
	s := parseScalar(f.valueNode)
	switch {
	case s.Kind == compile.KindText && s.Text == "learned":
		return 0
	case s.Kind == compile.KindText:
		r.addProblem(f.valueNode, "write a number of units, or learned", "estimate is neither a number nor learned: %s",
			rules.Quote(s.Text))
		return 1
	}
	return compile.Estimate(r.checkNumber(s, r.posOf(f.valueNode), f.name, 1, algorithm.MaxAmount))
}

// readNumbers reads a field that is a list of numbers.
func (r *reader) readNumbers(f field) *compile.Positioned[[]compile.Positioned[uint32]] {
	if !r.checkKind(f, compile.KindList, "write a list, such as [80, 100]") {
		return nil
	}
	list := &compile.Positioned[[]compile.Positioned[uint32]]{Pos: r.posOf(f.valueNode)}
	for _, item := range f.valueNode.Content {
		at := r.posOf(item)
		n := r.checkNumber(parseScalar(resolveAlias(item)), at, "an item of "+f.name, 0, math.MaxUint32)
		list.Value = append(list.Value, compile.Positioned[uint32]{Pos: at, Value: uint32(n)})
	}
	return list
}

// readMatchPairs reads a field that is a map of keys to patterns.
func (r *reader) readMatchPairs(f field) *compile.Positioned[[]compile.MatchPairConfig] {
	list := &compile.Positioned[[]compile.MatchPairConfig]{Pos: f.keyPos}
	if kind := kindOf(f.valueNode); kind != compile.KindMap {
		r.addProblem(f.valueNode, "write `{key: pattern}`, or `{}` if the rule is for all", "%s is %v, not a map",
			f.name, kind)
		return list
	}
	accept := func(f *field) bool {
		switch {
		case !r.checkScalarKey(f, "a key of match"):
			return false
		case kindOf(f.valueNode) == compile.KindNull:
			r.problems.Add(f.keyPos, "write \"*\" for any value, or \"\" for an empty one", "no pattern for the key %s",
				rules.Quote(f.name))
			return false
		case hasTopKey(f.valueNode, "cidr") || hasTopKey(f.valueNode, "regex"): // as descriptors have them
			r.problems.Add(f.keyPos, "write a pattern with `*`, or `descriptors` instead of `rules`",
				"the key %s has cidr or regex, which an ordered list does not support", rules.Quote(f.name))
			return false
		}
		f.name = parseScalar(f.keyNode).Text
		r.checkUTF8(f.keyNode, f.name)
		return true
	}
	twice := func(_, second *field) bool {
		r.warnings.Add(second.keyPos, "remove one of them", "the key %s is here twice; the last one wins",
			rules.Quote(second.name))
		return true
	}
	for _, f := range r.collectFields(f.valueNode, accept, twice) {
		list.Value = append(list.Value, compile.MatchPairConfig{Pos: f.keyPos, Key: f.name, Pattern: r.readText(f)})
	}
	return list
}

// checkScalarKey reports whether the key of f is a scalar. Another key is a problem; name is the key's name in the
// message.
func (r *reader) checkScalarKey(f *field, name string) bool {
	if f.keyNode.Kind != yaml.ScalarNode {
		r.problems.Add(f.keyPos, "write text", "%s is %v, not text", name, kindOf(f.keyNode))
	}
	return f.keyNode.Kind == yaml.ScalarNode
}

// readMetadata reads a field that is a map of values that JSON can express.
func (r *reader) readMetadata(f field) map[string]any {
	if !r.checkKind(f, compile.KindMap, "write keys and values below it") {
		return nil
	}
	v, _ := r.readMetadataValue(f.valueNode).(map[string]any)
	return v
}

// readMetadataValue reads a value of metadata: a map[string]any, a []any, or what readMetadataScalar returns. Keys are
// text as written.
func (r *reader) readMetadataValue(n *yaml.Node) any {
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		accept := func(f *field) bool { return r.checkScalarKey(f, "a key of metadata") }
		for _, f := range r.collectFields(n, accept, func(_, _ *field) bool { return true }) {
			m[f.name] = r.readMetadataValue(f.valueNode)
		}
		return m
	case yaml.SequenceNode:
		list := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			list = append(list, r.readMetadataValue(resolveAlias(item)))
		}
		return list
	default:
		return r.readMetadataScalar(n)
	}
}
