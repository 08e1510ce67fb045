package rules

import "iter"

// wordTree is a tree of limits. A request is a path of words through it: for each entry its key, and its value unless that is empty.
type wordTree struct{ root wordNode }

type wordNode struct {
	rule     *Rule // what a request that ends here is charged to; nil: nothing
	children table[*wordNode]
	other    *wordNode // the child `*`, for words without a child of their own; nil: none
	place    Pos
}

// wordPath is the path to a limit in a tree of limits.
type wordPath struct {
	names    []string // of the levels from the top down, `*` for any word
	tagWords int      // how many words are in the tag of its keys, see Keys.Append
}

// words yields the words of a request: for each entry its key, and its value unless that is empty.
func words(entries []Entry) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range entries {
			if !yield(entries[i].Key) || len(entries[i].Value) > 0 && !yield(entries[i].Value) {
				return
			}
		}
	}
}

// next returns the child of n for a word: the one with that name, else the child `*`, else nil.
func (n *wordNode) next(word []byte) *wordNode {
	if child := n.children.find(word); child != nil {
		return child
	}
	return n.other
}

// find returns the rule of the deepest node that the words lead to. It ignores further words.
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

// words compiles children into children of n, and everything below them. p is the path of n, and above has its words.
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
			r.Requests = uint32(r.Limit.Capacity()) // redis-cell reports the capacity too; it fits, as burst is below 1<<32 - 1
			if len(below.above) > 0 {
				r.words.tagWords = len(below.above[0].words.names)
			}
		}
		child.rule = c.match(&limits, below, own)
		below.inherited = below.after(child.rule)
		c.words(child, cfg.Children, below, names)
	}
}
