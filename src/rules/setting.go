package rules

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Setting is a setting of a rate_limit. Settings declares all of them: readers, checks and descriptions of limits
// follow that list.
type Setting struct {
	Name string // the key in rule files, and the name of the field of xDS
	// ExcludesUnlimited says that the setting cannot be beside `unlimited: true`.
	ExcludesUnlimited bool
	// Algorithms are those that the setting is for; empty for all. WhyOthersLack and OthersFix complete the problem of
	// another algorithm; they may be empty.
	Algorithms               []algorithm.Kind
	WhyOthersLack, OthersFix string
	// Needs is the setting without which this one means nothing, and NeedsFix shows how to write it. Both may be empty.
	Needs, NeedsFix string
	ExcludesHold    bool // not beside `hold`, except for a concurrency, which always has one
	InWords         bool // LimitInWords tells it

	value     func(*Rule) any    // the result of valueOf for a rule that is not unlimited
	isInLine  bool               // Rule.String has the value
	isWindow  bool               // it tells the window
	words     func(*Rule) string // what LimitInWords adds if there is a value; nil for nothing
	isInShort bool               // LimitText has words, too
}

// windowAlgorithms are the algorithms that have a window.
var windowAlgorithms = []algorithm.Kind{
	algorithm.FixedWindow, algorithm.FirstHitWindow, algorithm.SlidingWindow, algorithm.SlidingWindowCounter,
	algorithm.GCRA,
}

