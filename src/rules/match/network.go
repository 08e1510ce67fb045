package match

import (
	"net/netip"

	"ratelimit/src/rules"

	"github.com/gaissmai/bart"
)

// NetworkTable finds descriptors by the longest network that contains an address. The zero value is empty.
type NetworkTable struct {
	ByPrefix *bart.Table[network] // nil if there are no networks
	Places   []rules.Pos          // those of the networks
	nodes    []*Node              // the descriptors with networks, in file order
}

// network is what a NetworkTable has of a network. It has no pointer to its place, so that a search reads less memory.
type network struct {
	node       *Node
	PlaceIndex uint32 // the index in NetworkTable.places
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

// Add adds a network of a descriptor. If the table already has the network, add returns the place of that one and
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

// explain adds the networks that contain the address in value to s, the longest first. If there are none, it adds the
// descriptors, and why they do not match.
func (t *NetworkTable) explain(value []byte, s *Step) {
	if t.ByPrefix == nil {
		return
	}
	address, isAddress := rules.ParseAddress(value)
	found := false
	if isAddress {
		for prefix, network := range t.ByPrefix.Supernets(netip.PrefixFrom(address, address.BitLen())) {
			at := network.node.Place()
			at.Pos, at.Value = t.Places[network.PlaceIndex], prefix.String()
			s.addCandidateAt(at, network.node, MatchCIDR, true, "")
			found = true
		}
	}
	if found {
		return
	}
	for _, n := range t.nodes {
		why := WhyNotAddress
		if isAddress {
			why = WhyOutsideNetworks
		}
		s.addCandidateAt(n.Place(), n, MatchCIDR, false, why)
	}
}
