package algorithm

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync/atomic"
	"time"
)

// CalendarUnit is a unit of windows that begin on borders of a calendar.
type CalendarUnit uint8

// The units of calendars.
const (
	CalendarDay CalendarUnit = iota
	CalendarWeek
	CalendarMonth
	CalendarYear

	numCalendarUnits
)

var calendarUnits = [numCalendarUnits]struct {
	name  string
	units int // how many of them 100 years have.
}{{"day", 36500}, {"week", 5214}, {"month", 1216}, {"year", 100}}

// String returns the name that rule files use: "day".
func (u CalendarUnit) String() string {
	if u < numCalendarUnits {
		return calendarUnits[u].name
	}
	return fmt.Sprintf("calendar unit %d", uint8(u))
}

// MaxAnchorDay is the largest CalendarSpec.AnchorDay, a day that every month has.
const MaxAnchorDay = 28

// CalendarSpec says where the windows of a calendar begin.
type CalendarSpec struct {
	Unit CalendarUnit
	// Units is the length of a window in units, 1 to 100 years. Windows of several units are counted from a fixed day, so
	// that all replicas agree: days from 1970-01-01, weeks from the first WeekStarts on or after 1970-01-01, months from
	// January of the year 0 (so 3 months are a quarter, and 12 months a year), years from the year 0 (so 10 years are a
	// decade).
	Units int
	// AnchorDay is the day of the month on which windows of months begin, 1 to MaxAnchorDay. It is 0 for other units.
	AnchorDay int
	// WeekStarts is the day on which windows of weeks begin. It is Sunday, the zero value, for other units.
	WeekStarts time.Weekday
	// Location is the time zone; required.
	Location *time.Location
}

// Calendar divides time into windows that begin with the first instant of a local day. It is safe for concurrent use.
//
// The first instant of a day is the first one whose local date is that day or a later one. So the border is defined if
// midnight does not exist (a day starts at 01:00 then), if midnight exists twice (the day starts at the first one), and
// if a time zone leaves out a day (the window of this day is empty, and its neighbours touch).
//
// A zero Calendar is not valid; use NewCalendar.
type Calendar struct {
	spec CalendarSpec
	name string
	id   uint64
	// lastWindow is the window that the last call of Bounds computed. It saves the computation in the time zone as long as
	// that window lasts.
	lastWindow atomic.Pointer[calendarWindow]
}

// calendarWindow is a window in nanoseconds since the Unix epoch.
type calendarWindow struct{ start, end int64 }

// NewCalendar returns the calendar of spec. Its errors tell the author of the rule what is wrong.
func NewCalendar(spec CalendarSpec) (*Calendar, error) {
	switch {
	case spec.Unit >= numCalendarUnits:
		return nil, fmt.Errorf("algorithm: %v is not known", spec.Unit)
	case spec.Units < 1 || spec.Units > calendarUnits[spec.Unit].units:
		return nil, fmt.Errorf("algorithm: a calendar window has 1 to %d %vs, got %d", calendarUnits[spec.Unit].units,
			spec.Unit, spec.Units)
	case spec.Unit == CalendarMonth && (spec.AnchorDay < 1 || spec.AnchorDay > MaxAnchorDay):
		return nil, fmt.Errorf("algorithm: the anchor day of a month is 1 to %d, got %d", MaxAnchorDay, spec.AnchorDay)
	case spec.Unit != CalendarMonth && spec.AnchorDay != 0:
		return nil, fmt.Errorf("algorithm: a calendar of %vs has no anchor day", spec.Unit)
	case spec.WeekStarts < time.Sunday || spec.WeekStarts > time.Saturday:
		return nil, fmt.Errorf("algorithm: %v is no day of the week", spec.WeekStarts)
	case spec.Unit != CalendarWeek && spec.WeekStarts != time.Sunday:
		return nil, fmt.Errorf("algorithm: a calendar of %vs has no first day of the week", spec.Unit)
	case spec.Location == nil:
		return nil, errors.New("algorithm: a calendar without a time zone")
	}
	c := &Calendar{spec: spec, name: fmt.Sprintf("%d%v/", spec.Units, spec.Unit)}
	switch spec.Unit {
	case CalendarWeek:
		c.name += strings.ToLower(spec.WeekStarts.String()) + "/"
	case CalendarMonth:
		c.name += fmt.Sprintf("%d/", spec.AnchorDay)
	}
	c.name += spec.Location.String()
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(c.name)) // A hash never fails.
	c.id = hash.Sum64()
	return c, nil
}

