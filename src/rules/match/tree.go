package match

import (
	"iter"

	"ratelimit/src/rules"
	"ratelimit/src/rules/wildcard"
)

// Tree is a tree of descriptors: each entry of a request leads one level down.
type Tree struct{ Root Node }

// Node is a descriptor of the tree, or its root.
type Node struct {
	Match        *rules.Match  // charged with a request that ends at the node. It is nil if nothing is charged
	Children     *nodeChildren // nil if there are none
	AcceptsHolds bool          // rule has a hold_id, so that entries below the node can name a hold
	// the descriptor in the file. It is nil for the root, and if rule has the same position and path
	WrittenPlace *DescriptorPlace
	Addresses    *rules.Addresses // those of the node's Level
}

// nodeChildren are the descriptors directly below a node.
type nodeChildren struct {
	Groups    nameTable[*KeyGroup]
	Wildcards []WildcardNode // in file order
}

// KeyGroup holds the descriptors of one level that have the same key.
type KeyGroup struct {
	AnyValue       *Node            // the descriptor without a value; nil if there is none
	emptyValueNode *Node            // the descriptor with `exact: ""`; nil if there is none
	ByValue        nameTable[*Node] // the descriptors with a value, exact or not, and that without
	Matchers       *valueMatchers   // all other descriptors; nil if there are none
}

// WildcardNode is a descriptor whose key or value has a `*`.
type WildcardNode struct {
	wildcard.Pattern
	Node        *Node
	PatternText string // the pattern as written: "key_value", or "key"
}

// DescriptorPlace is the key and value of a descriptor as written, with its position. It is for messages.
type DescriptorPlace struct {
	rules.Pos
	Key   string
	Value string // that of Level.Value
}

func (t *Tree) FindRule(
	entries []rules.Entry, s *rules.SearchScratch, canaries []*rules.Match,
) (*rules.Match, []*rules.Match) {
	n := &t.Root
	for i := range entries {
		if n.AcceptsHolds && n.Match.AcceptsBelow(entries[i:]) {
			break
		}
		next := n.matchingChild(&entries[i], s)
		if next == nil {
			if n.AcceptsHolds && n.Match.LacksHoldName(entries[i:]) {
				break
			}
			return nil, canaries
		}
		n = next
	}
	return n.Match, canaries
}

// matchingChild returns the child of n that matches an entry, or nil. It prefers the exact key and value, then what
// valueMatchers finds, then the first wildcard, then the key alone. It returns any of them if the bounds of s stop it.
func (n *Node) matchingChild(e *rules.Entry, s *rules.SearchScratch) *Node {
	l := n.Children
	if l == nil {
		return nil
	}
	k := l.Groups.Find(e.Key)
	if k != nil {
		if next := k.exactNode(e.Value); next != nil {
			return next
		}
	}
	if k != nil && k.Matchers != nil {
		if next := k.Matchers.find(e.Value, &s.Bounds); next != nil {
			return next
		}
	}
	if len(l.Wildcards) > 0 {
		text := append(s.JoinedEntry[:0], e.Key...)
		text = append(text, '_')
		text = append(text, e.Value...)
		s.JoinedEntry = text
		for i := range l.Wildcards {
			if !s.Bounds.AllowsText(len(text)) {
				return nil
			}
			if l.Wildcards[i].Matches(text) {
				return l.Wildcards[i].Node
			}
		}
	}
	if k != nil {
		return k.AnyValue
	}
	return nil
}

// exactNode returns the descriptor with exactly that value, or nil.
func (k *KeyGroup) exactNode(value []byte) *Node {
	if len(value) == 0 {
		return k.emptyValueNode
	}
	return k.ByValue.Find(value)
}

// Nodes yields each descriptor of the group once, in any order.
func (k *KeyGroup) Nodes() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		if k.emptyValueNode != nil && !yield(k.emptyValueNode) {
			return
		}
		for _, n := range k.ByValue.All() {
			if !yield(n) {
				return
			}
		}
		if k.Matchers != nil {
			k.Matchers.nodes(yield)
		}
	}
}

// groupOf returns the group of the children of n with the key, and adds it if there is none.
func (n *Node) groupOf(key string) *KeyGroup {
	if n.Children == nil {
		n.Children = &nodeChildren{}
	}
	k := n.Children.Groups.Find([]byte(key))
	if k == nil {
		k = &KeyGroup{}
		n.Children.Groups.Add(key, k)
	}
	return k
}

// MatchersOf returns the matchers of the children of n with the key, and adds them if there are none.
func (n *Node) MatchersOf(key string) *valueMatchers {
	k := n.groupOf(key)
	if k.Matchers == nil {
		k.Matchers = &valueMatchers{}
	}
	return k.Matchers
}

// AddChild makes child a child of n, with the key and value of l. If n already has a child with these, AddChild returns
// that one and changes nothing.
func (n *Node) AddChild(l *rules.Level, child *Node) (taken *Node) {
	value, k := l.Value(), n.groupOf(l.Key())
	if l.Kind == rules.LevelExact && value == "" {
		if taken = k.emptyValueNode; taken == nil {
			k.emptyValueNode = child
		}
		return taken
	}
	if taken = k.ByValue.Find([]byte(value)); taken != nil {
		return taken
	}
	k.ByValue.Add(value, child)
	if value == "" {
		k.AnyValue = child
	}
	if l.HasWildcard() {
		n.Children.Wildcards = append(n.Children.Wildcards, WildcardNode{wildcard.Compile(l.Name()), child, l.Name()})
	}
	return nil
}

// Place returns the descriptor as written. n must not be a root.
func (n *Node) Place() DescriptorPlace {
	if n.WrittenPlace != nil {
		return *n.WrittenPlace
	}
	l := &n.Match.Path[len(n.Match.Path)-1]
	return DescriptorPlace{n.Match.Pos, l.Key(), l.Value()}
}

// AddressesOf implements what KeyFormat.KeyPrefixes needs to know of entries.
func (t *Tree) AddressesOf(entries []rules.Entry) (levels []*rules.Addresses, countsLast bool) {
	last := len(entries) - 1
	levels = make([]*rules.Addresses, last)
	n := &t.Root
	var scratch rules.SearchScratch
	for i := range levels {
		if n = n.matchingChild(&entries[i], &scratch); n == nil {
			return levels, false
		}
		levels[i] = n.Addresses
	}
	return levels, n.countsNetworksBelow(entries[last].Key)
}

// countsNetworksBelow reports whether a child of n with the key has count_by_prefix.
func (n *Node) countsNetworksBelow(key []byte) bool {
	if n.Children == nil {
		return false
	}
	group := n.Children.Groups.Find(key)
	if group == nil {
		return false
	}
	for child := range group.Nodes() {
		if child.Addresses.CountsNetworks() {
			return true
		}
	}
	return false
}
