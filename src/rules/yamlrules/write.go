package yamlrules

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// ruleYAML is everything about a rule, in the keys of rule files where there are some.
type ruleYAML struct {
	Rule           string         `yaml:"rule"`
	Domain         string         `yaml:"domain"`
	At             string         `yaml:"at"`
	Descriptors    []levelYAML    `yaml:"descriptors,omitempty"`
	Names          []string       `yaml:"names,omitempty"`
	Match          any            `yaml:"match,omitempty"` // a map, or nil; an empty map is written
	Per            []string       `yaml:"per,omitempty"`
	RateLimit      *yaml.Node     `yaml:"rate_limit"`
	ShadowMode     bool           `yaml:"shadow_mode,omitempty"`
	QuotaMode      bool           `yaml:"quota_mode,omitempty"`
	DetailedMetric bool           `yaml:"detailed_metric,omitempty"`
	Charge         string         `yaml:"charge,omitempty"`
	OnReject       string         `yaml:"on_reject,omitempty"`
	Metadata       map[string]any `yaml:"metadata,omitempty"`
}

type levelYAML struct {
	Key            string `yaml:"key"`
	Value          string `yaml:"value,omitempty"`
	ValueToMetric  bool   `yaml:"value_to_metric,omitempty"`
	ShareThreshold bool   `yaml:"share_threshold,omitempty"`
}

// Write writes a list of all rules with everything about each, in file order. It holds few rules in memory at a time. The error is
// that of w.
func Write(w io.Writer, s *rules.Set) error {
	if len(s.Rules()) == 0 {
		_, err := io.WriteString(w, "[]\n")
		return err
	}
	for part := range slices.Chunk(s.Rules(), 100) {
		list := make([]ruleYAML, len(part))
		for i, r := range part {
			list[i] = ruleOf(r)
		}
		enc := yaml.NewEncoder(w) // one of its own, which writes nothing between two lists
		enc.SetIndent(2)
		if err := enc.Encode(list); err != nil {
			return fmt.Errorf("yamlrules: %w", err)
		}
	}
	return nil
}

func ruleOf(r *rules.Rule) ruleYAML {
	out := ruleYAML{
		Rule: r.Key, Domain: r.Domain, At: r.Pos.String(), Names: r.Names(),
		ShadowMode: r.Shadow, QuotaMode: r.Quota, DetailedMetric: r.Detailed, Metadata: r.Metadata,
		RateLimit: limitOf(r),
	}
	for _, l := range r.Path {
		out.Descriptors = append(out.Descriptors, levelYAML{l.Key(), l.Value(), l.ValueToMetric, l.ShareThreshold})
	}
	if r.Listed != nil {
		match := make(map[string]string)
		for _, p := range r.Listed.Match {
			match[p.Key] = p.Pattern
		}
		out.Match, out.Per = &match, r.Listed.Per
	}
	if r.ChargePath {
		out.Charge = "path"
	}
	if r.AllOrNone {
		out.OnReject = "none"
	}
	return out
}

// limitKeysInOrder is the order in which the keys of a limit are written.
var limitKeysInOrder = []string{
	"unlimited", "algorithm", "unit", "unit_multiplier", "period", "requests_per_unit", "burst", "min_interval", "count_blocked",
	"on_store_failure", "name", "replaces",
}

// limitOf is the limit of a rule, without what is the default.
func limitOf(r *rules.Rule) *yaml.Node {
	values := map[string]any{}
	switch {
	case !r.Unlimited:
		values["requests_per_unit"] = r.PerUnit()
		values["unit"] = strings.ToLower(r.Unit.String())
		if r.Multiplier > 1 {
			values["unit_multiplier"] = r.Multiplier
		}
	case r.Listed != nil && r.Requests > 0:
		values["requests_per_unit"] = r.Requests
		fallthrough
	default:
		values["unlimited"] = true
	}
	maps.Insert(values, r.Settings())
	if r.ByPeriod {
		delete(values, "unit")
		delete(values, "unit_multiplier")
	}
	if r.Name != "" {
		values["name"] = r.Name
	}
	if len(r.Replaces) > 0 {
		values["replaces"] = r.Replaces
	}
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, name := range limitKeysInOrder {
		if value, set := values[name]; set {
			key, node := new(yaml.Node), new(yaml.Node)
			key.SetString(name)
			_ = node.Encode(value) // a scalar or a list of text
			n.Content = append(n.Content, key, node)
		}
	}
	return n
}
