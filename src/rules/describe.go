package rules

import (
	"fmt"
	"strings"

	"ratelimit/src/algorithm"
)

// String returns the rule's line in /rlconfig: envoyproxy/ratelimit's format, and behind it the settings that
// envoyproxy/ratelimit has not.
func (r *Rule) String() string {
	limit := fmt.Sprintf("unit=%s requests_per_unit=%d", r.Unit, r.RequestsPerUnit())
	if r.Unlimited {
		limit = "unlimited"
	} else if f := r.LimitsFile; f != nil {
		limit = fmt.Sprintf("unit=%s limits_from=%s (%d values, %d limits)", r.Unit, f.Path, f.Table.Len(),
			len(f.Table.Limits()))
	}
	s := fmt.Sprintf("%s: %s, shadow_mode: %t, quota_mode: %t", r.FullName, limit, r.ShadowMode, r.QuotaMode)
	if r.Unlimited && r.ListSettings != nil && r.Requests > 0 { // Answers to divvy's clients have this number.
		s += fmt.Sprintf(", requests_per_unit: %d", r.Requests)
	}
	if r.UnitMultiplier > 1 {
		s += fmt.Sprintf(", unit_multiplier: %d", r.UnitMultiplier)
	}
	s += r.settingsInLine()
	if r.HasChargePath {
		s += ", charge: path"
	}
	if r.ChargesAllOrNone {
		s += ", on_reject: none"
	}
	if l := r.ListSettings; l != nil {
		s += fmt.Sprintf(", match: {%s}", r.DivvyOperation())
		if len(l.PerKeys) > 0 {
			s += fmt.Sprintf(", per: [%s]", strings.Join(l.PerKeys, ", "))
		}
	}
	return s
}

// DivvyOperation returns the match of a rule of an ordered list, sorted by key, in divvy's form: "ip=* method=GET". It
// is empty for other rules and for a rule that matches everything.
func (r *Rule) DivvyOperation() string {
	if r.ListSettings == nil {
		return ""
	}
	parts := make([]string, len(r.ListSettings.MatchPairs))
	for i, p := range r.ListSettings.MatchPairs {
		parts[i] = p.Key + "=" + p.Pattern
	}
	return strings.Join(parts, " ")
}

// RequestsPerUnit returns requests_per_unit. In a tree of limits it differs from Requests, which answers show.
func (r *Rule) RequestsPerUnit() uint32 {
	if r.Limit.Kind == algorithm.GCRA {
		return uint32(r.Limit.Max)
	}
	return r.Requests
}

// LimitText returns the limit for people: "10 per minute", "4 at a time, each for at most 30s", "unlimited", "as in
// tenants.csv per hour".
func (r *Rule) LimitText() string {
	l, window, number := &r.Limit, r.Window(), fmt.Sprint(r.RequestsPerUnit())
	if r.LimitsFile != nil {
		number = "as in " + r.Path[len(r.Path)-1].Value()
	}
	switch {
	case r.Unlimited:
		return "unlimited"
	case l.Kind == algorithm.Concurrency:
		return fmt.Sprintf("%s at a time, each for at most %s", number, FormatDuration(l.Hold)) + r.wordsOfSettings(true)
	case l.Calendar != nil:
		window = r.CalendarWindow()
	case r.HasPeriod:
		window = FormatDuration(l.Period)
	}
	return number + " per " + window + r.wordsOfSettings(true)
}

// LimitInWords returns the limit for people with all that decides about a request: "10 per minute, 4 at once".
func (r *Rule) LimitInWords() string { return r.LimitText() + r.wordsOfSettings(false) }

// CalendarWindow returns the window of a limit with a calendar for people, such as "calendar month from day 15 in
// Europe/Berlin" or "2 calendar days in UTC". It returns "" for other limits.
func (r *Rule) CalendarWindow() string {
	if r.Limit.Calendar == nil {
		return ""
	}
	c := r.Limit.Calendar.Spec()
	window := fmt.Sprintf("calendar %v", c.Unit)
	if r.UnitMultiplier > 1 {
		window = fmt.Sprintf("%d calendar %vs", r.UnitMultiplier, c.Unit)
	}
	switch c.Unit {
	case algorithm.CalendarWeek:
		window += " from " + c.WeekStarts.String()
	case algorithm.CalendarMonth:
		window += fmt.Sprintf(" from day %d", c.AnchorDay)
	}
	return window + " in " + c.Location.String()
}

// CountsBlockedByDefault returns the default of count_blocked: as in envoyproxy/ratelimit, refused hits count in a
// fixed window. They never count beside holds.
func CountsBlockedByDefault(l *algorithm.Limit) bool {
	return l.Kind == algorithm.FixedWindow && l.Hold == 0
}
