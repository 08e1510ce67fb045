package rules

import (
	"iter"
	"net/netip"
	"strings"

	"ratelimit/src/rules/datafile"
)

// LevelKind is the way in which a level matches values.
type LevelKind uint8

const (
	LevelValue      LevelKind = iota // LevelValue is a level with a value, which may have wildcards, or without one.
	LevelCIDR                        // LevelCIDR matches the addresses of networks.
	LevelRegex                       // LevelRegex matches the values that match a regular expression.
	LevelValuesFrom                  // LevelValuesFrom matches the values in a file.
	LevelLimitsFrom                  // LevelLimitsFrom matches the values in a file, each with its limit.
	LevelExact                       // LevelExact matches one value, which may be empty. A `*` in it is an ordinary character.
)

// String returns the key of descriptors that makes such levels.
func (k LevelKind) String() string {
	return [...]string{"value", "cidr", "regex", "values_from", "limits_from", "exact"}[k]
}

// valueMatch is what a descriptor compares the values of its key with.
type valueMatch struct {
	kind      LevelKind
	text      string         // text is the result of Level.Value.
	addresses *addressLevel  // addresses is that of the Level.
	places    []Pos          // places are those of addresses.networks.
	regex     *regex         // regex is nil if kind is not LevelRegex, or if the expression has a problem.
	data      *datafile.File // data is nil if kind is neither LevelValuesFrom nor LevelLimitsFrom, or if the file has a problem.
}

// compileValueMatch compiles value, exact, cidr, regex, values_from, limits_from and count_by_prefix of a descriptor.
func (c *Compiler) compileValueMatch(cfg *DescriptorConfig, files datafile.Files) (m valueMatch) {
	m.text = cfg.Value
	if cfg.Exact == nil && cfg.CIDR == nil && cfg.Regex == nil && cfg.ValuesFrom == nil && cfg.LimitsFrom == nil && cfg.CountByPrefix == nil {
		c.warnMisleadingValue(cfg.Pos, cfg.Key, cfg.Value, false)
		return m
	}
	exclude := func(at Pos, name, other string) {
		c.problems.Add(at, "keep one of them, or write a descriptor for each", "%s and %s exclude each other", name, other)
	}
	needsKey := func(at Pos, name string) {
		if strings.Contains(cfg.Key, "*") {
			c.problems.Add(at, "write the whole key", "%s needs a key without `*`: %s", name, Quote(cfg.Key))
		}
	}
	if cfg.Key == maskedAddressKey && (cfg.CIDR != nil || cfg.CountByPrefix != nil) {
		c.warnings.Add(cfg.Pos, "use Envoy's action remote_address, or write the network as `value`",
			"%s has networks as values, not addresses, so cidr and count_by_prefix have no effect", Quote(cfg.Key))
	}
	var networks []netip.Prefix
	if v := cfg.CIDR; v != nil {
		m.kind, m.text = LevelCIDR, "cidr"
		if networks, m.places = c.compileNetworks(v); len(networks) > 0 {
			m.text = networks[0].String()
		}
		needsKey(v.Pos, "cidr")
		if cfg.Value != "" {
			exclude(v.Pos, "cidr", "value")
		}
	}
	if v := cfg.Regex; v != nil {
		m.kind, m.text, m.regex = LevelRegex, v.Value, c.compileRegex(v)
		needsKey(v.Pos, "regex")
		if cfg.Value != "" {
			exclude(v.Pos, "regex", "value")
		}
		if cfg.CIDR != nil {
			exclude(v.Pos, "regex", "cidr")
		}
	}
	if v := cfg.Exact; v != nil {
		if m.kind != LevelValue {
			exclude(v.Pos, "exact", m.kind.String())
		} else if cfg.Value != "" {
			exclude(v.Pos, "exact", "value")
		}
		m.kind, m.text = LevelExact, v.Value
		needsKey(v.Pos, "exact")
	}
	for _, from := range []struct {
		path *Positioned[string]
		kind LevelKind
		of   datafile.Kind
	}{{cfg.ValuesFrom, LevelValuesFrom, datafile.Values}, {cfg.LimitsFrom, LevelLimitsFrom, datafile.Limits}} {
		if v := from.path; v != nil {
			if m.kind != LevelValue {
				exclude(v.Pos, from.kind.String(), m.kind.String())
			} else if cfg.Value != "" {
				exclude(v.Pos, from.kind.String(), "value")
			}
			m.kind, m.text, m.data = from.kind, v.Value, c.compileDataFile(v, from.of, files)
			needsKey(v.Pos, from.kind.String())
		}
	}
	m.addresses = &addressLevel{networks: networks}
	if cfg.CountByPrefix != nil {
		c.compileCountByPrefix(cfg, m.addresses)
	}
	return m
}

// valueMatchers has the descriptors of a keyGroup that match more than one value of the key. A search tries its fields in their order,
// after the exact values and before wildcards. The zero value has no descriptors.
type valueMatchers struct {
	data     dataList
	networks networkTable
	regexes  regexList
}

// find returns the first descriptor that matches a value, or nil.
func (m *valueMatchers) find(value []byte, b *searchBounds) *node {
	if n := m.data.find(value); n != nil {
		return n
	}
	if n := m.networks.find(value); n != nil {
		return n
	}
	return m.regexes.find(value, b)
}

// explain adds the descriptors that find tries, and those that match but come later, to s.
func (m *valueMatchers) explain(value []byte, s *SearchStep, b *searchBounds) {
	m.data.explain(value, s)
	m.networks.explain(value, s)
	m.regexes.explain(value, s, b)
}

// nodes yields each descriptor once.
func (m *valueMatchers) nodes(yield func(*node) bool) {
	for i := range m.data {
		if !yield(m.data[i].node) {
			return
		}
	}
	for _, n := range m.networks.nodes {
		if !yield(n) {
			return
		}
	}
	for i := range m.regexes {
		if !yield(m.regexes[i].node) {
			return
		}
	}
}

// nodes yields each descriptor of the group once, in any order.
func (k *keyGroup) nodes() iter.Seq[*node] {
	return func(yield func(*node) bool) {
		if k.emptyValueNode != nil && !yield(k.emptyValueNode) {
			return
		}
		for _, n := range k.nodesByValue.all() {
			if !yield(n) {
				return
			}
		}
		if k.matchers != nil {
			k.matchers.nodes(yield)
		}
	}
}

// MostRegexes returns the most regular expressions that one descriptor of a request can be compared with.
func (d *Domain) MostRegexes() int {
	if t, is := d.matcher.(*descriptorTree); is {
		return t.root.mostRegexes()
	}
	return 0
}

// mostRegexes returns the most regular expressions below n that entries can be compared with.
func (n *node) mostRegexes() (most int) {
	if n.children == nil {
		return 0
	}
	afterWildcard := 0 // A request with any key can get to a wildcard.
	for i := range n.children.wildcardNodes {
		afterWildcard = max(afterWildcard, n.children.wildcardNodes[i].node.mostRegexes())
	}
	for _, k := range n.children.groupsByKey.all() {
		here, after := 0, afterWildcard
		if k.matchers != nil {
			here = len(k.matchers.regexes)
		}
		for child := range k.nodes() {
			after = max(after, child.mostRegexes())
		}
		most = max(most, here+after)
	}
	return max(most, afterWildcard)
}
