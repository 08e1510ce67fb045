package yamlrules

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// ruleYAML is everything there is to tell of a rule, in the words of the rule
// files where they have some.
type ruleYAML struct {
	Rule           string         `yaml:"rule"`
	Domain         string         `yaml:"domain"`
	At             string         `yaml:"at"`
	Descriptors    []levelYAML    `yaml:"descriptors,omitempty"`
	Names          []string       `yaml:"names,omitempty"`
	Match          *matchYAML     `yaml:"match,omitempty"`
	Per            []string       `yaml:"per,omitempty"`
	RateLimit      limitYAML      `yaml:"rate_limit"`
	ShadowMode     bool           `yaml:"shadow_mode,omitempty"`
	QuotaMode      bool           `yaml:"quota_mode,omitempty"`
	DetailedMetric bool           `yaml:"detailed_metric,omitempty"`
	Charge         string         `yaml:"charge,omitempty"`
	OnReject       string         `yaml:"on_reject,omitempty"`
	Metadata       map[string]any `yaml:"metadata,omitempty"`
}

// matchYAML is written also when it is empty.
type matchYAML map[string]string

type levelYAML struct {
	Key            string `yaml:"key"`
	Value          string `yaml:"value,omitempty"`
	ValueToMetric  bool   `yaml:"value_to_metric,omitempty"`
	ShareThreshold bool   `yaml:"share_threshold,omitempty"`
}

type limitYAML struct {
	Unlimited       bool     `yaml:"unlimited,omitempty"`
	Algorithm       string   `yaml:"algorithm,omitempty"`
	Unit            string   `yaml:"unit,omitempty"`
	UnitMultiplier  uint32   `yaml:"unit_multiplier,omitempty"`
	Period          string   `yaml:"period,omitempty"`
	RequestsPerUnit *uint32  `yaml:"requests_per_unit,omitempty"`
	Burst           *uint64  `yaml:"burst,omitempty"`
	MinInterval     string   `yaml:"min_interval,omitempty"`
	CountBlocked    *bool    `yaml:"count_blocked,omitempty"`
	OnStoreFailure  string   `yaml:"on_store_failure,omitempty"`
	Name            string   `yaml:"name,omitempty"`
	Replaces        []string `yaml:"replaces,omitempty"`
}

// Write writes a list of all rules with everything that is known of each, in file order. It holds
// a few rules in memory at a time. The error is that of w.
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
		RateLimit: limitYAML{Unlimited: r.Unlimited, Name: r.Name, Replaces: r.Replaces()},
	}
	for _, l := range r.Path {
		out.Descriptors = append(out.Descriptors, levelYAML{l.Key(), l.Value(), l.ValueToMetric, l.ShareThreshold})
	}
	if r.Listed != nil {
		match := make(matchYAML)
		for _, p := range r.Listed.Match {
			match[p.Key] = p.Pattern
		}
		out.Match, out.Per = &match, r.Listed.Per
	}
	if !r.Unlimited {
		limitOf(r, &out.RateLimit)
	} else if r.Listed != nil && r.Requests > 0 {
		out.RateLimit.RequestsPerUnit = &r.Requests
	}
	if r.ChargePath {
		out.Charge = "path"
	}
	if r.AllOrNone {
		out.OnReject = "none"
	}
	return out
}

func limitOf(r *rules.Rule, out *limitYAML) {
	perUnit := r.PerUnit()
	out.RequestsPerUnit = &perUnit
	l := &r.Limit
	if l.Kind != algorithm.FixedWindow {
		out.Algorithm = l.Kind.String()
	}
	switch {
	case r.ByPeriod:
		out.Period = rules.FormatDuration(l.Period)
	case r.Multiplier > 1:
		out.UnitMultiplier = r.Multiplier
		fallthrough
	default:
		out.Unit = strings.ToLower(r.Unit.String())
	}
	if l.Kind == algorithm.GCRA {
		out.Burst = &l.Burst
	}
	if l.MinInterval > 0 {
		out.MinInterval = rules.FormatDuration(l.MinInterval)
	}
	if l.CountBlocked != rules.CountsBlocked(l.Kind) {
		out.CountBlocked = &l.CountBlocked
	}
	if r.Fallback != backend.FallbackError {
		out.OnStoreFailure = r.Fallback.String()
	}
}
