package rules

import (
	"slices"
	"strings"
)

// descriptorTree is a tree of descriptors: each entry of a request leads one level down.
type descriptorTree struct{ root node }

// node is a descriptor of the tree, or its root.
type node struct {
	rule         *Rule            // rule is charged with a request that ends at the node. It is nil if nothing is charged.
	children     *nodeChildren    // children is nil if there are none.
	acceptsHolds bool             // acceptsHolds says that rule has a hold_id, so that entries below the node can name a hold.
	writtenPlace *DescriptorPlace // writtenPlace is the descriptor in the file. It is nil for the root, and if rule has the same position and path.
	addresses    *addressLevel    // addresses is that of the node's Level.
}

// nodeChildren are the descriptors directly below a node.
type nodeChildren struct {
	groupsByKey   nameTable[*keyGroup]
	wildcardNodes []wildcardNode // wildcardNodes are in file order.
}

// keyGroup holds the descriptors of one level that have the same key.
type keyGroup struct {
	anyValueNode   *node            // anyValueNode is the descriptor without a value; nil if there is none.
	emptyValueNode *node            // emptyValueNode is the descriptor with `exact: ""`; nil if there is none.
	nodesByValue   nameTable[*node] // nodesByValue has the descriptors with a value, exact or not, and that without.
	matchers       *valueMatchers   // matchers has all other descriptors; nil if there are none.
}

// wildcardNode is a descriptor whose key or value has a `*`.
type wildcardNode struct {
	pattern
	node        *node
	patternText string // patternText is the pattern as written: "key_value", or "key".
}

// DescriptorPlace is the key and value of a descriptor as written, with its position. It is for messages.
type DescriptorPlace struct {
	Pos
	Key   string
	Value string // Value is that of Level.Value.
}

func (t *descriptorTree) findRule(entries []Entry, s *SearchScratch, canaries []*Rule) (*Rule, []*Rule) {
	n := &t.root
	for i := range entries {
		if n.acceptsHolds && n.rule.acceptsBelow(entries[i:]) {
			break
		}
		next := n.matchingChild(&entries[i], s)
		if next == nil {
			if n.acceptsHolds && n.rule.lacksHoldName(entries[i:]) {
				break
			}
			return nil, canaries
		}
		n = next
	}
	return n.rule, canaries
}

// matchingChild returns the child of n that matches an entry, or nil. It prefers the exact key and value, then what valueMatchers finds,
// then the first wildcard, then the key alone. It returns any of them if the bounds of s stop it.
func (n *node) matchingChild(e *Entry, s *SearchScratch) *node {
	l := n.children
	if l == nil {
		return nil
	}
	k := l.groupsByKey.find(e.Key)
	if k != nil {
		if next := k.exactNode(e.Value); next != nil {
			return next
		}
	}
	if k != nil && k.matchers != nil {
		if next := k.matchers.find(e.Value, &s.bounds); next != nil {
			return next
		}
	}
	if len(l.wildcardNodes) > 0 {
		text := append(s.joinedEntry[:0], e.Key...)
		text = append(text, '_')
		text = append(text, e.Value...)
		s.joinedEntry = text
		for i := range l.wildcardNodes {
			if !s.bounds.allowsText(len(text)) {
				return nil
			}
			if l.wildcardNodes[i].matches(text) {
				return l.wildcardNodes[i].node
			}
		}
	}
	if k != nil {
		return k.anyValueNode
	}
	return nil
}

// exactNode returns the descriptor with exactly that value, or nil.
func (k *keyGroup) exactNode(value []byte) *node {
	if len(value) == 0 {
		return k.emptyValueNode
	}
	return k.nodesByValue.find(value)
}

// groupOf returns the group of the children of n with the key, and adds it if there is none.
func (n *node) groupOf(key string) *keyGroup {
	if n.children == nil {
		n.children = &nodeChildren{}
	}
	k := n.children.groupsByKey.find([]byte(key))
	if k == nil {
		k = &keyGroup{}
		n.children.groupsByKey.add(key, k)
	}
	return k
}