// Settings are all settings of a rate_limit, in the order in which they are written.
var Settings = []Setting{
	{Name: "unlimited", InWords: true, value: func(r *Rule) any { return when(r.Unlimited, true) }},
	{Name: "algorithm", ExcludesUnlimited: true, isInLine: true, value: func(r *Rule) any {
		return when(r.Limit.Kind != algorithm.FixedWindow, r.Limit.Kind.String())
	}},
	windowSetting("unit", func(r *Rule) any { return when(r.hasUnit(), strings.ToLower(r.Unit.String())) }),
	windowSetting("unit_multiplier", func(r *Rule) any {
		return when(r.hasUnit() && r.UnitMultiplier > 1, r.UnitMultiplier)
	}),
	periodSetting(),
	{
		Name: "calendar", ExcludesUnlimited: true, Algorithms: []algorithm.Kind{algorithm.FixedWindow}, InWords: true,
		isInLine: true, isWindow: true,
		value: func(r *Rule) any { return when(r.Limit.Calendar != nil, true) },
	},
	calendarSetting("time_zone", func(c algorithm.CalendarSpec) any {
		return when(c.Location != time.UTC, c.Location.String())
	}),
	calendarSetting("anchor_day", func(c algorithm.CalendarSpec) any { return when(c.AnchorDay > 1, c.AnchorDay) }),
	calendarSetting("week_starts", func(c algorithm.CalendarSpec) any {
		return when(c.Unit == algorithm.CalendarWeek && c.WeekStarts != time.Monday, strings.ToLower(c.WeekStarts.String()))
	}),
	{Name: "requests_per_unit", InWords: true, value: func(r *Rule) any {
		return when(!r.Unlimited && r.LimitsFile == nil || r.ListSettings != nil && r.Requests > 0, r.RequestsPerUnit())
	}},
	{
		Name: "burst", ExcludesUnlimited: true, Algorithms: []algorithm.Kind{algorithm.GCRA}, InWords: true, isInLine: true,
		isInShort: true,
		value:     func(r *Rule) any { return when(r.LimitsFile == nil && r.Limit.Kind == algorithm.GCRA, r.Limit.Burst) },
		words:     func(r *Rule) string { return fmt.Sprintf(", %d at once", r.Limit.Capacity()) },
	},
	{
		Name: "min_interval", ExcludesUnlimited: true, ExcludesHold: true,
		Algorithms: []algorithm.Kind{algorithm.SlidingWindow, algorithm.GCRA},
		InWords:    true, isInLine: true,
		value: func(r *Rule) any { return when(r.Limit.MinInterval > 0, FormatDuration(r.Limit.MinInterval)) },
		words: func(r *Rule) string { return fmt.Sprintf(", %s apart", FormatDuration(r.Limit.MinInterval)) },
	},
	{
		Name: "count_blocked", ExcludesUnlimited: true, Algorithms: windowAlgorithms,
		WhyOthersLack: ": a refused hit holds nothing", OthersFix: "remove it",
		InWords: true, isInLine: true,
		value: func(r *Rule) any {
			return when(r.Limit.CountBlocked != CountsBlockedByDefault(&r.Limit), r.Limit.CountBlocked)
		},
		words: func(r *Rule) string {
			if r.Limit.CountBlocked {
				return ", refused hits count"
			}
			return ", refused hits do not count"
		},
	},
	{
		Name: "hold", ExcludesUnlimited: true, isInLine: true, isInShort: true,
		value: func(r *Rule) any { return when(r.HoldIDKey != "", FormatDuration(r.Limit.Hold)) },
		words: func(r *Rule) string {
			switch {
			case r.Limit.Kind == algorithm.Concurrency: // It is nothing but holds, which its number tells.
				return ""
			case r.Limit.ReleaseUnsettled:
				return ", reservations released after " + FormatDuration(r.Limit.Hold)
			}
			return ", reservations charged after " + FormatDuration(r.Limit.Hold)
		},
	},
	{
		Name: "hold_id", ExcludesUnlimited: true, Needs: "hold", NeedsFix: "hold: <duration>", isInLine: true,
		value: func(r *Rule) any { return when(r.HoldIDKey != "", r.HoldIDKey) },
	},
	{
		Name: "unsettled", ExcludesUnlimited: true, Needs: "hold", NeedsFix: "hold: <duration>", isInLine: true,
		Algorithms: windowAlgorithms, WhyOthersLack: ", which always releases holds that expire", OthersFix: "remove it",
		value: func(r *Rule) any { return when(r.HoldIDKey != "" && r.Limit.ReleaseUnsettled, "release") },
	},
	{
		Name: "reserve_on_check", ExcludesUnlimited: true, isInLine: true, isInShort: true, Algorithms: windowAlgorithms,
		WhyOthersLack: ", whose requests name their holds", OthersFix: "remove it",
		value: func(r *Rule) any { return when(r.Reserve != nil, r.Reserve) },
		words: func(r *Rule) string {
			if r.Reserve.Estimate == 0 {
				return ", checks reserve what is learned"
			}
			return fmt.Sprintf(", checks reserve %d", r.Reserve.Estimate)
		},
	},
	{Name: "on_store_failure", ExcludesUnlimited: true, isInLine: true, value: func(r *Rule) any {
		return when(r.Fallback != backend.FallbackError, r.Fallback.String())
	}},
	// WhyNotLeased tells which limits can be leased; all can be exact.
	{Name: "counting", ExcludesUnlimited: true, isInLine: true, value: func(r *Rule) any {
		return when(r.Counting != backend.Exact, r.Counting.String())
	}},
	{
		Name: "on_contention", ExcludesUnlimited: true, isInLine: true,
		Needs: "counting: leased", NeedsFix: "counting: leased",
		value: func(r *Rule) any { return when(r.OnContention != backend.Wait, r.OnContention.String()) },
	},
	{
		Name: "enforce_percent", ExcludesUnlimited: true, InWords: true, isInLine: true, isInShort: true,
		value: func(r *Rule) any { return when(r.Enforcement != nil, r.EnforcePercent()) },
		words: func(r *Rule) string {
			return ", enforced for " + FormatPercent(r.EnforcePercent()) + "% of counters"
		},
	},
	{Name: "notify", ExcludesUnlimited: true, isInLine: true, value: func(r *Rule) any {
		return when(r.Notify != nil, r.Notify)
	}},
	{Name: "name", value: func(r *Rule) any { return when(r.Name != "", r.Name) }},
	{Name: "replaces", value: func(r *Rule) any { return when(len(r.Replaces) > 0, r.Replaces) }},
}

