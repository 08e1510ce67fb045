package rules

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// Unit is the unit of time of a limit. The numbers are those of the Unit enum
// in Envoy's RateLimitResponse.RateLimit.
type Unit uint8

// The units. A week is 7 days beginning on Thursday (the Unix epoch was one), a
// month 30 days, a year 365.
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

// String is the name in capitals, as Envoy writes it.
func (u Unit) String() string {
	if int(u) < len(units) {
		return units[u].name
	}
	return fmt.Sprintf("UNIT(%d)", uint8(u))
}

// Length is how long one unit is; 0 for a unit that is not known.
func (u Unit) Length() time.Duration {
	if int(u) < len(units) {
		return units[u].length
	}
	return 0
}

// parseUnit reads a unit in any letter case; UnitUnknown is none.
func ParseUnit(s string) Unit {
	for u := Second; int(u) < len(units); u++ {
		if strings.EqualFold(s, units[u].name) {
			return u
		}
	}
	return UnitUnknown
}

// unitWords are the units as rule files write them, shortest first.
func unitWords() []string {
	words := make([]string, 0, len(units))
	for u := Second; int(u) < len(units); u++ {
		words = append(words, strings.ToLower(units[u].name))
	}
	slices.SortStableFunc(words, func(a, b string) int { return cmp.Compare(ParseUnit(a).Length(), ParseUnit(b).Length()) })
	return words
}

// inUnits is a length of time as so many of the largest unit that goes into it
// whole: 60 s are 1 minute, 90 s are 90 seconds. What has no whole seconds is
// UnitUnknown, once.
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

// shown is d as its author would write it: 1h, where Go writes 1h0m0s.
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

// Quantity is a limit in the words of a protocol: 100 requests per 5 minutes.
// It is what callers are told, where algorithm.Limit is what is computed with.
type Quantity struct {
	Requests   uint32 // in a window; in a tree of limits the most that pass at once
	Unit       Unit
	Multiplier uint32 // the window is Multiplier units long; at least 1
}

// The reasons for which Quantity.Window refuses.
var (
	ErrUnit       = errors.New("the unit is not second, minute, hour, day, week, month or year")
	ErrMultiplier = errors.New("the unit_multiplier is 0")
	ErrTooLong    = errors.New("the window is longer than 100 years")
)

// Window compiles q into Envoy's fixed window: refused hits count too.
func (q Quantity) Window() (algorithm.Limit, error) {
	length := q.Unit.Length()
	if length == 0 {
		return algorithm.Limit{}, ErrUnit
	}
	if q.Multiplier == 0 {
		return algorithm.Limit{}, ErrMultiplier
	}
	multiplier := time.Duration(q.Multiplier)
	if multiplier > algorithm.MaxPeriod/length {
		return algorithm.Limit{}, ErrTooLong
	}
	return algorithm.Limit{
		Kind:         algorithm.FixedWindow,
		Max:          uint64(q.Requests),
		Period:       length * multiplier,
		CountBlocked: true,
	}, nil
}
