package explain

import (
	"testing"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

func TestLimitInWords(t *testing.T) {
	t.Parallel()
	set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(`
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: b, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 0, count_blocked: false}}
- {key: c, rate_limit: {algorithm: gcra, period: 90s, requests_per_unit: 10, burst: 3, min_interval: 100ms}}
- {key: d, rate_limit: {algorithm: sliding_window, period: 1h, requests_per_unit: 10, count_blocked: true}}
- {key: e, rate_limit: {unlimited: true}}
- {key: f, rate_limit: {unit: month, calendar: true, anchor_day: 15, time_zone: Europe/Berlin, requests_per_unit: 1}}
- {key: g, rate_limit: {unit: week, unit_multiplier: 2, calendar: true, requests_per_unit: 1}}
- {key: h, rate_limit: {unit: day, calendar: true, requests_per_unit: 1}}
- {key: i, rate_limit: {algorithm: concurrency, requests_per_unit: 4, hold: 30s, hold_id: id}}
- {key: j, rate_limit: {algorithm: gcra, unit: hour, requests_per_unit: 9, hold: 30s, hold_id: id}}
`)}})
	for i, want := range []string{
		"3 per hour", "0 per 5 minutes, refused hits do not count", "10 per 1m30s, 4 at once, 100ms apart",
		"10 per 1h, refused hits count", "unlimited",
		"1 per calendar month from day 15 in Europe/Berlin", "1 per 2 calendar weeks from Monday in UTC",
		"1 per calendar day in UTC",
		"4 at a time, each for at most 30s", "9 per hour, 9 at once, reservations charged after 30s",
	} {
		if got := set.Rules()[i].LimitInWords(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := (rules.Rate{Requests: 2, Unit: rules.UnitWeek, UnitMultiplier: 3}).Window(); got != "3 weeks" {
		t.Errorf("got %q", got)
	}
}

func TestDurationText(t *testing.T) {
	t.Parallel()
	for microseconds, want := range map[int64]string{
		0: "0s", 59_999_999: "59.999999s", 60_400_000: "1m0s",
		1_808_518_959_329: "502h21m59s",
	} {
		if got := durationText(microseconds); got != want {
			t.Errorf("%d: got %q, want %q", microseconds, got, want)
		}
	}
}
