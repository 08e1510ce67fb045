package algorithm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	_ "time/tzdata"
)

// changingZones are time zones with daylight saving or other changes of their offset. Some of them change at midnight
// or skip a day.
var changingZones = []string{
	"Europe/Berlin", "Europe/London", "Europe/Dublin", "Europe/Moscow", "America/New_York", "America/Sao_Paulo",
	"America/Havana", "America/Santiago",
	"America/Asuncion", "America/St_Johns", "America/Caracas", "Asia/Beirut", "Asia/Gaza", "Asia/Tehran", "Asia/Amman",
	"Asia/Pyongyang", "Africa/Cairo",
	"Africa/Casablanca", "Australia/Lord_Howe", "Australia/Sydney", "Pacific/Apia", "Pacific/Kwajalein", "Pacific/Chatham",
	"Antarctica/Troll",
	"Antarctica/Casey", "Atlantic/Azores", "UTC",
}

func zoneOf(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

func calendarOf(t testing.TB, spec CalendarSpec) *Calendar {
	t.Helper()
	c, err := NewCalendar(spec)
	if err != nil {
		t.Fatalf("%+v: %v", spec, err)
	}
	return c
}

// calendarSpec reads the name of a calendar, see Calendar.String.
func calendarSpec(t testing.TB, name string) (spec CalendarSpec) {
	t.Helper()
	window, rest, _ := strings.Cut(name, "/")
	var unit string
	if _, err := fmt.Sscanf(window, "%d%s", &spec.Units, &unit); err != nil {
		t.Fatal(name, err)
	}
	for spec.Unit.String() != unit {
		spec.Unit++
	}
	switch spec.Unit {
	case CalendarMonth:
		var day string
		day, rest, _ = strings.Cut(rest, "/")
		_, _ = fmt.Sscan(day, &spec.AnchorDay)
	case CalendarWeek:
		var day string
		day, rest, _ = strings.Cut(rest, "/")
		for strings.ToLower(spec.WeekStarts.String()) != day {
			spec.WeekStarts++
		}
	}
	spec.Location = zoneOf(t, rest)
	return spec
}

type calendarCase struct{ calendar, at, start, end string }

func TestCalendarBounds(t *testing.T) {
	t.Parallel()
	for _, test := range calendarCases() {
		c := calendarOf(t, calendarSpec(t, test.calendar))
		at, err := time.Parse(time.RFC3339Nano, test.at)
		if err != nil {
			t.Fatal(err)
		}
		start, end := c.Bounds(at.UnixNano())
		shown := func(ns int64) string { return time.Unix(0, ns).In(c.Spec().Location).Format(time.RFC3339Nano) }
		if shown(start) != test.start || shown(end) != test.end {
			t.Errorf("%s at %s: %s to %s, want %s to %s", test.calendar, test.at, shown(start), shown(end), test.start, test.end)
		}
		if l := (&Limit{Period: time.Hour, Calendar: c}); l.WindowStart(end) != start {
			t.Errorf("%s: the window that ends at %s starts at %s", test.calendar, test.end, shown(l.WindowStart(end)))
		}
		if c.String() != test.calendar {
			t.Errorf("%s is called %s", test.calendar, c)
		}
	}
}

func calendarCases() []calendarCase {
	return []calendarCase{
		{"1day/UTC", "2026-03-01T12:00:00Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"},
		{"1day/UTC", "2026-03-01T00:00:00Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"},
		{"1day/UTC", "2026-03-01T23:59:59.999999999Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"},
		// Daylight saving: days of 23, 25 and, on Lord Howe, 23.5 hours.
		{"1day/Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"1day/Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"1day/Australia/Lord_Howe", "2026-10-04T00:00:00Z", "2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00"},
		// Midnight does not exist: the day starts at 01:00.
		{"1day/Asia/Beirut", "2026-03-29T12:00:00Z", "2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"},
		{"1day/America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		{"1day/Africa/Cairo", "2026-04-24T12:00:00Z", "2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"},
		// Midnight exists twice: the day starts at the first one. In Sao Paulo the clocks went from 24:00 to 23:00 of the day
		// before.
		{"1day/America/Havana", "2026-11-01T12:00:00Z", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"1day/America/Sao_Paulo", "2019-02-17T02:30:00Z", "2019-02-16T00:00:00-02:00", "2019-02-17T00:00:00-03:00"},
		// At 00:01 the clocks went back to 23:01. That hour is in the window of the new day, which had begun.
		{"1day/America/St_Johns", "2010-11-07T02:45:00Z", "2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30"},
		{"1day/America/St_Johns", "2010-11-07T02:29:59Z", "2010-11-06T00:00:00-02:30", "2010-11-07T00:00:00-02:30"},
		// Samoa had no 30 December 2011.
		{"1day/Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"1day/Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},

		{"2day/UTC", "1970-01-02T12:00:00Z", "1970-01-01T00:00:00Z", "1970-01-03T00:00:00Z"},
		{"2day/Europe/Berlin", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00+01:00", "1970-01-03T00:00:00+01:00"},
		{"2day/America/New_York", "1970-01-01T00:00:00Z", "1969-12-30T00:00:00-05:00", "1970-01-01T00:00:00-05:00"},
		{"30day/UTC", "1970-01-31T00:00:00Z", "1970-01-31T00:00:00Z", "1970-03-02T00:00:00Z"},

		{"1week/monday/UTC", "2026-11-26T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"},
		{"1week/sunday/UTC", "2026-11-26T12:00:00Z", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"},
		{"1week/saturday/Africa/Cairo", "2026-11-26T12:00:00Z", "2026-11-21T00:00:00+02:00", "2026-11-28T00:00:00+02:00"},
		{"1week/monday/Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-23T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		// Weeks count from the first such day on or after 1970-01-01, a Thursday.
		{"2week/monday/UTC", "1970-01-05T00:00:00Z", "1970-01-05T00:00:00Z", "1970-01-19T00:00:00Z"},
		{"2week/thursday/UTC", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "1970-01-15T00:00:00Z"},
		{"2week/wednesday/UTC", "1970-01-01T00:00:00Z", "1969-12-24T00:00:00Z", "1970-01-07T00:00:00Z"},

		{"1month/1/UTC", "2026-02-10T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"1month/1/UTC", "2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"1month/15/Europe/Berlin", "2026-01-14T22:59:59Z", "2025-12-15T00:00:00+01:00", "2026-01-15T00:00:00+01:00"},
		{"1month/15/Europe/Berlin", "2026-01-14T23:00:00Z", "2026-01-15T00:00:00+01:00", "2026-02-15T00:00:00+01:00"},
		{"1month/28/UTC", "2026-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2026-03-28T00:00:00Z"},
		{"3month/1/UTC", "2026-11-26T00:00:00Z", "2026-10-01T00:00:00Z", "2027-01-01T00:00:00Z"}, // a quarter
		{"3month/15/UTC", "2026-01-14T00:00:00Z", "2025-10-15T00:00:00Z", "2026-01-15T00:00:00Z"},
		{"12month/1/UTC", "2026-11-26T00:00:00Z", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"1216month/1/UTC", "2150-01-01T00:00:00Z", "2128-01-01T00:00:00Z", "2229-05-01T00:00:00Z"},

		{"1year/America/New_York", "2026-01-01T04:59:59Z", "2025-01-01T00:00:00-05:00", "2026-01-01T00:00:00-05:00"},
		// see firstInstant
		{"1day/America/New_York", "2044-12-31T12:00:00Z", "2044-12-31T00:00:00-05:00", "2045-01-01T00:00:00-05:00"},
		{"1year/UTC", "2028-12-31T00:00:00Z", "2028-01-01T00:00:00Z", "2029-01-01T00:00:00Z"},
		{"10year/UTC", "2026-01-01T00:00:00Z", "2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"},
		{"100year/UTC", "1970-01-01T00:00:00Z", "1900-01-01T00:00:00Z", "2000-01-01T00:00:00Z"},
		{"100year/UTC", "2150-01-01T00:00:00Z", "2100-01-01T00:00:00Z", "2200-01-01T00:00:00Z"},
	}
}

// TestFirstInstant compares the first instant of each day of 50 years in all zones with the local dates around it, as
// package time computes them. Near a change of the offset it looks at every minute.
func TestFirstInstant(t *testing.T) {
	t.Parallel()
	for _, name := range changingZones {
		zone := zoneOf(t, name)
		local := func(unix int64) (day, offset int) {
			at := time.Unix(unix, 0).In(zone)
			year, month, dayOfMonth := at.Date()
			_, offset = at.Zone()
			return dayNumber(year, month, dayOfMonth), offset
		}
		changes := 0
		for day := dayNumber(1985, time.January, 1); day < dayNumber(2035, time.January, 1); day++ {
			first := firstInstant(day, zone)
			on, _ := local(first)
			before, _ := local(first - 1)
			if on < day || before >= day {
				t.Fatalf("%s: day %d starts at %d, on day %d; the second before is on day %d", name, day, first, on, before)
			}
			_, earlier := local(first - 26*3600)
			if _, later := local(first + 2*3600); earlier == later {
				continue
			}
			changes++
			for at := first - 26*3600; at < first; at += 60 { // every minute
				if on, _ := local(at); on >= day {
					t.Fatalf("%s: day %d starts at %d, but %d is on day %d", name, day, first, at, on)
				}
			}
		}
		if changes == 0 && zone != time.UTC {
			t.Errorf("%s never changes", name)
		}
	}
}

// TestCalendarProperties takes random windows of 50 years in each zone. The instant is in the window, both ends are
// borders, the neighbours touch it, and each start is the end of the window before.
func TestCalendarProperties(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	from, to := time.Date(1985, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), time.Date(2035, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	for _, name := range changingZones {
		zone := zoneOf(t, name)
		for range 300 {
			spec := CalendarSpec{Unit: CalendarUnit(rnd.IntN(int(numCalendarUnits))), Units: 1 + rnd.IntN(5), Location: zone}
			switch spec.Unit {
			case CalendarMonth:
				spec.AnchorDay = 1 + rnd.IntN(MaxAnchorDay)
			case CalendarWeek:
				spec.WeekStarts = time.Weekday(rnd.IntN(7))
			}
			c := calendarOf(t, spec)
			at := (from+rnd.Int64N(to-from))*int64(time.Second) + rnd.Int64N(int64(time.Second))
			start, end := c.Bounds(at)
			if start > at || end <= at {
				t.Fatalf("%v: %d is not in %d to %d", c, at, start, end)
			}
			for _, border := range []int64{start, end} {
				checkBorder(t, c, border)
			}
			if s, e := c.Bounds(start); s != start || e != end {
				t.Fatalf("%v: the window of the start %d is %d to %d", c, start, s, e)
			}
			if s, e := c.Bounds(end - 1); s != start || e != end {
				t.Fatalf("%v: the window of the last instant before %d is %d to %d", c, end, s, e)
			}
			if s, _ := c.Bounds(end); s != end {
				t.Fatalf("%v: the window after the end %d starts at %d", c, end, s)
			}
			if _, e := c.Bounds(start - 1); e != start {
				t.Fatalf("%v: the window before the start %d ends at %d", c, start, e)
			}
			checkLength(t, c, start, end)
		}
	}
}

// checkBorder checks that a window can begin at border. If its day exists in the zone, it is the first of its month,
// week or year.
func checkBorder(t *testing.T, c *Calendar, border int64) {
	t.Helper()
	at := time.Unix(0, border).In(c.spec.Location)
	before := at.Add(-1)
	if at.YearDay() == before.YearDay() && at.Year() == before.Year() {
		t.Fatalf("%v: no day begins at %v", c, at)
	}
	skipped := at.AddDate(0, 0, -1).Day() != before.Day() && at.Sub(before.Truncate(time.Second)) < time.Hour
	fine := true
	switch c.spec.Unit {
	case CalendarWeek:
		fine = at.Weekday() == c.spec.WeekStarts
	case CalendarMonth:
		fine = at.Day() == c.spec.AnchorDay && (at.Year()*12+int(at.Month())-1)%c.spec.Units == 0
	case CalendarYear:
		fine = at.Day() == 1 && at.Month() == time.January && at.Year()%c.spec.Units == 0
	}
	if !fine && !skipped {
		t.Fatalf("%v: a window begins at %v", c, at)
	}
}

// checkLength checks that a window is as long as its units, but for two days: changes of the offset and skipped days.
func checkLength(t *testing.T, c *Calendar, start, end int64) {
	t.Helper()
	days := map[CalendarUnit][2]int{
		CalendarDay: {1, 1}, CalendarWeek: {7, 7}, CalendarMonth: {28, 31},
		CalendarYear: {365, 366},
	}[c.spec.Unit]
	length, slack := time.Duration(end-start), 26*time.Hour
	if length < time.Duration(days[0]*c.spec.Units)*24*time.Hour-slack ||
		length > time.Duration(days[1]*c.spec.Units)*24*time.Hour+slack {
		t.Fatalf("%v: a window of %v", c, length)
	}
}

// TestCalendarCoversTime walks from window to window through 50 years, with another calendar that has no last window.
func TestCalendarCoversTime(t *testing.T) {
	t.Parallel()
	for _, name := range changingZones {
		spec := CalendarSpec{Unit: CalendarDay, Units: 1, Location: zoneOf(t, name)}
		walker := calendarOf(t, spec)
		to := time.Date(2035, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()
		for at := time.Date(1985, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano(); at < to; {
			start, end := walker.Bounds(at)
			middle := start + (end-start)/2
			if w := calendarOf(t, spec).windowAt(middle); w.start != start || w.end != end {
				t.Fatalf("%s: the window of %d is %d to %d, that of %d is %d to %d", name, at, start, end, middle, w.start, w.end)
			}
			if start != at && at != time.Date(1985, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() {
				t.Fatalf("%s: a gap from %d to %d", name, at, start)
			}
			at = end
		}
	}
}

func TestNewCalendarErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		spec CalendarSpec
		want string
	}{
		{CalendarSpec{Unit: 9, Units: 1, Location: time.UTC}, "algorithm: calendar unit 9 is not known"},
		{CalendarSpec{Units: 0, Location: time.UTC}, "algorithm: a calendar window has 1 to 36500 days, got 0"},
		{
			CalendarSpec{Unit: CalendarYear, Units: 101, Location: time.UTC},
			"algorithm: a calendar window has 1 to 100 years, got 101",
		},
		{
			CalendarSpec{Unit: CalendarMonth, Units: 1, Location: time.UTC},
			"algorithm: the anchor day of a month is 1 to 28, got 0",
		},
		{
			CalendarSpec{Unit: CalendarMonth, Units: 1, AnchorDay: 29, Location: time.UTC},
			"algorithm: the anchor day of a month is 1 to 28, got 29",
		},
		{
			CalendarSpec{Unit: CalendarYear, Units: 1, AnchorDay: 2, Location: time.UTC},
			"algorithm: a calendar of years has no anchor day",
		},
		{
			CalendarSpec{Unit: CalendarWeek, Units: 1, WeekStarts: 7, Location: time.UTC},
			"algorithm: %!Weekday(7) is no day of the week",
		},
		{
			CalendarSpec{Unit: CalendarDay, Units: 1, WeekStarts: time.Monday, Location: time.UTC},
			"algorithm: a calendar of days has no first day of the week",
		},
		{CalendarSpec{Unit: CalendarDay, Units: 1}, "algorithm: a calendar without a time zone"},
	} {
		if _, err := NewCalendar(test.spec); words(err) != test.want {
			t.Errorf("%+v: %q, want %q", test.spec, words(err), test.want)
		}
	}
}

// TestWindowIdentity checks that two limits have the same windows only if their calendars are equal, and that the id
// does not change between processes.
func TestWindowIdentity(t *testing.T) {
	t.Parallel()
	seen := make(map[Window]string)
	for _, name := range []string{
		"1month/1/UTC", "1month/2/UTC", "2month/1/UTC", "1month/1/Europe/Berlin", "1year/UTC", "1day/UTC", "1week/monday/UTC",
		"1week/sunday/UTC",
	} {
		l := Limit{Period: 30 * 24 * time.Hour, Calendar: calendarOf(t, calendarSpec(t, name))}
		again := Limit{Period: 30 * 24 * time.Hour, Calendar: calendarOf(t, calendarSpec(t, name))}
		if l.Window() != again.Window() {
			t.Errorf("%s has two identities", name)
		}
		if other, has := seen[l.Window()]; has {
			t.Errorf("%s and %s have one identity", name, other)
		}
		seen[l.Window()] = name
	}
	if got := calendarOf(t, calendarSpec(t, "1month/15/Europe/Berlin")).ID(); got != 0x956eafad39655911 {
		t.Errorf("the id of a calendar is %#x; stores of older versions have another", got)
	}
	if (&Limit{}).Window().CalendarID != 0 {
		t.Error("a limit without a calendar has an id of one")
	}
}

// TestCalendarIsConcurrent lets goroutines with clocks on both sides of a border use one calendar.
func TestCalendarIsConcurrent(t *testing.T) {
	t.Parallel()
	c := calendarOf(t, calendarSpec(t, "1month/1/Europe/Berlin"))
	_, border := c.Bounds(time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC).UnixNano())
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range int64(2000) {
				at := border + (j%7-3)*int64(time.Second) + int64(i)
				if start, end := c.Bounds(at); at < start || at >= end || start != border && end != border {
					t.Errorf("%d is in %d to %d", at, start, end)
				}
			}
		})
	}
	all.Wait()
}

func TestCalendarTakeDoesNotAllocate(t *testing.T) {
	l := Limit{
		Max: 10, Period: 30 * 24 * time.Hour, CountBlocked: true,
		Calendar: calendarOf(t, calendarSpec(t, "1month/1/Europe/Berlin")),
	}
	at := thursday.UnixNano()
	l.WindowBounds(at)
	if n := testing.AllocsPerRun(100, func() { TakeFixed(&l, 3, at, Charge, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTakeFixedUntilBorder checks that a hit in a month waits until its border, and not 30 days.
func TestTakeFixedUntilBorder(t *testing.T) {
	t.Parallel()
	l := Limit{
		Max: 1, Period: 30 * 24 * time.Hour, CountBlocked: true,
		Calendar: calendarOf(t, calendarSpec(t, "1month/1/Europe/Berlin")),
	}
	at := time.Date(2026, 3, 31, 20, 0, 0, 0, time.UTC) // 22:00 in Berlin
	if _, v := TakeFixed(&l, 1, at.UnixNano(), Charge, 1); !v.Over || v.RetryAfter != 2*time.Hour ||
		v.ResetAfter != 2*time.Hour || v.FullUntil != at.Add(2*time.Hour).UnixNano() ||
		v.WindowEnd != at.Add(2*time.Hour).UnixNano() {
		t.Errorf("%+v", v)
	}
}

// BenchmarkCalendar compares a hit of a calendar window with one of a window of equal length, and with the computation
// of a new window.
func BenchmarkCalendar(b *testing.B) {
	at := thursday.UnixNano()
	plain := Limit{Max: 1000, Period: 30 * 24 * time.Hour, CountBlocked: true}
	calendar := plain
	calendar.Calendar = calendarOf(b, calendarSpec(b, "1month/15/Europe/Berlin"))
	for name, l := range map[string]*Limit{"plain": &plain, "calendar": &calendar} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				TakeFixed(l, 3, at, Charge, 1)
			}
		})
	}
	b.Run("new window", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			calendar.Calendar.windowAt(at)
		}
	})
}
