package compile

import (
	_ "embed" // for the names of the time zones
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // time zones for hosts that have none

	"ratelimit/src/rules"

	"ratelimit/src/algorithm"
	"ratelimit/src/settings/nearest"
)

//go:embed zones.txt
var zonesText string

// zoneNames are the names of time zones that rules may have, sorted: those of the IANA database that the binary has.
var zoneNames = strings.Fields(zonesText)

// calendarUnits are the units that calendars have.
var calendarUnits = map[rules.Unit]algorithm.CalendarUnit{
	rules.UnitDay: algorithm.CalendarDay, rules.UnitWeek: algorithm.CalendarWeek, rules.UnitMonth: algorithm.CalendarMonth,
	rules.UnitYear: algorithm.CalendarYear,
}

// compileCalendar returns the calendar of a limit; nil if it has none, or if there is a problem. The unit of r is set.
func (c *limitCompiler) compileCalendar(r *rules.Rule, cfg *RateLimitConfig, kind algorithm.Kind) *algorithm.Calendar {
	at := cfg.Calendar
	if at == nil || !at.Value {
		return nil
	}
	problems := len(c.problems)
	unit, isCalendarUnit := calendarUnits[r.Unit]
	switch {
	case kind != algorithm.FixedWindow: // checkSettings has reported it.
	case cfg.Period != nil:
		c.problems.Add(at.Pos, "write `unit: day`, week, month or year instead of the period",
			"period and calendar exclude each other")
		isCalendarUnit = false
	case r.Unit == rules.UnitUnknown: // windowLength has reported it.
	case !isCalendarUnit:
		c.problems.Add(at.Pos, "write `unit: day`, week, month or year, or remove it",
			"calendar means nothing to the unit %s", strings.ToLower(r.Unit.String()))
	}
	spec := algorithm.CalendarSpec{Unit: unit, Units: int(r.UnitMultiplier), Location: c.parseTimeZone(cfg.TimeZone)}
	if isCalendarUnit {
		spec.AnchorDay, spec.WeekStarts = c.parseAnchorDay(cfg.AnchorDay, unit), c.parseWeekStarts(cfg.WeekStarts, unit)
	}
	if calendar := c.shared.calendars[spec]; calendar != nil || len(c.problems) > problems {
		return calendar
	}
	calendar, err := algorithm.NewCalendar(spec)
	if err != nil {
		return nil // A unit_multiplier of 0 or above 100 years, which windowLength has reported.
	}
	c.shared.calendars[spec] = calendar
	return calendar
}

// parseTimeZone returns the time zone with the name v, and UTC if v is nil.
func (c *limitCompiler) parseTimeZone(v *Positioned[string]) *time.Location {
	if v == nil {
		return time.UTC
	}
	if zone := c.shared.zones[v.Value]; zone != nil {
		return zone
	}
	if _, known := slices.BinarySearch(zoneNames, v.Value); !known {
		fix := "write an IANA name such as Europe/Berlin, or remove it for UTC"
		if near := nearestZone(v.Value); near != "" {
			fix = "did you mean `" + near + "`?"
		}
		c.problems.Add(v.Pos, fix, "the time zone %s is not known", rules.Quote(v.Value))
		return nil
	}
	zone, err := time.LoadLocation(v.Value)
	if err != nil {
		c.problems.Add(v.Pos, "repair the zone data of this host, or remove it: the program has its own",
			"cannot read the time zone %s: %v", rules.Quote(v.Value), err)
		return nil
	}
	c.shared.zones[v.Value] = zone
	return zone
}

// nearestZone returns the name of the time zone that was probably meant; empty if no name is near. A city alone is
// near: "berlin" means "Europe/Berlin".
func nearestZone(name string) string {
	wanted := strings.ReplaceAll(strings.ToLower(name), " ", "_")
	lower := strings.Fields(strings.ToLower(zonesText))
	if i := slices.Index(lower, wanted); i >= 0 {
		return zoneNames[i]
	}
	if i := slices.IndexFunc(lower, func(zone string) bool { return strings.HasSuffix(zone, "/"+wanted) }); i >= 0 {
		return zoneNames[i]
	}
	if i := slices.Index(lower, nearest.Word(wanted, lower)); i >= 0 {
		return zoneNames[i]
	}
	return ""
}

func (c *report) parseAnchorDay(v *Positioned[uint32], unit algorithm.CalendarUnit) int {
	switch {
	case unit != algorithm.CalendarMonth && v == nil:
		return 0
	case unit != algorithm.CalendarMonth:
		c.problems.Add(v.Pos, "write `unit: month`, or remove it", "anchor_day means nothing to the unit %v", unit)
		return 0
	case v == nil:
		return 1
	case v.Value < 1 || v.Value > algorithm.MaxAnchorDay:
		c.problems.Add(v.Pos, "write 1 to 28; not every month has a later day", "anchor_day is out of range: \"%d\"", v.Value)
	}
	return int(v.Value)
}

var weekdayNames = []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}

func (c *report) parseWeekStarts(v *Positioned[string], unit algorithm.CalendarUnit) time.Weekday {
	switch {
	case unit != algorithm.CalendarWeek && v == nil:
		return 0
	case unit != algorithm.CalendarWeek:
		c.problems.Add(v.Pos, "write `unit: week`, or remove it", "week_starts means nothing to the unit %v", unit)
		return 0
	case v == nil:
		return time.Monday
	}
	day := slices.Index(weekdayNames, strings.ToLower(v.Value))
	if day < 0 {
		c.problems.Add(v.Pos, rules.SuggestFix(v.Value, weekdayNames, "write "+rules.JoinWithOr(weekdayNames)),
			"the day of the week %s is not known", rules.Quote(v.Value))
	}
	return time.Weekday(max(day, 0))
}
