package yamlrules

import (
	"fmt"
	"io"
	"net/netip"
	"slices"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// ruleYAML is all that Write tells about a rule. Where rule files have a key for it, it has the same key.
type ruleYAML struct {
	RuleName    string       `yaml:"rule"`
	Domain      string       `yaml:"domain"`
	Position    string       `yaml:"at"`
	Descriptors []*yaml.Node `yaml:"descriptors,omitempty"`
	WordPath    []string     `yaml:"names,omitempty"`
	// a *map[string]string, or nil: so an empty match is written too
	Match          any            `yaml:"match,omitempty"`
	PerKeys        []string       `yaml:"per,omitempty"`
	RateLimit      *yaml.Node     `yaml:"rate_limit"`
	ShadowMode     bool           `yaml:"shadow_mode,omitempty"`
	QuotaMode      bool           `yaml:"quota_mode,omitempty"`
	DetailedMetric bool           `yaml:"detailed_metric,omitempty"`
	Charge         string         `yaml:"charge,omitempty"`
	OnReject       string         `yaml:"on_reject,omitempty"`
	Metadata       map[string]any `yaml:"metadata,omitempty"`
}

// Write writes all rules of s with their settings, as a list in file order. It holds few rules in memory at a time. The
// only possible error is that of w.
func Write(w io.Writer, s *rules.Set) error {
	if len(s.Rules()) == 0 {
		_, err := io.WriteString(w, "[]\n")
		return err
	}
	for part := range slices.Chunk(s.Rules(), 100) {
		list := make([]ruleYAML, len(part))
		for i, r := range part {
			list[i] = ruleYAMLOf(r)
		}
		enc := yaml.NewEncoder(w) // One encoder for all parts would write `---` between them.
		enc.SetIndent(2)
		if err := enc.Encode(list); err != nil {
			return fmt.Errorf("yamlrules: %w", err)
		}
	}
	return nil
}

func ruleYAMLOf(r *rules.Rule) ruleYAML {
	out := ruleYAML{
		RuleName: r.FullName, Domain: r.Domain, Position: r.Pos.String(), WordPath: r.WordPath(),
		ShadowMode: r.ShadowMode, QuotaMode: r.QuotaMode, DetailedMetric: r.DetailedMetric, Metadata: r.AnswerMetadata,
		RateLimit: limitYAMLOf(r),
	}
	for i := range r.Path {
		out.Descriptors = append(out.Descriptors, levelYAMLOf(&r.Path[i]))
	}
	if r.ListSettings != nil {
		match := make(map[string]string)
		for _, p := range r.ListSettings.MatchPairs {
			match[p.Key] = p.Pattern
		}
		out.Match, out.PerKeys = &match, r.ListSettings.PerKeys
	}
	if r.HasChargePath {
		out.Charge = "path"
	}
	if r.ChargesAllOrNone {
		out.OnReject = "none"
	}
	return out
}

// maxNetworksShown is the most networks of a level that are written, because each rule below a descriptor has them.
const maxNetworksShown = 20

// levelYAMLOf returns what a level matches. Of many networks it has the first ones and the number of the others, and of
// a file the number of values.
func levelYAMLOf(l *rules.Level) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for name, value := range l.Settings() {
		if networks, ok := value.([]netip.Prefix); ok {
			value = networks[:min(len(networks), maxNetworksShown)]
		}
		node := addPair(n, name, value)
		node.Style |= yaml.FlowStyle // It has no effect on a scalar.
		if more := len(l.Networks()) - maxNetworksShown; more > 0 && node.Kind == yaml.SequenceNode {
			rest := new(yaml.Node)
			rest.SetString(fmt.Sprintf("and %d more", more))
			node.Content = append(node.Content, rest)
		}
		if l.Data() != nil && name == l.Kind.String() {
			addPair(n, "values", l.Data().Len())
		}
	}
	return n
}

// limitYAMLOf returns the limit of a rule, without settings that have their default.
func limitYAMLOf(r *rules.Rule) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for name, value := range r.LimitSettings() {
		addPair(n, name, value)
	}
	return n
}

// addPair adds a key and its value to a mapping, and returns the value.
func addPair(to *yaml.Node, name string, value any) *yaml.Node {
	key, node := new(yaml.Node), new(yaml.Node)
	key.SetString(name)
	_ = node.Encode(value) // The values of settings always encode.
	to.Content = append(to.Content, key, node)
	return node
}
