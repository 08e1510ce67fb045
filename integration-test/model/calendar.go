package model

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // so that every machine knows the zones
)

// Calendar is where the windows of a limit begin. The zero value is no calendar.
type Calendar struct {
	Unit   string // day, week, month or year
	Units  int
	Zone   string // time_zone
	Anchor int    // anchor_day, of months
	Starts string // week_starts, of weeks
}

// String is the calendar as a script has it, behind the limit.
func (c Calendar) String() string {
	text := fmt.Sprintf("%d%s zone %s", c.Units, c.Unit, c.Zone)
	switch c.Unit {
	case "month":
		text += fmt.Sprintf(" anchor %d", c.Anchor)
	case "week":
		text += " starts " + c.Starts
	}
	return text
}

// weekdays are the values of week_starts.
var weekdays = []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}

// yaml is the calendar as fields of a rate_limit.
func (c Calendar) yaml() string {
	text := fmt.Sprintf("calendar: true, unit: %s, unit_multiplier: %d, time_zone: %s", c.Unit, c.Units, c.Zone)
	switch c.Unit {
	case "month":
		text += fmt.Sprintf(", anchor_day: %d", c.Anchor)
	case "week":
		text += ", week_starts: " + c.Starts
	}
	return text
}

// date is a day of the calendar, as a number that grows from day to day.
func date(year int, month time.Month, day int) int { return (year*12+int(month))*31 + day }

// border is the first instant of a day: the clocks of a zone may jump over midnight, or show it twice. In no zone that
// is tried here they show a day, an earlier one and then the first one again.
func border(day time.Time, zone *time.Location) time.Time {
	want := date(day.Date())
	at := time.Date(day.Year(), day.Month(), day.Day()-1, 12, 0, 0, 0, zone)
	for date(at.Date()) < want {
		at = at.Add(15 * time.Minute) // no zone jumps by less
	}
	return at
}

// first is the day on which the window begins that some day is in; both are midnights of UTC.
func (c Calendar) first(day time.Time) time.Time {
	utc := func(year int, month time.Month, day int) time.Time {
		return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	}
	switch c.Unit {
	case "day", "week":
		origin, length := utc(1970, time.January, 1), c.Units
		if c.Unit == "week" {
			length *= 7
			for !strings.EqualFold(origin.Weekday().String(), c.Starts) {
				origin = origin.AddDate(0, 0, 1)
			}
		}
		passed := int(day.Sub(origin).Hours() / 24)
		return day.AddDate(0, 0, -(passed % length))
	case "month":
		at := utc(day.Year(), day.Month(), c.Anchor)
		for at.After(day) || (at.Year()*12+int(at.Month())-1)%c.Units != 0 {
			at = at.AddDate(0, -1, 0)
		}
		return at
	}
	return utc(day.Year()-day.Year()%c.Units, time.January, 1)
}

// next is the day on which the window after it begins.
func (c Calendar) next(first time.Time) time.Time {
	switch c.Unit {
	case "day":
		return first.AddDate(0, 0, c.Units)
	case "week":
		return first.AddDate(0, 0, 7*c.Units)
	case "month":
		return first.AddDate(0, c.Units, 0)
	}
	return first.AddDate(c.Units, 0, 0)
}

// bounds are where the window around an instant begins and ends, in nanoseconds since Start.
func (c Calendar) bounds(at int64) (from, to int64) {
	zone, err := time.LoadLocation(c.Zone)
	if err != nil {
		panic(err) // Parse refuses such a zone
	}
	since := func(day time.Time) int64 { return int64(border(day, zone).Sub(Start)) }
	year, month, day := Start.Add(time.Duration(at)).In(zone).Date()
	first := c.first(time.Date(year, month, day, 0, 0, 0, 0, time.UTC))
	return since(first), since(c.next(first))
}
