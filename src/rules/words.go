package rules

import "iter"

// wordTree is a tree of limits. A request is a path of words through it: for each entry its key, and its value unless that is empty.
type wordTree struct{ root wordNode }

type wordNode struct {
	rule     *Rule // what a request that ends here is charged to; nil: nothing
	children table[*wordNode]
	other    *wordNode // for words without a child of that name; nil: none
	place    Pos
}

// wordPath is where a limit is in a tree of limits.
type wordPath struct {
	names []string
	tag   int // how many words are in the tag of its keys, see Keys.Append
}

// words yields the words of a request.
func words(entries []Entry) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range entries {
			if !yield(entries[i].Key) || len(entries[i].Value) > 0 && !yield(entries[i].Value) {
				return
			}
		}
	}
}

// next returns the node below n for a word, or nil. A child of that name hides the other one with everything below it.
func (n *wordNode) next(word []byte) *wordNode {
	if child := n.children.find(word); child != nil {
		return child
	}
	return n.other
}

// find returns the rule of the deepest node that the words lead to. Words beyond the tree change nothing.
func (t *wordTree) find(entries []Entry, _ *Scratch, canaries []*Rule) (*Rule, []*Rule) {
	n := &t.root
	for word := range words(entries) {
		child := n.next(word)
		if child == nil {
			break
		}
		n = child
	}
	return n.rule, canaries
}

// wordTree compiles a tree of limits.
func (c *Compiler) wordTree(t *wordTree, cfg *DomainConfig, p path) {
	p.chargePath, p.flat = &setting{effect: true}, true
	c.words(&t.root, cfg.Tree.Value, p, nil)
}

// words compiles the children of n, which is at p, below the words above.
func (c *Compiler) words(n *wordNode, children []WordConfig, p path, above []string) {
	if len(children) > 0 && len(above) == MaxDepth {
		c.problems.Add(children[0].Pos, "use fewer levels; a request needs a word for each", "the tree is more than %d levels deep",
			MaxDepth)
		return
	}
	for i := range children {
		cfg := &children[i]
		if !c.addName(cfg.Pos, 2*(len(p.key)+len(cfg.Word)+len("."))) {
			return
		}
		child := &wordNode{place: cfg.Pos}
		if cfg.Word == "*" {
			n.other = child
		} else {
			n.children.add(cfg.Word, child)
		}
		below := p
		below.key = p.key + "." + cfg.Word
		names := append(above[:len(above):len(above)], cfg.Word)
		p.domain.keys = append(p.domain.keys, below.key)
		limits := LimitsConfig{Pos: cfg.Pos, RateLimit: cfg.Limit}
		own := c.limits(&limits, below)
		for _, r := range own {
			r.words = &wordPath{names, len(names)}
			r.Requests = uint32(r.Limit.Capacity()) // as redis-cell reports; a burst has 32 bits less one
			if len(below.above) > 0 {
				r.words.tag = len(below.above[0].words.names)
			}
		}
		child.rule = c.match(&limits, below, own)
		below.inherited = below.after(child.rule)
		c.words(child, cfg.Children, below, names)
	}
}
