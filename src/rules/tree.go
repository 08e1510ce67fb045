package rules

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// tree is a tree of descriptors: each entry of a request leads one level down.
type tree struct{ root node }

// node is a descriptor of the tree, or its root.
type node struct {
	rule     *Rule  // what a request that ends here is charged to; nil: nothing
	children *level // nil: none
	at       *Place // nil: take the place from rule, or this is the root
}

// level holds the children of one node.
type level struct {
	keys      table[*keyed]
	wildcards []wildcard // in file order
}

// keyed holds the descriptors of one level that have the same key.
type keyed struct {
	any    *node // the descriptor without a value; nil: none
	values table[*node]
}

// wildcard is a descriptor whose key or value has a `*`.
type wildcard struct {
	pattern
	node *node
	text string // the pattern as written: "key_value", or "key"
}

// Place is the key and value of a descriptor as written, with its place in the file. It is for messages.
type Place struct {
	Pos
	Key   string
	Value string // empty: any value
}

func (t *tree) find(entries []Entry, s *Scratch, canaries []*Rule) (*Rule, []*Rule) {
	n := &t.root
	for i := range entries {
		if n = n.child(&entries[i], &s.joined); n == nil {
			return nil, canaries
		}
	}
	return n.rule, canaries
}

// child returns the child of n that matches an entry best, or nil: exact key and value, then the first wildcard, then the key alone.
// joined is memory to reuse.
func (n *node) child(e *Entry, joined *[]byte) *node {
	l := n.children
	if l == nil {
		return nil
	}
	k := l.keys.find(e.Key)
	if k != nil && len(e.Value) > 0 {
		if next := k.values.find(e.Value); next != nil {
			return next
		}
	}
	if len(l.wildcards) > 0 {
		text := append((*joined)[:0], e.Key...)
		text = append(text, '_')
		text = append(text, e.Value...)
		*joined = text
		for i := range l.wildcards {
			if l.wildcards[i].match(text) {
				return l.wildcards[i].node
			}
		}
	}
	if k != nil {
		return k.any
	}
	return nil
}

// add makes child a child of n. If n already has a child with that key and value, add returns that one and changes nothing.
func (n *node) add(at *Level, child *node) (taken *node) {
	if n.children == nil {
		n.children = &level{}
	}
	l, value := n.children, at.Value()
	k := l.keys.find([]byte(at.Key()))
	if k == nil {
		k = &keyed{}
		l.keys.add(at.Key(), k)
	}
	if value == "" {
		taken, k.any = k.any, cmp.Or(k.any, child)
	} else if taken = k.values.find([]byte(value)); taken == nil {
		k.values.add(value, child)
	}
	if taken == nil && at.wildcard {
		l.wildcards = append(l.wildcards, wildcard{compilePattern(at.text), child, at.text})
	}
	return taken
}

// place returns the descriptor as written. n must not be a root.
func (n *node) place() Place {
	if n.at != nil {
		return *n.at
	}
	l := &n.rule.Path[len(n.rule.Path)-1]
	return Place{n.rule.Pos, l.Key(), l.Value()}
}

// nodes yields all descriptors that have the key, in no order.
func (k *keyed) nodes() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		if k.any != nil && !yield(k.any) {
			return
		}
		for _, next := range k.values.all() {
			if !yield(next) {
				return
			}
		}
	}
}

// descriptors compiles list into children of n, and everything below them. p is the path of n.
func (c *Compiler) descriptors(n *node, list []DescriptorConfig, p path) {
	if len(list) > 0 && len(p.levels) == MaxDepth {
		c.problems.Add(list[0].Pos, "use fewer levels; a request needs an entry for each",
			"descriptors are nested more than %d levels deep", MaxDepth)
		return
	}
	for i := range list {
		cfg := &list[i]
		if !c.addName(cfg.Pos, len(p.key)+len(cfg.Key)+len(cfg.Value)+len("._")) {
			return
		}
		child := &node{} // its limits are checked even if n refuses it
		below := p.down(cfg)
		here := &below.levels[len(p.levels)]
		c.warnLiteral(cfg.Pos, cfg.Key, cfg.Value)
		if cfg.Key == "" {
			c.problems.Add(cfg.Pos, "add `key: <name>`", "the descriptor has no key, or an empty one")
		} else if other := n.add(here, child); other != nil {
			c.problems.Add(cfg.Pos, "remove one, or join their limits and descriptors",
				"descriptor %s is already defined at %v, on the same level", Quote(here.text), other.place().Pos)
		}
		before := len(c.set.rules)
		p.domain.keys = append(p.domain.keys, below.key)
		below.inherited = c.inherit(p.inherited, cfg.Charge, cfg.OnReject)
		c.checkFlags(cfg, below)
		child.rule = c.match(&cfg.LimitsConfig, below, c.limits(&cfg.LimitsConfig, below))
		if child.rule == nil || child.rule.Pos != cfg.Pos {
			child.at = &Place{cfg.Pos, here.Key(), here.Value()}
		}
		below.inherited = below.after(child.rule)
		c.descriptors(child, cfg.Descriptors, below)
		if len(c.set.rules) == before && (cfg.ValueToMetric || cfg.ShareThreshold) {
			c.warnings.Add(cfg.Pos, "remove it", "value_to_metric and share_threshold have no effect without a rate_limit here or below")
		}
	}
}

