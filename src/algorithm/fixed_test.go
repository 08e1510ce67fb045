package algorithm

import (
	"math"
	"testing"
	"time"
)

// step is one hit. The count carries over from step to step, and begins anew
// when a step lies in another window.
type step struct {
	at   time.Duration // after the table's start
	op   Op
	take uint64

	over    bool
	charged bool
	count   uint64 // after the step
	left    uint64
	retry   time.Duration
	reset   time.Duration
	full    bool // until the window's end
}

// The tables begin here unless they say otherwise: a Thursday's midnight, on
// an edge of every unit up to the week.
var thursday = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type fixedCase struct {
	name  string
	limit Limit
	start time.Time // zero: thursday
	count uint64    // before the first step
	steps []step
}

func TestTakeFixed(t *testing.T) {
	for _, test := range fixedCases() {
		t.Run(test.name, func(t *testing.T) {
			if test.start.IsZero() {
				test.start = thursday
			}
			count, last := test.count, int64(math.MinInt64)
			for i, s := range test.steps {
				at := test.start.UnixNano() + int64(s.at)
				start, end := WindowBounds(at, test.limit.Period)
				if i > 0 && start != last {
					count = 0
				}
				last = start
				before := count
				var v Outcome
				count, v = TakeFixed(&test.limit, count, at, s.op, s.take)
				checkFixed(t, &test.limit, before, at, s.op, s.take, count, v)
				got := step{
					s.at, s.op, s.take, v.Over, v.Charged, v.After, v.Remaining, v.RetryAfter, v.ResetAfter,
					v.FullUntil == end,
				}
				if got != s {
					t.Errorf("step %d:\n got %+v\nwant %+v", i, got, s)
				}
			}
		})
	}
}

func fixedCases() []fixedCase {
	const s, m, h = time.Second, time.Minute, time.Hour
	const day = 24 * h
	envoy := func(most uint64, period time.Duration) Limit {
		return Limit{Max: most, Period: period, CountBlocked: true}
	}
	polite := func(most uint64, period time.Duration) Limit {
		return Limit{Max: most, Period: period}
	}
	return []fixedCase{
		{name: "the example of the comment, refused hits count", limit: envoy(10, m), count: 8, steps: []step{
			{take: 3, over: true, charged: true, count: 11, retry: m, reset: m, full: true},
			{take: 3, over: true, charged: true, count: 14, retry: m, reset: m, full: true},
		}},
		{name: "the example of the comment, refused hits do not count", limit: polite(10, m), count: 8, steps: []step{
			{take: 3, over: true, count: 8, retry: m, reset: m},
			{take: 3, over: true, count: 8, retry: m, reset: m},
			{take: 2, charged: true, count: 10, reset: m, full: true},
			{take: 1, over: true, count: 10, retry: m, reset: m, full: true},
		}},
		{name: "a look that is over does not count with CountBlocked either", limit: envoy(3, m), count: 2, steps: []step{
			{op: Look, take: 2, over: true, count: 2, retry: m, reset: m},
			{take: 1, charged: true, count: 3, reset: m, full: true},
		}},
		{name: "nothing asked passes until the count is beyond the limit", limit: envoy(2, s), steps: []step{
			{take: 0, charged: true, left: 2, reset: s},
			{take: 2, charged: true, count: 2, reset: s, full: true},
			{take: 0, charged: true, count: 2, reset: s, full: true},
			{take: 1, over: true, charged: true, count: 3, retry: s, reset: s, full: true},
			{take: 0, over: true, charged: true, count: 3, retry: s, reset: s, full: true},
		}},
		{name: "more than the limit at once never passes", limit: envoy(10, m), steps: []step{
			{take: 11, over: true, charged: true, count: 11, retry: Never, reset: m, full: true},
			{take: 10, over: true, charged: true, count: 21, retry: m, reset: m, full: true},
			{take: 1 << 40, over: true, charged: true, count: 1<<40 + 21, retry: Never, reset: m, full: true},
			{at: m, take: 10, charged: true, count: 10, reset: m, full: true},
		}},
		{name: "more than the limit at once leaves a polite limit alone", limit: polite(10, m), steps: []step{
			{take: MaxAmount, over: true, retry: Never, reset: m},
			{take: 10, charged: true, count: 10, reset: m, full: true},
		}},
		{name: "the counter stops growing", limit: envoy(5, m), count: MaxCount - 2, steps: []step{
			{take: 1, over: true, charged: true, count: MaxCount - 1, retry: m, reset: m, full: true},
			{take: 3, over: true, charged: true, count: MaxCount, retry: m, reset: m, full: true},
			{op: Force, take: MaxAmount, charged: true, count: MaxCount, reset: m, full: true},
			{op: Refund, take: 2, charged: true, count: MaxCount - 2, reset: m, full: true},
		}},
		{
			name: "windows that do not divide the day are aligned to 1970", limit: polite(1, 7*s),
			start: time.Unix(0, 0), steps: []step{
				{at: 0, take: 1, charged: true, count: 1, reset: 7 * s, full: true},
				{at: 6 * s, take: 1, over: true, count: 1, retry: s, reset: s, full: true},
				{at: 7 * s, take: 1, charged: true, count: 1, reset: 7 * s, full: true},
				{at: 15 * s, take: 1, charged: true, count: 1, reset: 6 * s, full: true},
			},
		},
		{
			name: "weeks begin on Thursdays", limit: polite(1, 7*day),
			start: time.Date(2025, 12, 31, 23, 59, 59, 0, time.UTC), steps: []step{ // a Wednesday
				{take: 1, charged: true, count: 1, reset: s, full: true},
				{at: s, take: 1, charged: true, count: 1, reset: 7 * day, full: true},
				{at: 5 * day, take: 1, over: true, count: 1, retry: 2*day + s, reset: 2*day + s, full: true},
			},
		},
		{name: "the longest window", limit: polite(1, MaxPeriod), start: time.Unix(0, 0), steps: []step{
			{take: 1, charged: true, count: 1, reset: MaxPeriod, full: true},
			{at: MaxPeriod - 1, take: 1, over: true, count: 1, retry: 1, reset: 1, full: true},
			{at: MaxPeriod, take: 1, charged: true, count: 1, reset: MaxPeriod, full: true},
		}},
	}
}

