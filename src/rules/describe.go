package rules

import (
	"bytes"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// String is the line of /rlconfig: envoyproxy/ratelimit's format, with the
// multiplier behind it where there is one.
func (r *Rule) String() string {
	s := fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t",
		r.Key, r.Unit, r.Requests, r.Shadow, r.Quota)
	if r.Multiplier > 1 {
		s += fmt.Sprintf(", unit_multiplier: %d", r.Multiplier)
	}
	return s
}

// ruleYAML is everything there is to tell of a rule, in the words of the rule
// files where they have some.
type ruleYAML struct {
	Rule           string         `yaml:"rule"`
	Domain         string         `yaml:"domain"`
	At             string         `yaml:"at"`
	Descriptors    []levelYAML    `yaml:"descriptors"`
	RateLimit      limitYAML      `yaml:"rate_limit"`
	ShadowMode     bool           `yaml:"shadow_mode,omitempty"`
	QuotaMode      bool           `yaml:"quota_mode,omitempty"`
	DetailedMetric bool           `yaml:"detailed_metric,omitempty"`
	Metadata       map[string]any `yaml:"metadata,omitempty"`
}

type levelYAML struct {
	Key            string `yaml:"key"`
	Value          string `yaml:"value,omitempty"`
	ValueToMetric  bool   `yaml:"value_to_metric,omitempty"`
	ShareThreshold bool   `yaml:"share_threshold,omitempty"`
}

type limitYAML struct {
	Unlimited       bool     `yaml:"unlimited,omitempty"`
	Unit            string   `yaml:"unit,omitempty"`
	UnitMultiplier  uint32   `yaml:"unit_multiplier,omitempty"`
	RequestsPerUnit *uint32  `yaml:"requests_per_unit,omitempty"`
	Name            string   `yaml:"name,omitempty"`
	Replaces        []string `yaml:"replaces,omitempty"`
}

// YAML lists all rules with everything that is known of each, in file order.
func (s *Set) YAML() ([]byte, error) {
	list := make([]ruleYAML, len(s.rules))
	for i, r := range s.rules {
		list[i] = r.yaml()
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(list); err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return b.Bytes(), nil
}

func (r *Rule) yaml() ruleYAML {
	out := ruleYAML{
		Rule: r.Key, Domain: r.Domain, At: r.Pos.String(),
		ShadowMode: r.Shadow, QuotaMode: r.Quota, DetailedMetric: r.Detailed, Metadata: r.Metadata,
		RateLimit: limitYAML{Unlimited: r.Unlimited, Name: r.Name, Replaces: r.Replaces},
	}
	for _, l := range r.Path {
		out.Descriptors = append(out.Descriptors, levelYAML{l.Key, l.Value, l.ValueToMetric, l.ShareThreshold})
	}
	if !r.Unlimited {
		out.RateLimit.Unit = strings.ToLower(r.Unit.String())
		out.RateLimit.RequestsPerUnit = &r.Requests
		if r.Multiplier > 1 {
			out.RateLimit.UnitMultiplier = r.Multiplier
		}
	}
	return out
}
