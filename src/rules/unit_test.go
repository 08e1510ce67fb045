package rules

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
)

func TestUnits(t *testing.T) {
	const day = 24 * time.Hour
	tests := []struct {
		word   string
		unit   Unit
		number uint8 // on the wire
		length time.Duration
	}{
		{"second", UnitSecond, 1, time.Second},
		{"minute", UnitMinute, 2, time.Minute},
		{"hour", UnitHour, 3, time.Hour},
		{"day", UnitDay, 4, day},
		{"month", UnitMonth, 5, 30 * day},
		{"year", UnitYear, 6, 365 * day},
		{"week", UnitWeek, 7, 7 * day},
	}
	for _, test := range tests {
		capitals := strings.ToUpper(test.word)
		for _, word := range []string{test.word, capitals, capitals[:1] + test.word[1:], test.word[:2] + capitals[2:]} {
			if got := ParseUnit(word); got != test.unit {
				t.Errorf("%q is %v, want %v", word, got, test.unit)
			}
		}
		if uint8(test.unit) != test.number || test.unit.String() != capitals || test.unit.Length() != test.length {
			t.Errorf("%v is number %d, %v long; want %s, %d, %v",
				test.unit, test.unit, test.unit.Length(), capitals, test.number, test.length)
		}
	}
	for _, word := range []string{"", "unknown", "seconds", " day", "day ", "da", "s", "1", "fortnight"} {
		if got := ParseUnit(word); got != UnitUnknown {
			t.Errorf("%q is %v", word, got)
		}
	}
	for unit, want := range map[Unit]string{UnitUnknown: "UNKNOWN", 8: "UNIT(8)", 255: "UNIT(255)"} {
		if unit.String() != want || unit.Length() != 0 {
			t.Errorf("%d is %v, %v long", uint8(unit), unit, unit.Length())
		}
	}
}

func TestInLargestUnit(t *testing.T) {
	const day = 24 * time.Hour
	for _, test := range []struct {
		length     time.Duration
		unit       Unit
		multiplier uint32
		shown      string
	}{
		{time.Second, UnitSecond, 1, "1s"},
		{59 * time.Second, UnitSecond, 59, "59s"},
		{time.Minute, UnitMinute, 1, "1m"},
		{90 * time.Second, UnitSecond, 90, "1m30s"},
		{90 * time.Minute, UnitMinute, 90, "1h30m"},
		{10 * time.Hour, UnitHour, 10, "10h"},
		{day, UnitDay, 1, "24h"},
		{6 * day, UnitDay, 6, "144h"},
		{7 * day, UnitWeek, 1, "168h"},
		{30 * day, UnitMonth, 1, "720h"},
		{210 * day, UnitMonth, 7, "5040h"}, // 30 weeks, too
		{364 * day, UnitWeek, 52, "8736h"},
		{365 * day, UnitYear, 1, "8760h"},
		{algorithm.MaxPeriod, UnitYear, 100, "876000h"},
		{algorithm.MaxPeriod - time.Second, UnitSecond, 3_153_599_999, "875999h59m59s"},
		{algorithm.MaxPeriod + 365*day, UnitYear, 101, "884760h"},
		{1<<32*time.Second - time.Second, UnitSecond, math.MaxUint32, "1193046h28m15s"},
		{1<<32*time.Second + time.Second, UnitUnknown, 1, "1193046h28m17s"}, // no number of 32 bits
		{999 * time.Millisecond, UnitUnknown, 1, "999ms"},
		{1500 * time.Millisecond, UnitUnknown, 1, "1.5s"},
		{time.Microsecond, UnitUnknown, 1, "1µs"},
		{0, UnitUnknown, 1, "0s"},
		{-time.Minute, UnitUnknown, 1, "-1m"},
	} {
		if unit, n := InLargestUnit(test.length); unit != test.unit || n != test.multiplier {
			t.Errorf("%v is %d %v, want %d %v", test.length, n, unit, test.multiplier, test.unit)
		}
		if got := FormatDuration(test.length); got != test.shown {
			t.Errorf("%v is shown as %s, want %s", test.length, got, test.shown)
		}
		if got, err := time.ParseDuration(test.shown); got != test.length || err != nil {
			t.Errorf("%s is read as %v, %v", test.shown, got, err)
		}
	}
}

func TestRateWindow(t *testing.T) {
	const day = 24 * time.Hour
	fixed := func(most uint64, period time.Duration) algorithm.Limit {
		return algorithm.Limit{Max: most, Period: period, CountBlocked: true}
	}
	tests := []struct {
		quantity Rate
		want     algorithm.Limit
		err      error
	}{
		{Rate{5, UnitSecond, 1}, fixed(5, time.Second), nil},
		{Rate{5, UnitSecond, 0}, algorithm.Limit{}, ErrZeroMultiplier},
		{Rate{0, UnitMinute, 1}, fixed(0, time.Minute), nil},
		{Rate{math.MaxUint32, UnitMinute, 15}, fixed(math.MaxUint32, 15*time.Minute), nil},
		{Rate{1, UnitMonth, 3}, fixed(1, 90*day), nil},
		{Rate{1, UnitYear, 100}, fixed(1, 36500*day), nil},
		{Rate{1, UnitYear, 101}, algorithm.Limit{}, ErrWindowTooLong},
		{Rate{1, UnitDay, 36500}, fixed(1, 36500*day), nil},
		{Rate{1, UnitDay, 36501}, algorithm.Limit{}, ErrWindowTooLong},
		{Rate{1, UnitWeek, 5214}, fixed(1, 36498*day), nil},
		{Rate{1, UnitWeek, 5215}, algorithm.Limit{}, ErrWindowTooLong},
		{Rate{1, UnitSecond, 3_153_600_000}, fixed(1, 36500*day), nil},
		{Rate{1, UnitSecond, 3_153_600_001}, algorithm.Limit{}, ErrWindowTooLong},
		{Rate{1, UnitSecond, math.MaxUint32}, algorithm.Limit{}, ErrWindowTooLong},
		{Rate{1, UnitYear, math.MaxUint32}, algorithm.Limit{}, ErrWindowTooLong}, // 2^57 days
		{Rate{1, UnitUnknown, 1}, algorithm.Limit{}, ErrUnknownUnit},
		{Rate{1, 8, 1}, algorithm.Limit{}, ErrUnknownUnit},
	}
	for _, test := range tests {
		got, err := test.quantity.FixedWindowLimit()
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%+v: %+v, %v; want %+v, %v", test.quantity, got, err, test.want, test.err)
		}
		if err == nil && got.Validate() != nil {
			t.Errorf("%+v: %v", test.quantity, got.Validate())
		}
	}
}
