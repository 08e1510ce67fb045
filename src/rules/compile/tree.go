package compile

import (
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// compileDescriptors compiles list, and all descriptors below it, into children of n. p is the path of n.
func (c *Compiler) compileDescriptors(n *match.Node, list []DescriptorConfig, p compilePath) {
	if len(list) > 0 && len(p.levels) == rules.MaxTreeDepth {
		c.problems.Add(list[0].Pos, "use fewer levels; a request needs an entry for each",
			"descriptors are nested more than %d levels deep", rules.MaxTreeDepth)
		return
	}
	for i := range list {
		cfg := &list[i]
		m := c.compileValueMatch(cfg, p.dataFiles)
		if !c.countNameBytes(cfg.Pos, len(p.ruleName)+len(cfg.Key)+len(m.text)+len("._")) {
			return
		}
		// The limits of the child are checked even if n has another child with its key and value.
		below := p.childPath(cfg, &m)
		below.inheritance = c.inheritanceWith(p.inheritance, cfg.ChargeMode, cfg.OnReject)
		below.descriptor = below.newDescriptor(&cfg.LimitsConfig)
		child := &match.Node{Descriptor: below.descriptor}
		c.addDescriptor(n, child, cfg, &m)
		before := len(c.parts.Rules)
		p.domain.DescriptorNames = append(p.domain.DescriptorNames, below.ruleName)
		c.checkDescriptorSettings(cfg, below)
		limits := c.limitsOfDescriptor(cfg)
		child.Match = c.compileMatch(limits, below, c.compileOwnLimits(limits, below))
		child.AcceptsHolds = child.Match != nil && child.Match.HoldIDKey != ""
		below.inheritance = below.forChildren(child.Match)
		below.bucketKeys = p.bucketKeys.with(child.Level())
		c.compileDescriptors(child, cfg.Descriptors, below)
		c.addLimitsOfFile(n, child, cfg)
		if p.domain.HasQuotaBuckets && len(c.parts.Rules) > before {
			c.checkKeyOrder(cfg, p, below)
		}
		if len(c.parts.Rules) == before && (cfg.ValueToMetric || cfg.ShareThreshold) {
			c.warnings.Add(cfg.Pos, "remove it",
				"value_to_metric and share_threshold have no effect without a rate_limit here or below")
		}
	}
}

// addDescriptor makes child the child of n that m leads to.
func (c *report) addDescriptor(n, child *match.Node, cfg *DescriptorConfig, m *valueMatch) {
	switch {
	case cfg.Key == "":
		c.problems.Add(cfg.Pos, "add `key: <name>`", "the descriptor has no key, or an empty one")
		return
	case n.AcceptsHolds && cfg.Key == n.Match.HoldIDKey:
		c.problems.Add(cfg.Pos, "rename the key, or the hold_id above",
			"%s is the hold_id of a limit above, so an entry with this key names a hold and never gets here",
			rules.Quote(cfg.Key))
		return
	}
	switch m.kind {
	case rules.LevelCIDR:
		c.addNetworks(n, child, m.places)
	case rules.LevelRegex:
		if m.regex != nil {
			c.addRegex(n, child, m.regex, cfg.Regex.Pos)
		}
	case rules.LevelValuesFrom, rules.LevelLimitsFrom:
		if m.data != nil {
			c.addDataFile(n, child)
		}
	default:
		if other := n.AddChild(child); other != nil {
			c.problems.Add(cfg.Pos, "remove one, or join their limits and descriptors",
				"descriptor %s is already defined at %v, on the same level", rules.Quote(child.Level().Name()),
				other.Descriptor.Pos)
		}
	}
}

// childPath returns the path of the child cfg of the descriptor at p. Its key and its last level share memory.
func (p compilePath) childPath(cfg *DescriptorConfig, m *valueMatch) compilePath {
	key := p.ruleName + "." + rules.LevelName(cfg.Key, m.text)
	if m.kind == rules.LevelExact && m.text == "" {
		key += "_"
	}
	p.levels = append(slices.Clip(p.levels), rules.NewLevel(cfg.Key, key[len(p.ruleName)+len("."):], rules.Level{
		ValueToMetric: cfg.ValueToMetric, ShareThreshold: cfg.ShareThreshold, Kind: m.kind, Addresses: m.addresses,
		DataFile: m.data,
	}))
	p.ruleName = key
	return p
}

// checkDescriptorSettings reports settings of a descriptor that need a wildcard or a rate_limit and have none.
func (c *report) checkDescriptorSettings(cfg *DescriptorConfig, p compilePath) {
	limited := cfg.RateLimit != nil || cfg.RateLimits != nil
	level := &p.levels[len(p.levels)-1]
	if cfg.ShareThreshold && !level.HasWildcard && (level.Kind == rules.LevelValue || level.Kind == rules.LevelExact) {
		c.problems.Add(cfg.Pos, "add a `*` to the value, or remove share_threshold",
			"share_threshold needs a wildcard, cidr, regex or values_from, and %s has none", rules.Quote(level.Name()))
	}
	if cfg.ValueToMetric && (cfg.ShareThreshold || level.HasOneValue()) {
		c.warnings.Add(cfg.Pos, "remove it", "value_to_metric has no effect on %s: there is one value to show",
			rules.Quote(level.Name()))
	}
	if cfg.ValueToMetric && cfg.DetailedMetric && limited {
		c.warnings.Add(cfg.Pos, "remove it", "value_to_metric has no effect beside detailed_metric")
	}
	if limited {
		return
	}
	charged := len(p.limitsAbove) > 0 // If limits above are charged, quota_mode and metadata have an effect here.
	for _, flag := range []struct {
		name   string
		unused bool
	}{
		// Envoy Gateway repeats shadow_mode on every level above limits that are all in shadow mode, so that this needs no
		// warning.
		{"shadow_mode", cfg.ShadowMode && (hasLimit(cfg.Descriptors, false) || !hasLimit(cfg.Descriptors, true))},
		{"quota_mode", cfg.QuotaMode && !charged},
		{"detailed_metric", cfg.DetailedMetric},
		{"metadata", cfg.AnswerMetadata != nil && !charged},
	} {
		if flag.unused {
			c.warnings.Add(cfg.Pos, "move it to the descriptor that has the rate_limit; it is not inherited",
				"%s has no effect on a descriptor without rate_limit", flag.name)
		}
	}
}

// hasLimit reports whether a descriptor of list, or of the levels below it, has a limit and this shadow mode.
func hasLimit(list []DescriptorConfig, shadowMode bool) bool {
	return slices.ContainsFunc(list, func(cfg DescriptorConfig) bool {
		return (cfg.RateLimit != nil || cfg.RateLimits != nil) && cfg.ShadowMode == shadowMode ||
			hasLimit(cfg.Descriptors, shadowMode)
	})
}

// warnHiddenDescriptors warns of descriptors below n that no request can reach, because a wildcard that is tried
// earlier matches everything that they match. Exact values are tried before wildcards, so they are never hidden.
func warnHiddenDescriptors(warnings *rules.Problems, n *match.Node) {
	if n.Children == nil {
		return
	}
	warn := func(hidden, by *match.Node, fix, why string) {
		warnings.Add(hidden.Descriptor.Pos, fix, "no request can match %s: the wildcard %s at %v %s",
			rules.Quote(hidden.Level().Name()), rules.Quote(by.Level().Name()), by.Descriptor.Pos, why)
	}
	wildcards := n.Children.Wildcards
	for i := range min(len(wildcards), maxComparedItems) {
		w := wildcards[i].Node
		hides := func(by match.WildcardNode) bool { return by.Hides(w.Level().Name()) }
		if j := slices.IndexFunc(wildcards[:i], hides); j >= 0 {
			warn(w, wildcards[j].Node, "put the more specific one first, or remove one", "takes all of them")
		}
	}
	for key, k := range n.Children.Groups.All() {
		if k.AnyValue != nil && !strings.Contains(key, "*") { // A key with `*` is a wildcard, which the loop above compares.
			covers := func(by match.WildcardNode) bool { return by.Covers(key + "_*") }
			if i := slices.IndexFunc(wildcards, covers); i >= 0 {
				warn(k.AnyValue, wildcards[i].Node, "remove it, or narrow the wildcard",
					"comes before a key alone and takes all of them")
			}
		}
		if k.Matchers != nil {
			warnUselessNetworks(warnings, k, &k.Matchers.Networks)
			warnUselessRegexes(warnings, key, k, wildcards)
		}
		for child := range k.Nodes() {
			warnHiddenDescriptors(warnings, child)
		}
	}
}
