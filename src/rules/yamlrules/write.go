package yamlrules

import (
	"fmt"
	"io"
	"slices"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules"
)

// ruleYAML is all that Write tells about a rule. Where rule files have a key for it, it has the same key.
type ruleYAML struct {
	RuleName    string      `yaml:"rule"`
	Domain      string      `yaml:"domain"`
	Position    string      `yaml:"at"`
	Descriptors []levelYAML `yaml:"descriptors,omitempty"`
	WordPath    []string    `yaml:"names,omitempty"`
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

type levelYAML struct {
	Key   string  `yaml:"key"`
	Value string  `yaml:"value,omitempty"`
	Exact *string `yaml:"exact,omitempty"`
	// at most maxNetworksShown networks, and then the number of the others
	CIDR           []string      `yaml:"cidr,omitempty,flow"`
	Regex          string        `yaml:"regex,omitempty"`
	ValuesFrom     string        `yaml:"values_from,omitempty"`
	LimitsFrom     string        `yaml:"limits_from,omitempty"`
	ValueCount     int           `yaml:"values,omitempty"` // the number of values in the file
	CountByPrefix  *prefixesYAML `yaml:"count_by_prefix,omitempty,flow"`
	ValueToMetric  bool          `yaml:"value_to_metric,omitempty"`
	ShareThreshold bool          `yaml:"share_threshold,omitempty"`
}

type prefixesYAML struct {
	V4 int `yaml:"v4,omitempty"`
	V6 int `yaml:"v6,omitempty"`
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

func levelYAMLOf(l *rules.Level) levelYAML {
	out := levelYAML{Key: l.Key(), ValueToMetric: l.ValueToMetric, ShareThreshold: l.ShareThreshold}
	switch l.Kind {
	case rules.LevelCIDR:
		networks := l.Networks()
		for _, network := range networks[:min(len(networks), maxNetworksShown)] {
			out.CIDR = append(out.CIDR, network.String())
		}
		if more := len(networks) - maxNetworksShown; more > 0 {
			out.CIDR = append(out.CIDR, fmt.Sprintf("and %d more", more))
		}
	case rules.LevelExact:
		value := l.Value()
		out.Exact = &value
	case rules.LevelRegex:
		out.Regex = l.Value()
	case rules.LevelValuesFrom:
		out.ValuesFrom, out.ValueCount = l.Value(), l.Data().Len()
	case rules.LevelLimitsFrom:
		out.LimitsFrom, out.ValueCount = l.Value(), l.Data().Len()
	default:
		out.Value = l.Value()
	}
	if v4, v6 := l.CountedPrefixes(); v4+v6 > 0 {
		out.CountByPrefix = &prefixesYAML{v4, v6}
	}
	return out
}

// limitYAMLOf returns the limit of a rule, without settings that have their default.
func limitYAMLOf(r *rules.Rule) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for name, value := range r.LimitSettings() {
		key, node := new(yaml.Node), new(yaml.Node)
		key.SetString(name)
		_ = node.Encode(value) // Scalars and lists of text always encode.
		n.Content = append(n.Content, key, node)
	}
	return n
}