// down returns the path of the child cfg of the descriptor at p. Its key and its last level share memory.
func (p path) down(cfg *DescriptorConfig) path {
	key := p.key + "." + composite(cfg.Key, cfg.Value)
	p.levels = append(slices.Clip(p.levels), newLevel(cfg, key[len(p.key)+len("."):]))
	p.key = key
	return p
}

// checkFlags reports settings of a descriptor that need a wildcard or a rate_limit and have none.
func (c *Compiler) checkFlags(cfg *DescriptorConfig, p path) {
	limited := cfg.RateLimit != nil || cfg.RateLimits != nil
	level := &p.levels[len(p.levels)-1]
	if cfg.ShareThreshold && !level.wildcard {
		c.problems.Add(cfg.Pos, "add a `*` to the value, or remove share_threshold",
			"share_threshold needs a wildcard, and %s has none", Quote(level.text))
	}
	if cfg.ValueToMetric && (cfg.ShareThreshold || !level.wildcard && cfg.Value != "") {
		c.warnings.Add(cfg.Pos, "remove it", "value_to_metric has no effect on %s: there is one value to show", Quote(level.text))
	}
	if cfg.ValueToMetric && cfg.DetailedMetric && limited {
		c.warnings.Add(cfg.Pos, "remove it", "value_to_metric has no effect beside detailed_metric")
	}
	if limited {
		return
	}
	charged := len(p.above) > 0 // limits above are charged, so quota_mode and metadata here have an effect
	for _, flag := range []struct {
		name   string
		unused bool
	}{
		{"shadow_mode", cfg.ShadowMode && !allShadow(cfg.Descriptors)},
		{"quota_mode", cfg.QuotaMode && !charged},
		{"detailed_metric", cfg.DetailedMetric},
		{"metadata", cfg.Metadata != nil && !charged},
	} {
		if flag.unused {
			c.warnings.Add(cfg.Pos, "move it to the descriptor that has the rate_limit; it is not inherited",
				"%s has no effect on a descriptor without rate_limit", flag.name)
		}
	}
}

// allShadow reports whether list and the levels below it have limits, and all of them are in shadow mode. Envoy Gateway repeats
// shadow_mode on every level above such limits, which needs no warning.
func allShadow(list []DescriptorConfig) bool {
	limits, shadow := 0, 0
	var count func(list []DescriptorConfig)
	count = func(list []DescriptorConfig) {
		for i := range list {
			if cfg := &list[i]; cfg.RateLimit != nil || cfg.RateLimits != nil {
				limits++
				if cfg.ShadowMode {
					shadow++
				}
			}
			count(list[i].Descriptors)
		}
	}
	count(list)
	return limits > 0 && limits == shadow
}

// warnHidden warns of descriptors below n that no request can reach, because a wildcard that is tried earlier matches everything that
// they match. Exact values are tried before wildcards, so they are never hidden.
func (c *Compiler) warnHidden(n *node) {
	if n.children == nil {
		return
	}
	warn := func(hidden Place, text, fix, why string, by *wildcard) {
		c.warnings.Add(hidden.Pos, fix, "no request can match %s: the wildcard %s at %v %s", Quote(text), Quote(by.text),
			by.node.place().Pos, why)
	}
	wildcards := n.children.wildcards
	for i := range min(len(wildcards), maxCompared) {
		w := &wildcards[i]
		if j := slices.IndexFunc(wildcards[:i], func(by wildcard) bool { return by.hides(w.text) }); j >= 0 {
			warn(w.node.place(), w.text, "put the more specific one first, or remove one", "takes all of them", &wildcards[j])
		}
	}
	for key, k := range n.children.keys.all() {
		if k.any != nil && !strings.Contains(key, "*") { // else it is a wildcard, compared above
			if i := slices.IndexFunc(wildcards, func(by wildcard) bool { return by.covers(key + "_*") }); i >= 0 {
				warn(k.any.place(), key, "remove it, or narrow the wildcard", "comes before a key alone and takes all of them", &wildcards[i])
			}
		}
		for child := range k.nodes() {
			c.warnHidden(child)
		}
	}
}
