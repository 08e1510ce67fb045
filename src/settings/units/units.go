// Package units reads numbers with units, as settings and flags have them: sizes, durations and rates. Each kind of
// number also has Forms, which finds what a user probably meant by a text that is refused.
package units

import (
	"cmp"
	"errors"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	errForm  = errors.New("not a number with a known unit")
	errRange = errors.New("out of range")
)

// decimal matches a number and its unit, which may be empty. Longer numbers than 40 digits are not read.
var decimal = regexp.MustCompile(`^([-+]?[0-9]{1,40}(?:\.[0-9]{1,40})?) ?([a-zA-Z]*)$`)

// byteUnits has the size of each unit in bytes, by its name in lower case.
var byteUnits = func() map[string]int64 {
	sizes, binary, metric := map[string]int64{"b": 1}, int64(1), int64(1)
	for _, prefix := range []string{"k", "m", "g", "t"} {
		binary, metric = binary<<10, metric*1000
		sizes[prefix], sizes[prefix+"b"] = metric, metric
		sizes[prefix+"i"], sizes[prefix+"ib"] = binary, binary
	}
	return sizes
}()

// Bytes returns a size in bytes, rounded down. KiB, MiB, GiB and TiB are units of 1024, and kB, MB, GB and TB of 1000.
// The B may be left out, and small and large letters are the same: 1.5GiB, 1.5Gi and 1.5 gib are 1610612736. Numbers
// without a unit are bytes; they may begin with 0x, 0b or 0.
func Bytes(text string) (int64, error) {
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return n, nil
	}
	parts := decimal.FindStringSubmatch(text)
	if parts == nil {
		return 0, errForm
	}
	size, isKnown := byteUnits[strings.ToLower(parts[2])]
	number, isNumber := new(big.Rat).SetString(parts[1])
	if !isKnown || !isNumber {
		return 0, errForm
	}
	number.Mul(number, new(big.Rat).SetInt64(size))
	whole := new(big.Int).Div(number.Num(), number.Denom())
	if !whole.IsInt64() {
		return 0, errRange
	}
	return whole.Int64(), nil
}

// FormatBytes returns a size in the largest unit of 1024 that has no fraction: 256MiB, 1536KiB, 1000.
func FormatBytes(n int64) string {
	units := []string{"", "KiB", "MiB", "GiB", "TiB"}
	for n != 0 && n%1024 == 0 && len(units) > 1 {
		n, units = n/1024, units[1:]
	}
	return strconv.FormatInt(n, 10) + units[0]
}

// Duration returns a duration in the form of time.ParseDuration, which may begin with days of 24 hours: 500ms, 1h30m,
// 7d, 1d12h.
func Duration(text string) (time.Duration, error) {
	days, rest, hasDays := strings.Cut(text, "d")
	if !hasDays {
		return time.ParseDuration(text)
	}
	if parts := decimal.FindStringSubmatch(days); parts == nil || parts[1] != days || strings.ContainsAny(rest, "+-") {
		return 0, errForm
	}
	if rest == "" {
		rest = "0s"
	}
	hours, err := time.ParseDuration(days + "h")
	part, partErr := time.ParseDuration(rest)
	if err := cmp.Or(err, partErr); err != nil {
		return 0, err
	}
	if days[0] == '-' {
		part = -part
	}
	sum := hours*24 + part
	if hours*24/24 != hours || (sum < hours*24) != (part < 0) {
		return 0, errRange
	}
	return sum, nil
}

// rateUnits has the seconds of each unit of time that a rate may have.
var rateUnits = map[string]float64{
	"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}

// PerSecond returns a rate per second: 10, 10/s and 600/m are the same.
func PerSecond(text string) (float64, error) {
	number, unit, hasUnit := strings.Cut(text, "/")
	seconds := rateUnits[unit]
	if !hasUnit {
		seconds = 1
	}
	parts := decimal.FindStringSubmatch(number)
	if seconds == 0 || parts == nil || parts[1] != number {
		return 0, errForm
	}
	n, err := strconv.ParseFloat(number, 64)
	return n / seconds, err
}

// Unit is a unit as it is written, and its name in words.
type Unit struct{ Suffix, Name string }

// The units of each kind of number, the likeliest ones first.
var (
	OfBytes = []Unit{
		{"KiB", "kilobytes"}, {"MiB", "megabytes"}, {"GiB", "gigabytes"}, {"TiB", "terabytes"}, {"", "bytes"},
	}
	OfDuration = []Unit{
		{"s", "seconds"},
		{"m", "minutes"},
		{"h", "hours"},
		{"d", "days"},
		{"ms", "milliseconds"},
		{"us", "microseconds"},
		{"ns", "nanoseconds"},
	}
	OfRate  = []Unit{{"/s", "per second"}, {"/m", "per minute"}, {"/h", "per hour"}, {"/d", "per day"}}
	OfShare = []Unit{{"", ""}, {"%", "percent"}}
)

// loose matches a number in a text of any form, and what stands behind it.
var loose = regexp.MustCompile(`^[^0-9]{0,10}([0-9]{1,18}(?:[.,][0-9]{1,18})?)\s*(.{0,20})`)

// Forms returns the number at the start of text with each of units, first those that resemble the text behind the
// number: of "5 minutes", 5m is the first. A comma in the number is a point. It returns nil if there is no number.
func Forms(text string, units []Unit) (forms []string) {
	parts := loose.FindStringSubmatch(text)
	if parts == nil {
		return nil
	}
	unit := strings.ToLower(parts[2])
	resemblance := func(u Unit) int {
		return max(commonStart(unit, strings.ToLower(u.Suffix)), commonStart(unit, u.Name))
	}
	sorted := slices.SortedStableFunc(slices.Values(units),
		func(a, b Unit) int { return cmp.Compare(resemblance(b), resemblance(a)) })
	for _, u := range sorted {
		forms = append(forms, strings.Replace(parts[1], ",", ".", 1)+u.Suffix)
	}
	return forms
}

// commonStart returns the number of bytes with which both texts begin.
func commonStart(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Advice returns what to write instead of a refused text: "write a duration, such as 5s". The example is the first of
// Forms that isRight accepts, else byDefault; it is left out if that is empty.
func Advice(what, text, byDefault string, units []Unit, isRight func(string) bool) string {
	example, forms := byDefault, Forms(text, units)
	if i := slices.IndexFunc(forms, isRight); i >= 0 {
		example = forms[i]
	}
	if example == "" {
		return "write " + what
	}
	return "write " + what + ", such as " + example
}
