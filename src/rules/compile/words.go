package compile

import (
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// compileLimitNodes compiles children, and all nodes below them, into children of n. p is the path of n, and above has
// its words.
func (c *Compiler) compileLimitNodes(n *match.WordNode, children []LimitNodeConfig, p compilePath, above []string) {
	if len(children) > 0 && len(above) == rules.MaxTreeDepth {
		c.problems.Add(children[0].Pos, "use fewer levels; a request needs a word for each",
			"the tree is more than %d levels deep", rules.MaxTreeDepth)
		return
	}
	for i := range children {
		cfg := &children[i]
		if !c.countNameBytes(cfg.Pos, 2*(len(p.ruleName)+len(cfg.Word)+len("."))) {
			return
		}
		child := &match.WordNode{Pos: cfg.Pos}
		if cfg.Word == "*" {
			n.AnyWord = child
		} else {
			n.Named.Add(cfg.Word, child)
		}
		below := p
		below.ruleName = p.ruleName + "." + cfg.Word
		words := append(above[:len(above):len(above)], cfg.Word)
		p.domain.DescriptorNames = append(p.domain.DescriptorNames, below.ruleName)
		limits := LimitsConfig{Pos: cfg.Pos, RateLimit: cfg.Limit}
		below.descriptor = below.newDescriptor(&limits)
		below.descriptor.Words = &rules.WordPath{Names: words, TagWords: len(words)}
		if len(below.limitsAbove) > 0 {
			below.descriptor.Words.TagWords = len(below.limitsAbove[0].Words.Names)
		}
		own := c.compileOwnLimits(&limits, below)
		for _, r := range own {
			// Like redis-cell, answers show the capacity.
			r.Requests = r.Limit.Capacity()
		}
		child.Match = c.compileMatch(&limits, below, own)
		below.inheritance = below.forChildren(child.Match)
		c.compileLimitNodes(child, cfg.Children, below, words)
	}
}
