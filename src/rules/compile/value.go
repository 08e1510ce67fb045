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

// compileValueMatch compiles value, exact, cidr, regex, values_from, limits_from and count_by_prefix of a descriptor.
func (c *Compiler) compileValueMatch(cfg *DescriptorConfig, files datafile.Files) (m valueMatch) {
	m.text = cfg.Value
	if cfg.Exact == nil && cfg.CIDR == nil && cfg.Regex == nil && cfg.ValuesFrom == nil && cfg.LimitsFrom == nil &&
		cfg.CountByPrefix == nil {
		c.warnMisleadingValue(cfg.Pos, cfg.Key, cfg.Value, false)
		return m
	}
	exclude := func(at rules.Pos, name, other string) {
		c.problems.Add(at, "keep one of them, or write a descriptor for each", "%s and %s exclude each other", name, other)
	}
	needsKey := func(at rules.Pos, name string) {
		if strings.Contains(cfg.Key, "*") {
			c.problems.Add(at, "write the whole key", "%s needs a key without `*`: %s", name, rules.Quote(cfg.Key))
		}
	}
	if cfg.Key == maskedAddressKey && (cfg.CIDR != nil || cfg.CountByPrefix != nil) {
		c.warnings.Add(cfg.Pos, "use Envoy's action remote_address, or write the network as `value`",
			"%s has networks as values, not addresses, so cidr and count_by_prefix have no effect", rules.Quote(cfg.Key))
	}
	var networks []netip.Prefix
	if v := cfg.CIDR; v != nil {
		m.kind, m.text = rules.LevelCIDR, "cidr"
		if networks, m.places = c.compileNetworks(v); len(networks) > 0 {
			m.text = networks[0].String()
		}
		needsKey(v.Pos, "cidr")
		if cfg.Value != "" {
			exclude(v.Pos, "cidr", "value")
		}
	}
	if v := cfg.Regex; v != nil {
		m.kind, m.text, m.regex = rules.LevelRegex, v.Value, c.compileRegex(v)
		needsKey(v.Pos, "regex")
		if cfg.Value != "" {
			exclude(v.Pos, "regex", "value")
		}
		if cfg.CIDR != nil {
			exclude(v.Pos, "regex", "cidr")
		}
	}
	if v := cfg.Exact; v != nil {
		if m.kind != rules.LevelValue {
			exclude(v.Pos, "exact", m.kind.String())
		} else if cfg.Value != "" {
			exclude(v.Pos, "exact", "value")
		}
		m.kind, m.text = rules.LevelExact, v.Value
		needsKey(v.Pos, "exact")
	}
	for _, from := range []struct {
		path *Positioned[string]
		kind rules.LevelKind
		of   datafile.Kind
	}{{cfg.ValuesFrom, rules.LevelValuesFrom, datafile.Values}, {cfg.LimitsFrom, rules.LevelLimitsFrom, datafile.Limits}} {
		if v := from.path; v != nil {
			if m.kind != rules.LevelValue {
				exclude(v.Pos, from.kind.String(), m.kind.String())
			} else if cfg.Value != "" {
				exclude(v.Pos, from.kind.String(), "value")
			}
			m.kind, m.text, m.data = from.kind, v.Value, c.compileDataFile(v, from.of, files)
			needsKey(v.Pos, from.kind.String())
		}
	}
	m.addresses = &rules.Addresses{Networks: networks}
	if cfg.CountByPrefix != nil {
		c.compileCountByPrefix(cfg, m.addresses)
	}
	return m
}