// checkFixed holds a verdict to what is true of every verdict of a fixed
// window, whatever happened before.
func checkFixed(t *testing.T, l *Limit, count uint64, at int64, op Op, amount, after uint64, v Outcome) {
	t.Helper()
	_, end := WindowBounds(at, l.Period)
	for _, rule := range []struct {
		holds bool
		words string
	}{
		{v.Before == count, "Before is the count that came in"},
		{v.After == after, "After is the count that goes out"},
		{v.Charged || after == count, "what is not charged does not change the count"},
		{op == Charge || op == Look || !v.Over, "refunds and forced hits are never over"},
		{op != Look || !v.Charged, "a look writes nothing"},
		{op != Charge || v.Charged == (!v.Over || l.CountBlocked), "a charge counts if it passes, or if refused ones count"},
		{!v.Over || v.Remaining == 0, "over leaves nothing"},
		{v.Over || v.Remaining == l.Max-min(l.Max, after), "what is left is the limit less the count"},
		{(v.RetryAfter == 0) == !v.Over, "there is a wait exactly when it is over"},
		{(v.RetryAfter == Never) == (v.Over && max(amount, 1) > l.Max), "only what an empty counter refuses waits for ever"},
		{!v.Over || v.RetryAfter == Never || v.RetryAfter == v.ResetAfter, "the wait ends with the window"},
		{v.ResetAfter == time.Duration(end-at), "the limit is whole again at the window's end"},
		{0 < v.ResetAfter && v.ResetAfter <= l.Period, "the window ends within a period"},
		{(v.FullUntil == 0) == (after < l.Max), "it is full exactly when not one unit passes"},
		{v.FullUntil == 0 || v.FullUntil == end, "it is full until the window's end"},
		{v.WindowEnd == at+int64(v.ResetAfter), "the window ends when the limit is whole again"},
		{!v.WithinMinInterval, "there is no interval"},
	} {
		if !rule.holds {
			t.Errorf("%v of %d at %d on a count of %d, limit %+v: %+v, but %s", op, amount, at, count, *l, v, rule.words)
		}
	}
}

func TestWindow(t *testing.T) {
	const s = int64(time.Second)
	tests := []struct {
		at         int64
		period     time.Duration
		start, end int64
	}{
		{0, time.Second, 0, s},
		{1, time.Second, 0, s},
		{s - 1, time.Second, 0, s},
		{s, time.Second, s, 2 * s},
		{13 * s, 5 * time.Second, 10 * s, 15 * s},
		// Before 1970 the edges go on at the same distance.
		{-1, time.Second, -s, 0},
		{-s, time.Second, -s, 0},
		{-s - 1, time.Second, -2 * s, -s},
		{-13 * s, 5 * time.Second, -15 * s, -10 * s},
		{-15 * s, 5 * time.Second, -15 * s, -10 * s},
		{-1, MaxPeriod, -int64(MaxPeriod), 0},
		// The last instant a batch may have, in the longest window.
		{latestValidInstant.UnixNano(), MaxPeriod, int64(MaxPeriod), 2 * int64(MaxPeriod)},
	}
	for _, test := range tests {
		start, end := WindowBounds(test.at, test.period)
		if start != test.start || end != test.end {
			t.Errorf("Window(%d, %v) = %d, %d, want %d, %d", test.at, test.period, start, end, test.start, test.end)
		}
	}
}

func TestWindowNames(t *testing.T) {
	at := time.Date(2026, 2, 17, 13, 45, 30, 5, time.UTC) // a Tuesday
	tests := []struct {
		period time.Duration
		start  string
	}{
		{time.Second, "2026-02-17T13:45:30Z"},
		{time.Minute, "2026-02-17T13:45:00Z"},
		{15 * time.Minute, "2026-02-17T13:45:00Z"},
		{time.Hour, "2026-02-17T13:00:00Z"},
		{24 * time.Hour, "2026-02-17T00:00:00Z"},
		{7 * 24 * time.Hour, "2026-02-12T00:00:00Z"},   // Thursday
		{30 * 24 * time.Hour, "2026-02-06T00:00:00Z"},  // 683 "months" after 1970
		{365 * 24 * time.Hour, "2025-12-18T00:00:00Z"}, // 56 "years": 14 leap days early
	}
	for _, test := range tests {
		start, _ := WindowBounds(at.UnixNano(), test.period)
		if got := time.Unix(0, start).UTC().Format(time.RFC3339Nano); got != test.start {
			t.Errorf("the window of %v around %v begins at %s, want %s", test.period, at, got, test.start)
		}
	}
}
