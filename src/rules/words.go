package rules

import (
	"time"
)

// wordNode is a node of a tree of limits, which is walked by words: those of a
// descriptor are, entry by entry, the key, and then the value unless it is empty.
type wordNode struct {
	rule     *Rule // what is charged where a walk ends here; nil: nothing
	children table[*wordNode]
	other    *wordNode // for words that no child is named by; nil: none
	place    Pos
}

// wordPath is where a limit stands in a tree of limits.
type wordPath struct {
	names []string
	tag   int // so many words of the keys of its counters belong together; see appendWords
}

// next is the node for a word; nil if there is none. A child of that name hides
// the other one, with all that is below it.
func (n *wordNode) next(word []byte) *wordNode {
	if child := n.children.find(word); child != nil {
		return child
	}
	return n.other
}

// find returns the rule of the deepest node that the words lead to. Words beyond
// the tree change nothing: the levels above count all the same.
func (n *wordNode) find(entries []Entry) *Rule {
	for i := range entries {
		child := n.next(entries[i].Key)
		if child == nil {
			return n.rule
		}
		n = child
		if len(entries[i].Value) == 0 {
			continue
		}
		if child = n.next(entries[i].Value); child == nil {
			return n.rule
		}
		n = child
	}
	return n.rule
}

// appendWords appends the key of a level in a tree of limits: the words of the
// request down to it. The tag ends where the outermost of the levels does that
// are charged together.
func (r *Rule) appendWords(dst []byte, prefix string, d *Domain, entries []Entry) (key []byte, tag int) {
	start := len(dst)
	dst = append(dst, prefix...)
	dst = append(dst, d.escaped...)
	dst = append(dst, '_')
	n := 0
	word := func(text []byte) {
		dst = append(appendEscaped(dst, text), '_')
		if n++; n == r.words.tag {
			tag = len(dst) - start
		}
	}
	for i := range entries {
		if n == len(r.words.names) {
			break
		}
		word(entries[i].Key)
		if len(entries[i].Value) > 0 && n < len(r.words.names) {
			word(entries[i].Value)
		}
	}
	return dst, tag
}

// tree compiles a tree of limits.
func (c *Compiler) tree(d *Domain, cfg *DomainConfig, p path) {
	d.words = &wordNode{}
	p.path, p.ordered = &setting{effect: true}, true
	c.words(d.words, cfg.Tree.Value, p, nil)
}

// words compiles the children of n, which is at p.
func (c *Compiler) words(n *wordNode, children []WordConfig, p path, above []string) {
	if len(children) > 0 && len(above) == MaxDepth {
		c.problems.Add(children[0].Pos, "use fewer levels; a request needs a word for each", "the tree is more than %d levels deep", MaxDepth)
		return
	}
	for i := range children {
		cfg := &children[i]
		if c.names > maxNames || !c.named(cfg.Pos, 2*(len(p.key)+len(cfg.Word)+len("."))) {
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
		words := append(above[:len(above):len(above)], cfg.Word)
		p.domain.keys = append(p.domain.keys, below.key)
		as := DescriptorConfig{Pos: cfg.Pos}
		if cfg.Limits != nil {
			as.RateLimit = cfg.Limits.rateLimit()
		}
		own := c.limits(&as, below)
		for _, r := range own {
			r.words = &wordPath{words, len(words)}
			r.Requests = uint32(r.Limit.Capacity()) // as redis-cell reports; a burst has 32 bits less one
			if len(below.above) > 0 {
				r.words.tag = len(below.above[0].words.names)
			}
		}
		child.rule = c.match(&as, below, own)
		below.inherited = below.after(child.rule)
		c.words(child, cfg.Children, below, words)
	}
}

// rateLimit is the limit in the form that other rules have.
func (l *BucketConfig) rateLimit() *RateLimitConfig {
	return &RateLimitConfig{
		Pos: l.Pos, UnitPos: l.Pos,
		RequestsPerUnit: l.Count,
		Algorithm:       &Placed[string]{l.Pos, "gcra"},
		Period:          &Placed[time.Duration]{l.Pos, time.Duration(l.Seconds) * time.Second},
		Burst:           &Placed[uint32]{l.Pos, l.Burst},
	}
}

// explain walks as find does, and notes what was there.
func (n *wordNode) explain(entries []Entry) *Walk {
	w := &Walk{End: EndShort}
	if len(entries) == 0 {
		w.End = EndEmpty
	}
	step := func(word []byte) bool {
		s := Step{Entry: Entry{Key: word}, Word: true, Taken: -1, Siblings: n.children.len()}
		named := n.children.find(word)
		if named != nil {
			s.Taken = 0
			s.Candidates = append(s.Candidates, Candidate{Pos: named.place, Key: string(word), How: Exact, Tried: true})
		}
		if n.other != nil {
			s.Siblings++
			s.Taken = 0
			s.Candidates = append(s.Candidates, Candidate{Pos: n.other.place, Key: "*", How: Wildcard, Tried: named == nil})
		}
		if s.Taken < 0 && n.children.len() <= maxMeant {
			s.Meant = Near(string(word), n.children.names())
		}
		w.Steps = append(w.Steps, s)
		if s.Taken < 0 {
			w.End = EndKey
			return false
		}
		n = n.next(word)
		return true
	}
	for i := range entries {
		if !step(entries[i].Key) || len(entries[i].Value) > 0 && !step(entries[i].Value) || len(w.Steps) > MaxDepth+1 {
			break
		}
	}
	if w.Rule = n.rule; w.Rule != nil {
		w.End = EndRule
	}
	return w
}