// windowSetting returns a setting that tells the length of the window.
func windowSetting(name string, value func(*Rule) any) Setting {
	return Setting{
		Name: name, Algorithms: windowAlgorithms, WhyOthersLack: ", which has no window",
		OthersFix: "remove it, or use an algorithm that has a window", InWords: true, isWindow: true, value: value,
	}
}

func periodSetting() Setting {
	s := windowSetting("period", func(r *Rule) any { return when(r.HasPeriod, FormatDuration(r.Limit.Period)) })
	s.ExcludesUnlimited, s.isInLine = true, true
	return s
}

// calendarSetting returns a setting that needs a calendar, whose value it has.
func calendarSetting(name string, value func(algorithm.CalendarSpec) any) Setting {
	return Setting{
		Name: name, ExcludesUnlimited: true, Needs: "calendar: true", NeedsFix: "calendar: true", InWords: true,
		isInLine: true, isWindow: true,
		value: func(r *Rule) any {
			if r.Limit.Calendar == nil {
				return nil
			}
			return value(r.Limit.Calendar.Spec())
		},
	}
}

// when returns value if set is true, else nil.
func when(set bool, value any) any {
	if !set {
		return nil
	}
	return value
}

// hasUnit reports whether the window of r is written as a unit.
func (r *Rule) hasUnit() bool {
	return !r.Unlimited && !r.HasPeriod && r.Limit.Kind != algorithm.Concurrency
}

// valueOf returns the value of the setting for r as rule files have it; nil for the default.
func (s *Setting) valueOf(r *Rule) any {
	if r.Unlimited && s.ExcludesUnlimited {
		return nil
	}
	return s.value(r)
}

// LimitSettings yields the keys and values of the limit as rule files have them, without settings that have their
// default. Values are string, int, uint32, uint64, float64, bool, []string, *Notification or
// *Reservation.
func (r *Rule) LimitSettings() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for i := range Settings {
			if value := Settings[i].valueOf(r); value != nil && !yield(Settings[i].Name, value) {
				return
			}
		}
	}
}

// settingsInLine returns the settings that Rule.String appends: those of the window first.
func (r *Rule) settingsInLine() (line string) {
	for _, isWindow := range []bool{true, false} {
		for i := range Settings {
			if s := &Settings[i]; s.isInLine && s.isWindow == isWindow {
				if value := s.valueOf(r); value != nil {
					line += fmt.Sprintf(", %s: %v", s.Name, value)
				}
			}
		}
	}
	return line
}

// wordsOfSettings returns what LimitText adds, if inShort is set, or else what LimitInWords adds to LimitText.
func (r *Rule) wordsOfSettings(inShort bool) (words string) {
	for i := range Settings {
		if s := &Settings[i]; s.words != nil && s.isInShort == inShort && s.valueOf(r) != nil {
			words += s.words(r)
		}
	}
	return words
}

// IsFor reports whether the setting means something to an algorithm.
func (s *Setting) IsFor(kind algorithm.Kind) bool {
	return len(s.Algorithms) == 0 || slices.Contains(s.Algorithms, kind)
}

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
		s += fmt.Sprintf(", match: {%s}", r.MatchText())
		if len(l.PerKeys) > 0 {
			s += fmt.Sprintf(", per: [%s]", strings.Join(l.PerKeys, ", "))
		}
	}
	return s
}

// MatchText returns the match of a rule of an ordered list, sorted by key: "ip=* method=GET". It is empty for other
// rules and for a rule that matches everything.
func (r *Rule) MatchText() string {
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
func (r *Rule) RequestsPerUnit() uint64 {
	if r.Limit.Kind == algorithm.GCRA {
		return r.Limit.Max
	}
	return r.Requests
}

// LimitText returns the limit for people: "10 per minute", "10 per minute, 4 at once", "4 at a time, each for at most
// 30s", "unlimited", "as in tenants.csv per hour".
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

// LimitInWords returns the limit for people with all that decides about a request: "10 per minute, 4 at once, 2s
// apart".
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