// matchersOf returns the matchers of the children of n with the key, and adds them if there are none.
func (n *node) matchersOf(key string) *valueMatchers {
	k := n.groupOf(key)
	if k.matchers == nil {
		k.matchers = &valueMatchers{}
	}
	return k.matchers
}

// addChild makes child a child of n, with the key and value of l. If n already has a child with these, addChild returns that one and
// changes nothing.
func (n *node) addChild(l *Level, child *node) (taken *node) {
	value, k := l.Value(), n.groupOf(l.Key())
	if l.Kind == LevelExact && value == "" {
		if taken = k.emptyValueNode; taken == nil {
			k.emptyValueNode = child
		}
		return taken
	}
	if taken = k.nodesByValue.find([]byte(value)); taken != nil {
		return taken
	}
	k.nodesByValue.add(value, child)
	if value == "" {
		k.anyValueNode = child
	}
	if l.hasWildcard {
		n.children.wildcardNodes = append(n.children.wildcardNodes, wildcardNode{compilePattern(l.levelName), child, l.levelName})
	}
	return nil
}

// place returns the descriptor as written. n must not be a root.
func (n *node) place() DescriptorPlace {
	if n.writtenPlace != nil {
		return *n.writtenPlace
	}
	l := &n.rule.Path[len(n.rule.Path)-1]
	return DescriptorPlace{n.rule.Pos, l.Key(), l.Value()}
}

// compileDescriptors compiles list, and all descriptors below it, into children of n. p is the path of n.
func (c *Compiler) compileDescriptors(n *node, list []DescriptorConfig, p compilePath) {
	if len(list) > 0 && len(p.levels) == MaxTreeDepth {
		c.problems.Add(list[0].Pos, "use fewer levels; a request needs an entry for each",
			"descriptors are nested more than %d levels deep", MaxTreeDepth)
		return
	}
	for i := range list {
		cfg := &list[i]
		match := c.compileValueMatch(cfg, p.dataFiles)
		if !c.countNameBytes(cfg.Pos, len(p.ruleName)+len(cfg.Key)+len(match.text)+len("._")) {
			return
		}
		child := &node{addresses: match.addresses} // The limits of the child are checked even if n has another child with its key and value.
		below := p.childPath(cfg, &match)
		here := &below.levels[len(p.levels)]
		c.addDescriptor(n, child, here, cfg, &match)
		before := len(c.set.rules)
		p.domain.descriptorNames = append(p.domain.descriptorNames, below.ruleName)
		below.inheritance = c.inheritanceWith(p.inheritance, cfg.ChargeMode, cfg.OnReject)
		c.checkDescriptorSettings(cfg, below)
		limits := c.limitsOfDescriptor(cfg)
		child.rule = c.compileMatchedRule(limits, below, c.compileOwnLimits(limits, below))
		child.acceptsHolds = child.rule != nil && child.rule.matchHoldIDKey != ""
		if child.rule == nil || child.rule.Pos != cfg.Pos {
			child.writtenPlace = &DescriptorPlace{cfg.Pos, here.Key(), here.Value()}
		}
		below.inheritance = below.forChildren(child.rule)
		below.bucketKeys = p.bucketKeys.with(here)
		c.compileDescriptors(child, cfg.Descriptors, below)
		c.addLimitsOfFile(n, child, cfg)
		if c.quotaBuckets && len(c.set.rules) > before {
			c.checkKeyOrder(cfg, p, below)
		}
		if len(c.set.rules) == before && (cfg.ValueToMetric || cfg.ShareThreshold) {
			c.warnings.Add(cfg.Pos, "remove it", "value_to_metric and share_threshold have no effect without a rate_limit here or below")
		}
	}
}

