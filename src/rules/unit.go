package rules

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// Unit is the unit of time of a limit. The numbers are those of Envoy's enum RateLimitResponse.RateLimit.Unit.
type Unit uint8

// The units. A week starts on Thursday, like the Unix epoch. A month is 30 days, a year 365.
const (
	UnitUnknown Unit = iota
	Second
	Minute
	Hour
	Day
	Month
	Year
	Week
)

const day = 24 * time.Hour

var units = [...]struct {
	name   string
	length time.Duration
}{
	UnitUnknown: {"UNKNOWN", 0},
	Second:      {"SECOND", time.Second},
	Minute:      {"MINUTE", time.Minute},
	Hour:        {"HOUR", time.Hour},
	Day:         {"DAY", day},
	Month:       {"MONTH", 30 * day},
	Year:        {"YEAR", 365 * day},
	Week:        {"WEEK", 7 * day},
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

// ParseUnit returns the unit with that name, in upper or lower case; UnitUnknown for any other text.
func ParseUnit(s string) Unit {
	for u := Second; int(u) < len(units); u++ {
		if strings.EqualFold(s, units[u].name) {
			return u
		}
	}
	return UnitUnknown
}

// inUnits returns d as a multiple of the largest unit that divides it: 60s is Minute and 1, 90s is Second and 90. For fractions of
// a second it returns UnitUnknown and 1.
func inUnits(d time.Duration) (best Unit, multiplier uint32) {
	multiplier = 1
	for u := Second; int(u) < len(units); u++ {
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

// Quantity is a limit in the form that answers show: 100 requests per 5 minutes. Stores compute with algorithm.Limit.
type Quantity struct {
	Requests   uint32 // in a window; in a tree of limits the number that can pass at once
	Unit       Unit
	Multiplier uint32 // the window is Multiplier units long; at least 1
}

// Errors of Quantity.Window.
var (
	ErrUnit       = errors.New("the unit is not second, minute, hour, day, week, month or year")
	ErrMultiplier = errors.New("the unit_multiplier is 0")
	ErrTooLong    = errors.New("the window is longer than 100 years")
)

// Window returns q as a fixed window in which refused hits count too, like Envoy's. Its errors are ErrUnit, ErrMultiplier and ErrTooLong.
func (q Quantity) Window() (algorithm.Limit, error) {
	length, multiplier := q.Unit.Length(), time.Duration(q.Multiplier)
	switch {
	case length == 0:
		return algorithm.Limit{}, ErrUnit
	case multiplier == 0:
		return algorithm.Limit{}, ErrMultiplier
	case multiplier > algorithm.MaxPeriod/length:
		return algorithm.Limit{}, ErrTooLong
	}
	return algorithm.Limit{Kind: algorithm.FixedWindow, Max: uint64(q.Requests), Period: length * multiplier, CountBlocked: true}, nil
}
