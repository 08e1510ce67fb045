package match

import (
	"net/netip"
	"regexp"
	"regexp/syntax"

	"ratelimit/src/rules"
	"ratelimit/src/rules/datafile"

	"github.com/gaissmai/bart"
)

// DataNode is a descriptor with values_from or limits_from.
type DataNode struct {
	Kind rules.LevelKind
	File *datafile.File
	Node *Node
	// NodesByLimit has a node for each of the Limits of the file's Table. They differ from Node in the limit only. It is
	// nil for values_from.
	NodesByLimit []*Node
}

// find returns the node of a value; nil if the file does not have the value.
func (d *DataNode) find(value []byte) *Node {
	limit, found := d.File.Table.Find(value)
	switch {
	case !found:
		return nil
	case d.NodesByLimit != nil:
		return d.NodesByLimit[limit]
	}
	return d.Node
}

// NetworkTable finds descriptors by the longest network that contains an address. The zero value is empty.
type NetworkTable struct {
	ByPrefix *bart.Table[network] // nil if there are no networks
	Places   []rules.Pos          // those of the networks
	nodes    []*Node              // the descriptors with networks, in file order
}

// network is what a NetworkTable has of a network. It has no pointer to its place, so that a search reads less memory.
type network struct {
	node       *Node
	PlaceIndex uint32 // the index in NetworkTable.Places
}

// find returns the descriptor of the longest network that contains the address in value. It returns nil if there is
// none, or if value is not an address.
func (t *NetworkTable) find(value []byte) *Node {
	if t.ByPrefix == nil {
		return nil
	}
	address, ok := rules.ParseAddress(value)
	if !ok {
		return nil
	}
	found, _ := t.ByPrefix.Lookup(address)
	return found.node
}

// Add adds a network of a descriptor. If the table already has the network, Add returns the place of that one and
// changes nothing.
func (t *NetworkTable) Add(prefix netip.Prefix, at rules.Pos, n *Node) (taken rules.Pos, ok bool) {
	if t.ByPrefix == nil {
		t.ByPrefix = new(bart.Table[network])
	}
	if taken, has := t.ByPrefix.Get(prefix); has {
		return t.Places[taken.PlaceIndex], false
	}
	t.ByPrefix.Insert(prefix, network{n, uint32(len(t.Places))})
	t.Places = append(t.Places, at)
	if len(t.nodes) == 0 || t.nodes[len(t.nodes)-1] != n {
		t.nodes = append(t.nodes, n)
	}
	return rules.Pos{}, true
}

// MaxRegexValue is the number of bytes at the start of a value that regular expressions are compared with.
const MaxRegexValue = 2048

// regexList has the descriptors of one key on one level that have a `regex`, in file order.
type regexList []RegexNode

// RegexNode is a descriptor with a regular expression.
type RegexNode struct {
	*Regex
	Node *Node
}

// Regex is a compiled `regex`.
type Regex struct {
	Compiled *regexp.Regexp
	Parsed   *syntax.Regexp
	Steps    int // about the number of its instructions
}

// find returns the descriptor of the first regular expression that matches a value, or nil. It allocates nothing,
// except when package regexp enlarges its pools.
func (l regexList) find(value []byte, b *rules.SearchBounds) (found *Node) {
	if len(l) == 0 {
		return nil
	}
	value = value[:min(len(value), MaxRegexValue)]
	if n, ok := b.Recall(&l[0], value); ok {
		return n.(*Node)
	}
	before := b.RegexWork()
	for i := range l {
		if !b.AllowsRegex(l[i].Steps * (len(value) + 1)) {
			return nil
		}
		if l[i].Compiled.Match(value) {
			found = l[i].Node
			break
		}
	}
	b.Remember(&l[0], value, found, before)
	return found
}

// MostRegexes returns the most regular expressions that one descriptor of a request can be compared with in d.
func MostRegexes(d *rules.Domain) int {
	if t, is := d.BaseMatcher().(*Tree); is {
		return t.Root.mostRegexes()
	}
	return 0
}

// mostRegexes returns the most regular expressions below n that entries can be compared with.
func (n *Node) mostRegexes() (most int) {
	if n.Children == nil {
		return 0
	}
	afterWildcard := 0 // A request with any key can get to a wildcard.
	for i := range n.Children.Wildcards {
		afterWildcard = max(afterWildcard, n.Children.Wildcards[i].Node.mostRegexes())
	}
	for _, k := range n.Children.Groups.All() {
		here, after := 0, afterWildcard
		if k.Matchers != nil {
			here = len(k.Matchers.Regexes)
		}
		for child := range k.Nodes() {
			after = max(after, child.mostRegexes())
		}
		most = max(most, here+after)
	}
	return max(most, afterWildcard)
}
