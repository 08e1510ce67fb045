package rules

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// String is the line of /rlconfig: envoyproxy/ratelimit's format, and behind it
// what that does not know, where it is there.
func (r *Rule) String() string {
	limit := fmt.Sprintf("unit=%s requests_per_unit=%d", r.Unit, r.perUnit())
	if r.Unlimited {
		limit = "unlimited"
	}
	s := fmt.Sprintf("%s: %s, shadow_mode: %t, quota_mode: %t", r.Key, limit, r.Shadow, r.Quota)
	if r.Unlimited && r.Listed != nil && r.Requests > 0 { // divvy's clients are told of it
		s += fmt.Sprintf(", requests_per_unit: %d", r.Requests)
	}
	if r.Multiplier > 1 {
		s += fmt.Sprintf(", unit_multiplier: %d", r.Multiplier)
	}
	if !r.Unlimited {
		s += r.window()
	}
	if r.along {
		s += ", charge: path"
	}
	if r.AllOrNone {
		s += ", on_reject: none"
	}
	if l := r.Listed; l != nil {
		s += fmt.Sprintf(", match: {%s}", r.Operation())
		if len(l.Per) > 0 {
			s += fmt.Sprintf(", per: [%s]", strings.Join(l.Per, ", "))
		}
	}
	return s
}

// Operation is what a rule of an ordered list matches by, sorted by key, as
// divvy writes it: "ip=* method=GET"; empty for one that matches everything.
func (r *Rule) Operation() string {
	if r.Listed == nil {
		return ""
	}
	parts := make([]string, len(r.Listed.Match))
	for i, p := range r.Listed.Match {
		parts[i] = p.Key + "=" + p.Pattern
	}
	return strings.Join(parts, " ")
}

func (r *Rule) window() (s string) {
	l := &r.Limit
	if r.byPeriod {
		s = ", period: " + shown(l.Period)
	}
	if l.Kind != algorithm.FixedWindow {
		s += fmt.Sprintf(", algorithm: %v", l.Kind)
	}
	if l.Kind == algorithm.GCRA {
		s += fmt.Sprintf(", burst: %d", l.Burst)
	}
	if l.MinInterval > 0 {
		s += ", min_interval: " + shown(l.MinInterval)
	}
	if l.CountBlocked != countBlocked(l.Kind) {
		s += fmt.Sprintf(", count_blocked: %t", l.CountBlocked)
	}
	if r.Fallback != backend.FallbackError {
		s += fmt.Sprintf(", on_store_failure: %v", r.Fallback)
	}
	return s
}

// perUnit is requests_per_unit, where Requests is what callers are told.
func (r *Rule) perUnit() uint32 {
	if r.Limit.Kind == algorithm.GCRA {
		return uint32(r.Limit.Max)
	}
	return r.Requests
}

// Words is the limit for people: "2 per minute", "10 per minute, 4 at once". It
// is what the file says, where callers may be told something else.
func (r *Rule) Words() string {
	if r.Unlimited {
		return "unlimited"
	}
	per := r.Quantity.per()
	if r.byPeriod {
		per = shown(r.Limit.Period)
	}
	s := fmt.Sprintf("%d per %s", r.perUnit(), per)
	l := &r.Limit
	if l.Kind == algorithm.GCRA {
		s += fmt.Sprintf(", %d at once", l.Capacity())
	}
	if l.MinInterval > 0 {
		s += fmt.Sprintf(", %s apart", shown(l.MinInterval))
	}
	switch {
	case l.CountBlocked == countBlocked(l.Kind):
	case l.CountBlocked:
		s += ", refused hits count"
	default:
		s += ", refused hits do not count"
	}
	return s
}

// Words is the limit for people.
func (q Quantity) Words() string { return fmt.Sprintf("%d per %s", q.Requests, q.per()) }

// per is the window for people: "minute", "5 minutes".
func (q Quantity) per() string {
	unit := strings.ToLower(q.Unit.String())
	if q.Multiplier > 1 {
		return fmt.Sprintf("%d %ss", q.Multiplier, unit)
	}
	return unit
}

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

// YAML writes a list of all rules with everything that is known of each, in file order. It holds
// a few rules in memory at a time. The error is that of w.
func (s *Set) YAML(w io.Writer) error {
	if len(s.rules) == 0 {
		_, err := io.WriteString(w, "[]\n")
		return err
	}
	for part := range slices.Chunk(s.rules, 100) {
		list := make([]ruleYAML, len(part))
		for i, r := range part {
			list[i] = r.yaml()
		}
		enc := yaml.NewEncoder(w) // one of its own, which writes nothing between two lists
		enc.SetIndent(2)
		if err := enc.Encode(list); err != nil {
			return fmt.Errorf("rules: %w", err)
		}
	}
	return nil
}

func (r *Rule) yaml() ruleYAML {
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
		r.limitYAML(&out.RateLimit)
	} else if r.Listed != nil && r.Requests > 0 {
		out.RateLimit.RequestsPerUnit = &r.Requests
	}
	if r.along {
		out.Charge = "path"
	}
	if r.AllOrNone {
		out.OnReject = "none"
	}
	return out
}

func (r *Rule) limitYAML(out *limitYAML) {
	perUnit := r.perUnit()
	out.RequestsPerUnit = &perUnit
	l := &r.Limit
	if l.Kind != algorithm.FixedWindow {
		out.Algorithm = l.Kind.String()
	}
	switch {
	case r.byPeriod:
		out.Period = shown(l.Period)
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
		out.MinInterval = shown(l.MinInterval)
	}
	if l.CountBlocked != countBlocked(l.Kind) {
		out.CountBlocked = &l.CountBlocked
	}
	if r.Fallback != backend.FallbackError {
		out.OnStoreFailure = r.Fallback.String()
	}
}
