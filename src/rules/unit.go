package rules

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// Unit is the unit of time of a limit. Its numbers are those of Envoy's enum RateLimitResponse.RateLimit.Unit.
type Unit uint8

// A week starts on Thursday, like the Unix epoch. A month has 30 days, and a year 365.
const (
	UnitUnknown Unit = iota
	UnitSecond
	UnitMinute
	UnitHour
	UnitDay
	UnitMonth
	UnitYear
	UnitWeek
)

const dayLength = 24 * time.Hour

var units = [...]struct {
	name   string
	length time.Duration
}{
	UnitUnknown: {"UNKNOWN", 0},
	UnitSecond:  {"SECOND", time.Second},
	UnitMinute:  {"MINUTE", time.Minute},
	UnitHour:    {"HOUR", time.Hour},
	UnitDay:     {"DAY", dayLength},
	UnitMonth:   {"MONTH", 30 * dayLength},
	UnitYear:    {"YEAR", 365 * dayLength},
	UnitWeek:    {"WEEK", 7 * dayLength},
}

// String returns the name in capitals, as Envoy writes it: "SECOND".
func (u Unit) String() string {
	if int(u) < len(units) {
		return units[u].name
	}
	return fmt.Sprintf("UNIT(%d)", uint8(u))
}

// Length returns the length of one unit; 0 for an unknown unit.
func (u Unit) Length() time.Duration {
	if int(u) < len(units) {
		return units[u].length
	}
	return 0
}

// ParseUnit returns the unit with the name s, in upper or lower case; UnitUnknown if there is none.
func ParseUnit(s string) Unit {
	for u := UnitSecond; int(u) < len(units); u++ {
		if strings.EqualFold(s, units[u].name) {
			return u
		}
	}
	return UnitUnknown
}

// InLargestUnit returns d as a multiple of the largest unit that divides it: UnitMinute and 1 for 60s, UnitSecond and
// 90 for 90s. For fractions of a second it returns UnitUnknown and 1.
func InLargestUnit(d time.Duration) (best Unit, multiplier uint32) {
	multiplier = 1
	for u := UnitSecond; int(u) < len(units); u++ {
		length := units[u].length
		if n := d / length; d%length == 0 && length > best.Length() && 0 < n && n <= math.MaxUint32 {
			best, multiplier = u, uint32(n)
		}
	}
	return best, multiplier
}

// FormatDuration returns d without zero units at the end: "1h", where String returns "1h0m0s".
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// Rate is a limit in the form that answers show: 100 requests per 5 minutes. Stores compute with algorithm.Limit.
type Rate struct {
	Requests       uint64 // may pass in a window. In a tree of limits they may pass at once.
	Unit           Unit   // UnitUnknown for windows that are no whole seconds, and for a concurrency, which has no window
	UnitMultiplier uint32 // the number of units in a window, at least 1
}

// Window returns the window for people: "minute", "5 minutes".
func (r Rate) Window() string {
	unit := strings.ToLower(r.Unit.String())
	if r.UnitMultiplier > 1 {
		return fmt.Sprintf("%d %ss", r.UnitMultiplier, unit)
	}
	return unit
}

// These are the errors of Rate.FixedWindowLimit.
var (
	ErrUnknownUnit    = errors.New("the unit is not second, minute, hour, day, week, month or year")
	ErrZeroMultiplier = errors.New("the unit_multiplier is 0")
	ErrWindowTooLong  = errors.New("the window is longer than 100 years")
)

// FixedWindowLimit returns r as a fixed window in which refused hits count too, like Envoy's. Its errors are
// ErrUnknownUnit, ErrZeroMultiplier and ErrWindowTooLong.
func (r Rate) FixedWindowLimit() (algorithm.Limit, error) {
	length, multiplier := r.Unit.Length(), time.Duration(r.UnitMultiplier)
	switch {
	case length == 0:
		return algorithm.Limit{}, ErrUnknownUnit
	case multiplier == 0:
		return algorithm.Limit{}, ErrZeroMultiplier
	case multiplier > algorithm.MaxPeriod/length:
		return algorithm.Limit{}, ErrWindowTooLong
	}
	return algorithm.Limit{
		Kind: algorithm.FixedWindow, Max: r.Requests, Period: length * multiplier,
		CountBlocked: true,
	}, nil
}
