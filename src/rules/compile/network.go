package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// compileNetworks returns the networks of cidr without those that have a problem.
func (c *report) compileNetworks(cidr *Positioned[[]Positioned[string]]) (list []netip.Prefix, places []rules.Pos) {
	if len(cidr.Value) == 0 {
		c.problems.Add(cidr.Pos, "write a network, such as 10.0.0.0/8, or remove it", "cidr has no network")
	}
	for _, text := range cidr.Value {
		if network, mistake, fix := parseNetwork(text.Value); mistake != "" {
			c.problems.Add(text.Pos, fix, "cidr %s: %s", mistake, rules.Quote(text.Value))
		} else {
			list, places = append(list, network), append(places, text.Pos)
		}
	}
	return list, places
}

// parseNetwork returns the network that text is in CIDR notation. If text is none, it returns what is wrong with it,
// and how to fix it.
func parseNetwork(text string) (network netip.Prefix, mistake, fix string) {
	network, err := netip.ParsePrefix(text)
	if err != nil {
		if address, ok := rules.ParseAddress([]byte(text)); ok {
			return network, "is an address without the length of a network",
				fmt.Sprintf("write %v", netip.PrefixFrom(address, address.BitLen()))
		}
		return network, "is not a network",
			"write an address and the length of its network, such as 10.0.0.0/8 or 2001:db8::/32"
	}
	masked := network.Masked()
	if address := masked.Addr(); address.Is4In6() && masked.Bits() >= 96 {
		return network, "is a network of IPv4 in IPv6, whose addresses are compared as IPv4",
			fmt.Sprintf("write %v", netip.PrefixFrom(address.Unmap(), masked.Bits()-96))
	}
	if masked != network {
		return network, "has bits behind the length of the network", fmt.Sprintf("write %v", masked)
	}
	return network, "", ""
}

// compileCountByPrefix sets the lengths of the networks that l counts.
func (c *report) compileCountByPrefix(cfg *DescriptorConfig, l *rules.Addresses) {
	by := cfg.CountByPrefix
	refuse := func(what string) {
		c.problems.Add(by.Pos, "remove one of them", "count_by_prefix and %s exclude each other", what)
	}
	others := slices.DeleteFunc(cfg.valueSettings(), func(s valueSetting) bool { return s.kind == rules.LevelCIDR })
	switch {
	case cfg.Value != "":
		refuse("value")
	case len(others) > 0:
		refuse(others[0].kind.String())
	case cfg.ShareThreshold:
		refuse("share_threshold")
	case strings.Contains(cfg.Key, "*"):
		c.problems.Add(by.Pos, "write the key without `*`, or remove count_by_prefix",
			"count_by_prefix needs a key without wildcard")
	case by.V4 == nil && by.V6 == nil:
		c.problems.Add(by.Pos, "write `count_by_prefix: {v4: 24, v6: 64}`", "count_by_prefix is empty")
	}
	l.V4Bits = c.prefixLength("4", by.V4, l.Networks, netip.IPv4Unspecified())
	l.V6Bits = c.prefixLength("6", by.V6, l.Networks, netip.IPv6Unspecified())
}

// prefixLength returns the length of the networks that count_by_prefix counts of one version of IP, and checks it. zero
// is an address of that version.
func (c *report) prefixLength(version string, length *Positioned[uint32], networks []netip.Prefix,
	zero netip.Addr,
) uint8 {
	if length == nil {
		return 0
	}
	if most := zero.BitLen(); length.Value == 0 || length.Value > uint32(most) {
		c.problems.Add(length.Pos, fmt.Sprintf("write 1 to %d", most), "v%s is out of range: %d", version, length.Value)
		return 0
	}
	has := len(networks) == 0
	for _, network := range networks {
		if network.Addr().BitLen() != zero.BitLen() {
			continue
		}
		has = true
		if network.Bits() > int(length.Value) {
			c.problems.Add(length.Pos, fmt.Sprintf("write %d or more, or use share_threshold for one counter", network.Bits()),
				"v%s: %d is shorter than the network %v in cidr: the whole network would have one counter", version, length.Value,
				network)
			return 0
		}
	}
	if !has {
		c.warnings.Add(length.Pos, "remove it", "v%s has no effect: cidr has no network of IPv%s", version, version)
	}
	return uint8(length.Value)
}

// addNetworks makes child the descriptor of the networks below n.
func (c *report) addNetworks(n, child *match.Node, places []rules.Pos) {
	l := child.Level()
	table := &n.MatchersOf(l.Key()).Networks
	for i, prefix := range l.Addresses.Networks {
		if taken, ok := table.Add(prefix, places[i], child); !ok {
			c.problems.Add(places[i], "remove one of them", "the network %v of the key %s is already at %v, on the same level",
				prefix, rules.Quote(l.Key()), taken)
		}
	}
}

// warnUselessNetworks warns of networks that no address gets to, and of networks of all addresses of one version.
func warnUselessNetworks(warnings *rules.Problems, k *match.KeyGroup, t *match.NetworkTable) {
	if t.ByPrefix == nil {
		return
	}
	all4, all6 := netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	v4, has4 := t.ByPrefix.Get(all4)
	v6, has6 := t.ByPrefix.Get(all6)
	warn := func(at rules.Pos, all netip.Prefix, version string, other netip.Prefix) {
		warnings.Add(at, fmt.Sprintf("add %v, or a descriptor without cidr for all other values", other),
			"%v has only %s addresses, and no descriptor with the key takes all other values", all, version)
	}
	switch {
	case k.AnyValue != nil || has4 == has6:
	case has4:
		warn(t.Places[v4.PlaceIndex], all4, "IPv4", all6)
	default:
		warn(t.Places[v6.PlaceIndex], all6, "IPv6", all4)
	}
	warnCoveredNetworks(warnings, t)
}

// warnCoveredNetworks warns of networks whose addresses are all in longer networks of the table.
func warnCoveredNetworks(warnings *rules.Problems, t *match.NetworkTable) {
	// the networks all of whose addresses are in the networks seen so far.
	full := make(map[netip.Prefix]bool, t.ByPrefix.Size())
	var byBits [129][]netip.Prefix // byBits has the networks in full by their length.
	for prefix := range t.ByPrefix.All() {
		full[prefix] = true
		byBits[prefix.Bits()] = append(byBits[prefix.Bits()], prefix)
	}
	for bits := len(byBits) - 1; bits > 0; bits-- {
		for _, half := range byBits[bits] {
			parent := netip.PrefixFrom(half.Addr(), bits-1).Masked()
			if parent.Addr() != half.Addr() || !full[upperHalf(parent)] {
				continue
			}
			if !full[parent] {
				full[parent] = true
				byBits[bits-1] = append(byBits[bits-1], parent)
			} else if covered, has := t.ByPrefix.Get(parent); has {
				warnings.Add(t.Places[covered.PlaceIndex], "remove it",
					"no address gets to the network %v: longer networks on the same level take all of them", parent)
			}
		}
	}
}

// upperHalf returns the half of network whose first bit behind the length is 1.
func upperHalf(network netip.Prefix) netip.Prefix {
	bits := network.Bits()
	bytes := network.Addr().AsSlice()
	bytes[bits/8] |= 0x80 >> (bits % 8)
	upper, _ := netip.AddrFromSlice(bytes) // It has the length of an address.
	return netip.PrefixFrom(upper, bits+1)
}
