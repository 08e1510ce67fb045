package compile

import (
	"net/netip"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"

	"ratelimit/src/rules/datafile"
)

// valueMatch is what a descriptor compares the values of its key with.
type valueMatch struct {
	kind      rules.LevelKind
	text      string           // the result of Level.Value
	addresses *rules.Addresses // those of the Level
	places    []rules.Pos      // those of addresses.Networks
	regex     *match.Regex     // nil if kind is not LevelRegex, or if the expression has a problem
	data      *datafile.File   // nil if kind is neither LevelValuesFrom nor LevelLimitsFrom, or if the file has a problem
}

// valueSetting is a setting of a descriptor that stands in place of value.
type valueSetting struct {
	kind rules.LevelKind
	pos  rules.Pos
	text string // empty for cidr
}

// valueSettings returns those of exact, cidr, regex, values_from and limits_from that the descriptor has.
func (cfg *DescriptorConfig) valueSettings() (list []valueSetting) {
	if v := cfg.CIDR; v != nil {
		list = append(list, valueSetting{rules.LevelCIDR, v.Pos, ""})
	}
	add := func(kind rules.LevelKind, v *Positioned[string]) {
		if v != nil {
			list = append(list, valueSetting{kind, v.Pos, v.Value})
		}
	}
	add(rules.LevelRegex, cfg.Regex)
	add(rules.LevelExact, cfg.Exact)
	add(rules.LevelValuesFrom, cfg.ValuesFrom)
	add(rules.LevelLimitsFrom, cfg.LimitsFrom)
	return list
}

// compileValueMatch compiles value, exact, cidr, regex, values_from, limits_from and count_by_prefix of a descriptor.
func (c *report) compileValueMatch(cfg *DescriptorConfig, files datafile.Files) (m valueMatch) {
	m.text = cfg.Value
	settings := cfg.valueSettings()
	if len(settings) == 0 && cfg.CountByPrefix == nil {
		warnMisleadingValue(&c.warnings, cfg.Pos, cfg.Key, cfg.Value, false)
		return m
	}
	if cfg.Key == maskedAddressKey && (cfg.CIDR != nil || cfg.CountByPrefix != nil) {
		c.warnings.Add(cfg.Pos, "use Envoy's action remote_address, or write the network as `value`",
			"%s has networks as values, not addresses, so cidr and count_by_prefix have no effect", rules.Quote(cfg.Key))
	}
	var networks []netip.Prefix
	for _, s := range settings {
		other := m.kind
		if cfg.Value != "" {
			other = rules.LevelValue
		}
		if other != rules.LevelValue || cfg.Value != "" {
			c.problems.Add(s.pos, "keep one of them, or write a descriptor for each", "%v and %v exclude each other",
				s.kind, other)
		}
		if strings.Contains(cfg.Key, "*") {
			c.problems.Add(s.pos, "write the whole key", "%v needs a key without `*`: %s", s.kind, rules.Quote(cfg.Key))
		}
		m.kind, m.text = s.kind, s.text
		switch s.kind {
		case rules.LevelCIDR:
			m.text = "cidr"
			if networks, m.places = c.compileNetworks(cfg.CIDR); len(networks) > 0 {
				m.text = networks[0].String()
			}
		case rules.LevelRegex:
			m.regex = c.compileRegex(cfg.Regex)
		case rules.LevelValuesFrom:
			m.data = c.compileDataFile(cfg.ValuesFrom, datafile.Values, files)
		case rules.LevelLimitsFrom:
			m.data = c.compileDataFile(cfg.LimitsFrom, datafile.Limits, files)
		}
	}
	m.addresses = &rules.Addresses{Networks: networks}
	if cfg.CountByPrefix != nil {
		c.compileCountByPrefix(cfg, m.addresses)
	}
	return m
}
