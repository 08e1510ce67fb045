package rules

import (
	"fmt"
	"iter"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// String returns the rule's line in /rlconfig: envoyproxy/ratelimit's format, followed by settings that envoyproxy/ratelimit lacks.
func (r *Rule) String() string {
	limit := fmt.Sprintf("unit=%s requests_per_unit=%d", r.Unit, r.PerUnit())
	if r.Unlimited {
		limit = "unlimited"
	}
	s := fmt.Sprintf("%s: %s, shadow_mode: %t, quota_mode: %t", r.Key, limit, r.Shadow, r.Quota)
	if r.Unlimited && r.Listed != nil && r.Requests > 0 { // divvy's clients are told this number
		s += fmt.Sprintf(", requests_per_unit: %d", r.Requests)
	}
	if r.Multiplier > 1 {
		s += fmt.Sprintf(", unit_multiplier: %d", r.Multiplier)
	}
	for name, value := range r.Settings() {
		s += fmt.Sprintf(", %s: %v", name, value)
	}
	if r.ChargePath {
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

// Settings yields name and value of each setting of the limit that differs from its default. Names are those of rule files: period,
// algorithm, burst. Values are string, uint64 or bool. Unlimited rules have none.
func (r *Rule) Settings() iter.Seq2[string, any] {
	l := &r.Limit
	settings := [...]struct {
		name  string
		set   bool
		value any
	}{
		{"period", r.ByPeriod, FormatDuration(l.Period)},
		{"algorithm", l.Kind != algorithm.FixedWindow, l.Kind.String()},
		{"burst", l.Kind == algorithm.GCRA, l.Burst},
		{"min_interval", l.MinInterval > 0, FormatDuration(l.MinInterval)},
		{"count_blocked", l.CountBlocked != CountsBlocked(l.Kind), l.CountBlocked},
		{"on_store_failure", r.Fallback != backend.FallbackError, r.Fallback.String()},
	}
	return func(yield func(string, any) bool) {
		for _, s := range settings {
			if s.set && !r.Unlimited && !yield(s.name, s.value) {
				return
			}
		}
	}
}

// Operation returns the match of a rule of an ordered list, sorted by key, in divvy's form: "ip=* method=GET". It is empty for other
// rules and for a rule that matches everything.
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

// PerUnit returns requests_per_unit. In a tree of limits it differs from Requests, which answers show.
func (r *Rule) PerUnit() uint32 {
	if r.Limit.Kind == algorithm.GCRA {
		return uint32(r.Limit.Max)
	}
	return r.Requests
}

// Words returns the limit for people: "2 per minute", "10 per minute, 4 at once".
func (r *Rule) Words() string {
	if r.Unlimited {
		return "unlimited"
	}
	per := r.per()
	if r.ByPeriod {
		per = FormatDuration(r.Limit.Period)
	}
	s := fmt.Sprintf("%d per %s", r.PerUnit(), per)
	l := &r.Limit
	if l.Kind == algorithm.GCRA {
		s += fmt.Sprintf(", %d at once", l.Capacity())
	}
	if l.MinInterval > 0 {
		s += fmt.Sprintf(", %s apart", FormatDuration(l.MinInterval))
	}
	switch {
	case l.CountBlocked == CountsBlocked(l.Kind):
	case l.CountBlocked:
		s += ", refused hits count"
	default:
		s += ", refused hits do not count"
	}
	return s
}

// Words returns the limit for people: "2 per minute".
func (q Quantity) Words() string { return fmt.Sprintf("%d per %s", q.Requests, q.per()) }

// per returns the window for people: "minute", "5 minutes".
func (q Quantity) per() string {
	unit := strings.ToLower(q.Unit.String())
	if q.Multiplier > 1 {
		return fmt.Sprintf("%d %ss", q.Multiplier, unit)
	}
	return unit
}