// Spec returns what NewCalendar was called with.
func (c *Calendar) Spec() CalendarSpec { return c.spec }

// String returns the name of the calendar, which keys of counters have: "3month/15/Europe/Berlin", "2week/monday/UTC",
// "1day/UTC". Equal calendars have equal names.
func (c *Calendar) String() string { return c.name }

// ID returns a hash of the name, which is the same in all processes; 0 for nil.
func (c *Calendar) ID() uint64 {
	if c == nil {
		return 0
	}
	return c.id
}

// Bounds returns the start and the end of the window that contains the instant at, in nanoseconds since the Unix epoch:
// start <= at < end. The instant must be between the years 1970 and 2150; see IsValidInstant. Bounds allocates nothing
// and computes nothing in the time zone while at stays in the window of the last call.
func (c *Calendar) Bounds(at int64) (start, end int64) {
	w := c.lastWindow.Load()
	if w == nil || at < w.start || at >= w.end {
		w = c.windowAt(at)
		c.lastWindow.Store(w)
	}
	return w.start, w.end
}

// windowAt computes the window that contains at. Around a border the local date can step back; so the instant decides,
// and not its local date.
func (c *Calendar) windowAt(at int64) *calendarWindow {
	border := func(index int) int64 { return firstInstant(c.firstDay(index), c.spec.Location) * int64(time.Second) }
	_, offset := time.Unix(0, at).In(c.spec.Location).Zone()
	index := c.indexOf(floorDiv(int(floorDiv(at, int64(time.Second)))+offset, secondsPerDay))
	for border(index) > at {
		index--
	}
	for border(index+1) <= at {
		index++
	}
	return &calendarWindow{border(index), border(index + 1)}
}

// indexOf returns the number of the window that a local day is in. day counts from 1970-01-01.
func (c *Calendar) indexOf(day int) int {
	switch c.spec.Unit {
	case CalendarDay:
		return floorDiv(day, c.spec.Units)
	case CalendarWeek:
		return floorDiv(day-c.firstWeek(), 7*c.spec.Units)
	}
	year, month, dayOfMonth := time.Unix(int64(day)*secondsPerDay, 0).UTC().Date()
	if c.spec.Unit == CalendarYear {
		return floorDiv(year, c.spec.Units)
	}
	months := year*12 + int(month-time.January)
	if dayOfMonth < c.spec.AnchorDay {
		months--
	}
	return floorDiv(months, c.spec.Units)
}

// firstDay returns the day, counted from 1970-01-01, on which the window with this number begins.
func (c *Calendar) firstDay(index int) int {
	units := index * c.spec.Units
	switch c.spec.Unit {
	case CalendarDay:
		return units
	case CalendarWeek:
		return units*7 + c.firstWeek()
	case CalendarMonth:
		return dayNumber(0, time.January+time.Month(units), c.spec.AnchorDay)
	}
	return dayNumber(units, time.January, 1)
}

// firstWeek returns the first day on or after 1970-01-01, a Thursday, on which a week starts, counted from 1970-01-01.
func (c *Calendar) firstWeek() int { return int(c.spec.WeekStarts-time.Thursday+7) % 7 }

const secondsPerDay = 24 * 60 * 60

// dayNumber returns the days from 1970-01-01 to a date. A month beyond December is one of a later year.
func dayNumber(year int, month time.Month, dayOfMonth int) int {
	return int(time.Date(year, month, dayOfMonth, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay)
}

// maxZoneOffset is more than any time zone ever differed from UTC, in seconds.
const maxZoneOffset = 27 * 60 * 60

// firstInstant returns the first instant whose local date is the day, or a later one. day counts from 1970-01-01, and
// the result is in seconds since the Unix epoch.
//
// time.Date does not say which instant it returns for a local time that exists twice or not at all. Between two changes
// of the offset, however, the local time only runs forward. So firstInstant looks into one such span after the other.
func firstInstant(day int, zone *time.Location) int64 {
	midnight := int64(day) * secondsPerDay // of UTC.
	t := time.Unix(midnight-maxZoneOffset, 0).In(zone)
	for {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		// So it is on 31 December of leap years: package time takes them for a day shorter.
		if !end.IsZero() && !end.After(t) {
			end = t.Add(time.Hour)
		}
		first := max(t.Unix(), midnight-int64(offset))
		if end.IsZero() || first < end.Unix() {
			return first
		}
		t = end
	}
}

// floorDiv returns a/b, rounded down. b must be positive.
func floorDiv[T int | int64](a, b T) T {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
