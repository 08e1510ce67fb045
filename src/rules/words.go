package rules

import "iter"

// limitTree is a tree of limits. A request is a path of words through it, see requestWords.
type limitTree struct{ root limitNode }

type limitNode struct {
	rule                 *Rule // rule is charged with a request that ends at the node. It is nil if nothing is charged.
	childrenByKeyOrValue nameTable[*limitNode]
	anyWordChild         *limitNode // anyWordChild is the child `*`, for words without a child of their own; nil if there is none.
	pos                  Pos
}

// wordPath is the path to a limit in a tree of limits.
type wordPath struct {
	words        []string // words are the names of the levels from the top down, with `*` for any word.
	tagWordCount int      // tagWordCount is the number of words in the tag of the limit's keys, see KeyFormat.AppendKey.
}

// requestWords yields the words of a request: for each entry its key, and its value unless that is empty.
func requestWords(entries []Entry) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range entries {
			if !yield(entries[i].Key) || len(entries[i].Value) > 0 && !yield(entries[i].Value) {
				return
			}
		}
	}
}

// childForWord returns the child of n for a word: the one with that name, else the child `*`, else nil.
func (n *limitNode) childForWord(word []byte) *limitNode {
	if named := n.childrenByKeyOrValue.find(word); named != nil {
		return named
	}
	return n.anyWordChild
}

// findRule returns the rule of the deepest node that the words lead to. It ignores further words.
func (t *limitTree) findRule(entries []Entry, _ *SearchScratch, canaries []*Rule) (*Rule, []*Rule) {
	n := &t.root
	for word := range requestWords(entries) {
		child := n.childForWord(word)
		if child == nil {
			break
		}
		n = child
	}
	return n.rule, canaries
}

func (c *Compiler) compileLimitTree(t *limitTree, cfg *DomainConfig, p compilePath) {
	p.chargePathSetting, p.hasNoNestedRules = &inheritedSetting{hasEffect: true}, true
	c.compileLimitNodes(&t.root, cfg.LimitTree.Value, p, nil)
}

// compileLimitNodes compiles children, and all nodes below them, into children of n. p is the path of n, and above has its words.
func (c *Compiler) compileLimitNodes(n *limitNode, children []LimitNodeConfig, p compilePath, above []string) {
	if len(children) > 0 && len(above) == MaxTreeDepth {
		c.problems.Add(children[0].Pos, "use fewer levels; a request needs a word for each", "the tree is more than %d levels deep",
			MaxTreeDepth)
		return
	}
	for i := range children {
		cfg := &children[i]
		if !c.countNameBytes(cfg.Pos, 2*(len(p.ruleName)+len(cfg.Word)+len("."))) {
			return
		}
		child := &limitNode{pos: cfg.Pos}
		if cfg.Word == "*" {
			n.anyWordChild = child
		} else {
			n.childrenByKeyOrValue.add(cfg.Word, child)
		}
		below := p
		below.ruleName = p.ruleName + "." + cfg.Word
		words := append(above[:len(above):len(above)], cfg.Word)
		p.domain.descriptorNames = append(p.domain.descriptorNames, below.ruleName)
		limits := LimitsConfig{Pos: cfg.Pos, RateLimit: cfg.Limit}
		own := c.compileOwnLimits(&limits, below)
		for _, r := range own {
			r.wordPath = &wordPath{words, len(words)}
			r.Requests = uint32(r.Limit.Capacity()) // Like redis-cell, answers show the capacity. It has 32 bits, as a burst is below 1<<32 - 1.
			if len(below.limitsAbove) > 0 {
				r.wordPath.tagWordCount = len(below.limitsAbove[0].wordPath.words)
			}
		}
		child.rule = c.compileMatchedRule(&limits, below, own)
		below.inheritance = below.forChildren(child.rule)
		c.compileLimitNodes(child, cfg.Children, below, words)
	}
}
