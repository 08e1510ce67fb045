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

	value     func(*Rule) any    // the value as rule files have it; nil for the default
	isInLine  bool               // Rule.String has the value
	isWindow  bool               // it tells the window
	words     func(*Rule) string // what LimitInWords adds; nil for nothing
	isInShort bool               // LimitText has words, too
}

// windowAlgorithms are the algorithms that have a window.
var windowAlgorithms = []algorithm.Kind{
	algorithm.FixedWindow, algorithm.FirstHitWindow, algorithm.SlidingWindow, algorithm.SlidingWindowCounter,
	algorithm.GCRA,
}

// These complete the problems of concurrency.
const (
	noWindow    = ", which has no window"
	noWindowFix = "remove it, or use an algorithm that has a window"
)

// Settings are all settings of a rate_limit, in the order in which they are written.
var Settings = []Setting{
	{Name: "unlimited", InWords: true, value: func(r *Rule) any { return when(r.Unlimited, true) }},
	{Name: "algorithm", ExcludesUnlimited: true, isInLine: true, value: func(r *Rule) any {
		return when(!r.Unlimited && r.Limit.Kind != algorithm.FixedWindow, r.Limit.Kind.String())
	}},
	{
		Name: "unit", Algorithms: windowAlgorithms, WhyOthersLack: noWindow, OthersFix: noWindowFix, InWords: true,
		isWindow: true,
		value:    func(r *Rule) any { return when(r.hasUnit(), strings.ToLower(r.Unit.String())) },
	},
	{
		Name: "unit_multiplier", Algorithms: windowAlgorithms, WhyOthersLack: noWindow, OthersFix: noWindowFix, InWords: true,
		isWindow: true,
		value:    func(r *Rule) any { return when(r.hasUnit() && r.UnitMultiplier > 1, r.UnitMultiplier) },
	},
	{
		Name: "period", ExcludesUnlimited: true, Algorithms: windowAlgorithms, WhyOthersLack: noWindow,
		OthersFix: noWindowFix,
		InWords:   true, isInLine: true, isWindow: true,
		value: func(r *Rule) any { return when(!r.Unlimited && r.HasPeriod, FormatDuration(r.Limit.Period)) },
	},
	{
		Name: "calendar", ExcludesUnlimited: true, Algorithms: []algorithm.Kind{algorithm.FixedWindow}, InWords: true,
		isInLine: true, isWindow: true,
		value: func(r *Rule) any { return when(r.Limit.Calendar != nil, true) },
	},
	{
		Name: "time_zone", ExcludesUnlimited: true, Needs: "calendar: true", NeedsFix: "calendar: true", InWords: true,
		isInLine: true, isWindow: true,
		value: func(r *Rule) any {
			zone := r.calendar().Location
			return when(zone != nil && zone != time.UTC, zone.String())
		},
	},
	{
		Name: "anchor_day", ExcludesUnlimited: true, Needs: "calendar: true", NeedsFix: "calendar: true", InWords: true,
		isInLine: true, isWindow: true,
		value: func(r *Rule) any { return when(r.calendar().AnchorDay > 1, r.calendar().AnchorDay) },
	},
	{
		Name: "week_starts", ExcludesUnlimited: true, Needs: "calendar: true", NeedsFix: "calendar: true", InWords: true,
		isInLine: true, isWindow: true,
		value: func(r *Rule) any {
			c := r.calendar()
			return when(c.Unit == algorithm.CalendarWeek && c.WeekStarts != time.Monday, strings.ToLower(c.WeekStarts.String()))
		},
	},
	{Name: "requests_per_unit", InWords: true, value: func(r *Rule) any {
		return when(!r.Unlimited && r.LimitsFile == nil || r.ListSettings != nil && r.Requests > 0, r.RequestsPerUnit())
	}},
	{
		Name: "burst", ExcludesUnlimited: true, Algorithms: []algorithm.Kind{algorithm.GCRA}, InWords: true, isInLine: true,
		value: func(r *Rule) any {
			return when(!r.Unlimited && r.LimitsFile == nil && r.Limit.Kind == algorithm.GCRA, r.Limit.Burst)
		},
		words: func(r *Rule) string {
			if r.Limit.Kind != algorithm.GCRA {
				return ""
			}
			return fmt.Sprintf(", %d at once", r.Limit.Capacity())
		},
	},
	{
		Name: "min_interval", ExcludesUnlimited: true, ExcludesHold: true,
		Algorithms: []algorithm.Kind{algorithm.SlidingWindow, algorithm.GCRA},
		InWords:    true, isInLine: true,
		value: func(r *Rule) any {
			return when(!r.Unlimited && r.Limit.MinInterval > 0, FormatDuration(r.Limit.MinInterval))
		},
		words: func(r *Rule) string {
			if r.Limit.MinInterval == 0 {
				return ""
			}
			return fmt.Sprintf(", %s apart", FormatDuration(r.Limit.MinInterval))
		},
	},
	{
		Name: "count_blocked", ExcludesUnlimited: true, Algorithms: windowAlgorithms,
		WhyOthersLack: ": a refused hit holds nothing", OthersFix: "remove it",
		InWords: true, isInLine: true,
		value: func(r *Rule) any {
			return when(!r.Unlimited && r.Limit.CountBlocked != CountsBlockedByDefault(&r.Limit), r.Limit.CountBlocked)
		},
		words: func(r *Rule) string {
			switch {
			case r.Unlimited, r.Limit.CountBlocked == CountsBlockedByDefault(&r.Limit):
				return ""
			case r.Limit.CountBlocked:
				return ", refused hits count"
			}
			return ", refused hits do not count"
		},
	},
	{
		Name: "hold", ExcludesUnlimited: true, isInLine: true, isInShort: true,
		value: func(r *Rule) any { return when(r.Limit.Hold > 0, FormatDuration(r.Limit.Hold)) },
		words: func(r *Rule) string {
			switch {
			case r.Limit.Hold == 0, r.Limit.Kind == algorithm.Concurrency:
				// A concurrency is nothing but holds, which its number tells.
				return ""
			case r.Limit.ReleaseUnsettled:
				return ", reservations released after " + FormatDuration(r.Limit.Hold)
			}
			return ", reservations charged after " + FormatDuration(r.Limit.Hold)
		},
	},
	{
		Name: "hold_id", ExcludesUnlimited: true, Needs: "hold", NeedsFix: "hold: <duration>", isInLine: true,
		value: func(r *Rule) any { return when(r.Limit.Hold > 0, r.HoldIDKey) },
	},
	{
		Name: "unsettled", ExcludesUnlimited: true, Needs: "hold", NeedsFix: "hold: <duration>", isInLine: true,
		Algorithms: windowAlgorithms, WhyOthersLack: ", which always releases holds that expire", OthersFix: "remove it",
		value: func(r *Rule) any { return when(r.Limit.ReleaseUnsettled, "release") },
	},
	{Name: "on_store_failure", ExcludesUnlimited: true, isInLine: true, value: func(r *Rule) any {
		return when(!r.Unlimited && r.Fallback != backend.FallbackError, r.Fallback.String())
	}},
	{
		Name: "enforce_percent", ExcludesUnlimited: true, InWords: true, isInLine: true, isInShort: true,
		value: func(r *Rule) any { return when(r.Enforcement != nil, r.EnforcePercent()) },
		words: func(r *Rule) string {
			if r.Enforcement == nil {
				return ""
			}
			return ", enforced for " + FormatPercent(r.EnforcePercent()) + "% of counters"
		},
	},
	{Name: "name", value: func(r *Rule) any { return when(r.Name != "", r.Name) }},
	{Name: "replaces", value: func(r *Rule) any { return when(len(r.Replaces) > 0, r.Replaces) }},
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

// calendar returns the calendar of r; the zero value if it has none.
func (r *Rule) calendar() algorithm.CalendarSpec {
	if r.Limit.Calendar == nil {
		return algorithm.CalendarSpec{}
	}
	return r.Limit.Calendar.Spec()
}

// LimitSettings yields the keys and values of the limit as rule files have them, without settings that have their
// default. Values are string, int, uint32, uint64, float64, bool or []string.
func (r *Rule) LimitSettings() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for i := range Settings {
			if value := Settings[i].value(r); value != nil && !yield(Settings[i].Name, value) {
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
				if value := s.value(r); value != nil {
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
		if s := &Settings[i]; s.words != nil && s.isInShort == inShort {
			words += s.words(r)
		}
	}
	return words
}

// IsFor reports whether the setting means something to an algorithm.
func (s *Setting) IsFor(kind algorithm.Kind) bool {
	return len(s.Algorithms) == 0 || slices.Contains(s.Algorithms, kind)
}
