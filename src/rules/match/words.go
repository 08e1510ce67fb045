package match

import (
	"ratelimit/src/rules"
)

// WordTree is a tree of limits. A request is a path of words through it, see rules.RequestWords.
type WordTree struct{ Root WordNode }

type WordNode struct {
	Match   *rules.Match // charged with a request that ends at the node. It is nil if nothing is charged
	Named   nameTable[*WordNode]
	AnyWord *WordNode // the child `*`, for words without a child of their own; nil if there is none
	Pos     rules.Pos
}

// childForWord returns the child of n for a word: the one with that name, else the child `*`, else nil.
func (n *WordNode) childForWord(word []byte) *WordNode {
	if named := n.Named.Find(word); named != nil {
		return named
	}
	return n.AnyWord
}

// FindRule returns the rule of the deepest node that the words lead to. It ignores further words.
func (t *WordTree) FindRule(entries []rules.Entry, _ *rules.SearchScratch) *rules.Match {
	n := &t.Root
	for word := range rules.RequestWords(entries) {
		child := n.childForWord(word)
		if child == nil {
			break
		}
		n = child
	}
	return n.Match
}
