package backendtest

import (
	"testing"
	"time"
	_ "time/tzdata" // for hosts without time zones

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// calendarLimit returns a limit in windows of a calendar that counts refused hits.
func calendarLimit(t *testing.T, most uint64, spec algorithm.CalendarSpec) *algorithm.Limit {
	t.Helper()
	calendar, err := algorithm.NewCalendar(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &algorithm.Limit{Max: most, Period: 24 * time.Hour, Calendar: calendar, CountBlocked: true}
}

// monthlyLimit returns a limit in months of a time zone.
func monthlyLimit(t *testing.T, most uint64, anchorDay int, zone string) *algorithm.Limit {
	t.Helper()
	location, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	return calendarLimit(t, most, algorithm.CalendarSpec{
		Unit: algorithm.CalendarMonth, Units: 1, AnchorDay: anchorDay,
		Location: location,
	})
}

// calendarStep is a hit of 1 on one key, in a window that lets two pass.
type calendarStep struct {
	at    string
	over  bool
	after uint64
	reset time.Duration
}

// calendarSteps go over borders in Berlin: an ordinary one, and those of the two months in which the clocks change. A
// month of March has 743 hours there.
var calendarSteps = []calendarStep{
	{"2026-02-28T22:59:59Z", false, 1, time.Second},
	{"2026-02-28T23:00:00Z", false, 1, 743 * time.Hour},
	{"2026-03-31T21:59:59Z", false, 2, time.Second},
	{"2026-03-31T21:59:59.999999Z", true, 3, time.Microsecond},
	{"2026-03-31T22:00:00Z", false, 1, 720 * time.Hour},
	{"2026-09-30T22:00:00Z", false, 1, 745 * time.Hour},
	{"2026-10-31T22:59:59Z", false, 2, time.Second},
	{"2026-10-31T23:00:00Z", false, 1, 720 * time.Hour},
}

func (*Suite) testCalendar(t *testing.T, open func(*testing.T) backend.Backend) {
	hit := func(l *algorithm.Limit) backend.Hit { return backend.Hit{Key: []byte("k"), Limit: l, Amount: 1} }
	t.Run("borders", func(t *testing.T) {
		store, limit := open(t), monthlyLimit(t, 2, 1, "Europe/Berlin")
		for _, step := range calendarSteps {
			at, err := time.Parse(time.RFC3339Nano, step.at)
			if err != nil {
				t.Fatal(err)
			}
			if v := send(t, store, at, hit(limit))[0]; v.Over != step.over || v.After != step.after ||
				v.ResetAfter != step.reset {
				t.Errorf("%s: over %t, after %d, reset %v, want %+v", step.at, v.Over, v.After, v.ResetAfter, step)
			}
		}
	})
	// those of two replicas, or from before and after a reload
	t.Run("equal calendars share a counter", func(t *testing.T) {
		store := open(t)
		send(t, store, epoch, hit(monthlyLimit(t, 2, 15, "Europe/Berlin")))
		if v := send(t, store, epoch, hit(monthlyLimit(t, 5, 15, "Europe/Berlin")))[0]; v.After != 2 {
			t.Errorf("the counter is %d, want 2", v.After)
		}
	})
	t.Run("other windows that start together have counters of their own", func(t *testing.T) {
		store := open(t)
		limits := []*algorithm.Limit{
			fixedWindow(9, 24*time.Hour), fixedWindow(9, 20*24*time.Hour), monthlyLimit(t, 9, 1,
				"UTC"), monthlyLimit(t, 9, 1, "Etc/UTC"),
			monthlyLimit(t, 9, 1, "Africa/Abidjan"), calendarLimit(t, 9,
				algorithm.CalendarSpec{Unit: algorithm.CalendarYear, Units: 1, Location: time.UTC}),
			calendarLimit(t, 9, algorithm.CalendarSpec{Unit: algorithm.CalendarDay, Units: 1, Location: time.UTC}),
		}
		for _, limit := range limits {
			if v := send(t, store, epoch, hit(limit))[0]; v.After != 1 {
				t.Errorf("%v: the counter is %d, want 1", limit.Calendar, v.After)
			}
		}
	})
	t.Run("set and reset", func(t *testing.T) {
		store, month, day := open(t), hit(monthlyLimit(t, 9, 1, "UTC")), hit(fixedWindow(9, 24*time.Hour))
		if backend.EditorOf(store).SetCounts(t.Context(), new(backend.Batch)) != nil {
			t.Skip("the store cannot change counters")
		}
		send(t, store, epoch, month, day)
		for _, want := range []uint64{7, 0} {
			setCount(t, store, epoch, month, want)
			month.Op, day.Op = look, look
			if v := send(t, store, epoch, month, day); v[0].Before != want || v[1].Before != 1 {
				t.Errorf("set to %d: the counts are %d and %d, want %d and 1", want, v[0].Before, v[1].Before, want)
			}
		}
	})
	t.Run("its own clock", func(t *testing.T) {
		store, limit := open(t), monthlyLimit(t, 1, 1, "Pacific/Apia")
		_, end := limit.WindowBounds(time.Now().UnixNano())
		send(t, store, time.Time{}, hit(limit))
		left := time.Until(time.Unix(0, end))
		if v := send(t, store, time.Time{}, hit(limit))[0]; left > time.Minute &&
			(!v.Over || (v.ResetAfter-left).Abs() > time.Minute) {
			t.Errorf("over %t, resets in %v, want about %v", v.Over, v.ResetAfter, left)
		}
	})
}

// randomCalendars returns limits for random tests, whose days start half an hour and three hours after epoch.
func randomCalendars() (limits []*algorithm.Limit) {
	for _, minutes := range []int{30, 180} {
		zone := time.FixedZone("west", -minutes*60)
		calendar, err := algorithm.NewCalendar(algorithm.CalendarSpec{Units: 1 + minutes/180, Location: zone})
		if err == nil { // A day is always valid.
			limits = append(
				limits, &algorithm.Limit{Max: 20, Period: 24 * time.Hour, Calendar: calendar, CountBlocked: true},
				&algorithm.Limit{Max: 10, Period: 24 * time.Hour, Calendar: calendar},
			)
		}
	}
	return limits
}
