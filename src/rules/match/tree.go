package match

import (
	"iter"
	"maps"
	"slices"

	"ratelimit/src/rules"
	"ratelimit/src/rules/wildcard"
)

// Tree is a tree of descriptors: each entry of a request leads one level down.
type Tree struct{ Root Node }

// Node is a descriptor of the tree, or its root.
type Node struct {
	Descriptor   *rules.Descriptor // nil for the root
	Match        *rules.Match      // of a request that ends at the node; nil if it is charged to no limit
	Children     *nodeChildren     // nil if there are none
	AcceptsHolds bool              // Match has a HoldIDKey, so that entries below the node can name a hold
}

// Level returns the last level of the path to n, which must not be a root.
func (n *Node) Level() *rules.Level { return &n.Descriptor.Path[len(n.Descriptor.Path)-1] }

// nodeChildren are the descriptors directly below a node.
type nodeChildren struct {
	Groups    nameTable[*KeyGroup]
	Wildcards []WildcardNode // in file order
}

// KeyGroup holds the descriptors of one level that have the same key.
type KeyGroup struct {
	AnyValue *Node            // the descriptor without a value; nil if there is none
	ByValue  nameTable[*Node] // the descriptors with `value` or `exact`, by their text
	Matchers *valueMatchers   // all other descriptors; nil if there are none
}

// WildcardNode is a descriptor whose key or value has a `*`. The pattern is the name of its level.
type WildcardNode struct {
	wildcard.Pattern
	Node *Node
}

// valueMatchers has the descriptors of a KeyGroup that match more than one value of the key. A search tries its fields
// in their order, after the exact values and before wildcards. The zero value has no descriptors.
type valueMatchers struct {
	Data     []DataNode // those with values_from or limits_from, in file order
	Networks NetworkTable
	Regexes  regexList
}

func (t *Tree) FindRule(entries []rules.Entry, s *rules.SearchScratch) *rules.Match {
	n := &t.Root
	for i := range entries {
		if n.AcceptsHolds && n.Match.AcceptsBelow(entries[i:]) {
			break
		}
		next := n.MatchingChild(&entries[i], s)
		if next == nil {
			if n.AcceptsHolds && n.Match.LacksHoldName(entries[i:]) {
				break
			}
			return nil
		}
		n = next
	}
	return n.Match
}

// MatchingChild returns the child of n that matches an entry, or nil. It prefers the exact key and value, then what
// valueMatchers finds, then the first wildcard, then the key alone. It returns any of them if the bounds of s stop it.
func (n *Node) MatchingChild(e *rules.Entry, s *rules.SearchScratch) *Node {
	l := n.Children
	if l == nil {
		return nil
	}
	k := l.Groups.Find(e.Key)
	if k != nil {
		if next := k.ByValue.Find(e.Value); next != nil {
			return next
		}
	}
	if k != nil && k.Matchers != nil {
		if next := k.Matchers.find(e.Value, &s.Bounds); next != nil {
			return next
		}
	}
	if len(l.Wildcards) > 0 {
		text := s.JoinEntry(e)
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

// find returns the first descriptor that matches a value, or nil.
func (m *valueMatchers) find(value []byte, b *rules.SearchBounds) *Node {
	for i := range m.Data {
		if n := m.Data[i].find(value); n != nil {
			return n
		}
	}
	if n := m.Networks.find(value); n != nil {
		return n
	}
	return m.Regexes.find(value, b)
}

// Nodes yields each descriptor of the group once, in any order.
func (k *KeyGroup) Nodes() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		if k.AnyValue != nil && !yield(k.AnyValue) {
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

// nodes yields each descriptor once.
func (m *valueMatchers) nodes(yield func(*Node) bool) {
	for i := range m.Data {
		if !yield(m.Data[i].Node) {
			return
		}
	}
	for _, n := range m.Networks.nodes {
		if !yield(n) {
			return
		}
	}
	for i := range m.Regexes {
		if !yield(m.Regexes[i].Node) {
			return
		}
	}
}

// ChildNodes yields the descriptors directly below n, those whose order matters in file order.
func (n *Node) ChildNodes() iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		if n.Children == nil {
			return
		}
		for i := range n.Children.Wildcards {
			if !yield(n.Children.Wildcards[i].Node) {
				return
			}
		}
		groups := maps.Collect(n.Children.Groups.All())
		for _, key := range slices.Sorted(maps.Keys(groups)) {
			k := groups[key]
			var list []*Node
			if k.Matchers != nil {
				for node := range k.Matchers.nodes {
					list = append(list, node)
				}
			}
			values := maps.Collect(k.ByValue.All())
			for _, value := range slices.Sorted(maps.Keys(values)) {
				list = append(list, values[value])
			}
			if k.AnyValue != nil {
				list = append(list, k.AnyValue)
			}
			for _, node := range list {
				if !node.Level().HasWildcard && !yield(node) {
					return
				}
			}
		}
	}
}

// HasMatchers reports whether a descriptor below n may match several values of the key, but not all.
func (n *Node) HasMatchers(key string) bool {
	if n.Children == nil {
		return false
	}
	k := n.Children.Groups.Find([]byte(key))
	return len(n.Children.Wildcards) > 0 || k != nil && k.Matchers != nil
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

// AddChild makes child, which matches by `value` or `exact`, a child of n. If n already has a child with this key and
// value, AddChild returns that one and changes nothing.
func (n *Node) AddChild(child *Node) (taken *Node) {
	l := child.Level()
	value, k := l.Value(), n.groupOf(l.Key())
	switch isAny := value == "" && l.Kind != rules.LevelExact; {
	case isAny && k.AnyValue != nil:
		return k.AnyValue
	case isAny:
		k.AnyValue = child
	default:
		if taken = k.ByValue.Find([]byte(value)); taken != nil {
			return taken
		}
		k.ByValue.Add(value, child)
	}
	if l.HasWildcard {
		n.Children.Wildcards = append(n.Children.Wildcards, WildcardNode{wildcard.Compile(l.Name()), child})
	}
	return nil
}

// AddressesOf implements what KeyFormat.KeyPrefixes needs to know of entries.
func (t *Tree) AddressesOf(entries []rules.Entry) (levels []*rules.Addresses, countsLast bool) {
	last := len(entries) - 1
	levels = make([]*rules.Addresses, last)
	n := &t.Root
	var scratch rules.SearchScratch
	for i := range levels {
		if n = n.MatchingChild(&entries[i], &scratch); n == nil {
			return levels, false
		}
		levels[i] = n.Level().Addresses
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
		if child.Level().CountsNetworks() {
			return true
		}
	}
	return false
}