// addDescriptor makes child the child of n that match leads to. here is its level.
func (c *Compiler) addDescriptor(n, child *node, here *Level, cfg *DescriptorConfig, match *valueMatch) {
	switch {
	case cfg.Key == "":
		c.problems.Add(cfg.Pos, "add `key: <name>`", "the descriptor has no key, or an empty one")
		return
	case n.acceptsHolds && cfg.Key == n.rule.matchHoldIDKey:
		c.problems.Add(cfg.Pos, "rename the key, or the hold_id above",
			"%s is the hold_id of a limit above, so an entry with this key names a hold and never gets here", Quote(cfg.Key))
		return
	}
	switch match.kind {
	case LevelCIDR:
		c.addNetworks(n, here, child, match.places)
	case LevelRegex:
		if match.regex != nil {
			c.addRegex(n, here, child, match.regex, cfg.Regex.Pos)
		}
	case LevelValuesFrom, LevelLimitsFrom:
		if match.data != nil {
			c.addDataFile(n, here, child, cfg.Pos)
		}
	default:
		if other := n.addChild(here, child); other != nil {
			c.problems.Add(cfg.Pos, "remove one, or join their limits and descriptors",
				"descriptor %s is already defined at %v, on the same level", Quote(here.levelName), other.place().Pos)
		}
	}
}

// childPath returns the path of the child cfg of the descriptor at p. Its key and its last level share memory.
func (p compilePath) childPath(cfg *DescriptorConfig, match *valueMatch) compilePath {
	key := p.ruleName + "." + levelName(cfg.Key, match.text)
	if match.kind == LevelExact && match.text == "" {
		key += "_"
	}
	p.levels = append(slices.Clip(p.levels), newLevel(cfg, match, key[len(p.ruleName)+len("."):]))
	p.ruleName = key
	return p
}

// checkDescriptorSettings reports settings of a descriptor that need a wildcard or a rate_limit and have none.
func (c *Compiler) checkDescriptorSettings(cfg *DescriptorConfig, p compilePath) {
	limited := cfg.RateLimit != nil || cfg.RateLimits != nil
	level := &p.levels[len(p.levels)-1]
	if cfg.ShareThreshold && !level.hasWildcard && (level.Kind == LevelValue || level.Kind == LevelExact) {
		c.problems.Add(cfg.Pos, "add a `*` to the value, or remove share_threshold",
			"share_threshold needs a wildcard, cidr, regex or values_from, and %s has none", Quote(level.levelName))
	}
	if cfg.ValueToMetric && (cfg.ShareThreshold || level.hasOneValue()) {
		c.warnings.Add(cfg.Pos, "remove it", "value_to_metric has no effect on %s: there is one value to show", Quote(level.levelName))
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
		// Envoy Gateway repeats shadow_mode on every level above limits that are all in shadow mode, so that this needs no warning.
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
		return (cfg.RateLimit != nil || cfg.RateLimits != nil) && cfg.ShadowMode == shadowMode || hasLimit(cfg.Descriptors, shadowMode)
	})
}

// warnHiddenDescriptors warns of descriptors below n that no request can reach, because a wildcard that is tried earlier matches
// everything that they match. Exact values are tried before wildcards, so they are never hidden.
func (c *Compiler) warnHiddenDescriptors(n *node) {
	if n.children == nil {
		return
	}
	warn := func(hidden DescriptorPlace, text, fix, why string, by *wildcardNode) {
		c.warnings.Add(hidden.Pos, fix, "no request can match %s: the wildcard %s at %v %s", Quote(text), Quote(by.patternText),
			by.node.place().Pos, why)
	}
	wildcards := n.children.wildcardNodes
	for i := range min(len(wildcards), maxComparedItems) {
		w := &wildcards[i]
		if j := slices.IndexFunc(wildcards[:i], func(by wildcardNode) bool { return by.hidesPattern(w.patternText) }); j >= 0 {
			warn(w.node.place(), w.patternText, "put the more specific one first, or remove one", "takes all of them", &wildcards[j])
		}
	}
	for key, k := range n.children.groupsByKey.all() {
		if k.anyValueNode != nil && !strings.Contains(key, "*") { // A key with `*` is a wildcard, which the loop above compares.
			if i := slices.IndexFunc(wildcards, func(by wildcardNode) bool { return by.coversPattern(key + "_*") }); i >= 0 {
				warn(k.anyValueNode.place(), key, "remove it, or narrow the wildcard", "comes before a key alone and takes all of them", &wildcards[i])
			}
		}
		if k.matchers != nil {
			c.warnUselessNetworks(k, &k.matchers.networks)
			c.warnUselessRegexes(key, k, wildcards)
		}
		for child := range k.nodes() {
			c.warnHiddenDescriptors(child)
		}
	}
}
