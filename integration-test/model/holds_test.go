package model

import (
	"testing"
	"time"
)

// TestHolds checks the model's own holds, by hand.
func TestHolds(t *testing.T) {
	for _, tt := range holdCases() {
		t.Run(tt.name, func(t *testing.T) {
			c := new(counter)
			for i, st := range tt.steps {
				want := verdict{over: st.over, remaining: st.left, retry: max(st.retry, 0), never: st.retry < 0, reset: st.reset}
				if got := c.take(&tt.limit, int64(st.at), st.wish); got != want {
					t.Errorf("step %d, %+v at %v: got %+v, want %+v", i+1, st.wish, st.at, got, want)
				}
			}
		})
	}
}

type holdStep struct {
	at    time.Duration
	wish  wish
	over  bool
	left  int64
	retry time.Duration // -1: never
	reset time.Duration
}

type holdCase struct {
	name  string
	limit Limit
	steps []holdStep
}

func takes(id string, amount int64) wish   { return wish{amount: amount, id: id} }
func settles(id string, amount int64) wish { return wish{amount: amount, id: id, action: Settle} }
func releases(id string) wish              { return wish{amount: 1, id: id, action: Release} }

func holdCases() []holdCase {
	const s = time.Second
	return []holdCase{
		{"two at a time", Limit{Kind: Concurrency, Max: 2, Hold: 30 * s}, []holdStep{
			{at: 0, wish: takes("a", 1), left: 1, reset: 30 * s},
			{at: 10 * s, wish: takes("b", 1), left: 0, reset: 30 * s},
			{at: 12 * s, wish: takes("a", 1), left: 0, reset: 28 * s}, // again
			{at: 12 * s, wish: takes("c", 1), over: true, retry: 18 * s, reset: 28 * s},
			{at: 12 * s, wish: takes("c", 3), over: true, retry: -1, reset: 28 * s},
			{at: 13 * s, wish: releases("a"), left: 1, reset: 27 * s},
			{at: 13 * s, wish: takes("a", 1), left: 1, reset: 27 * s}, // late: a is done
			{at: 13 * s, wish: settles("c", 1), left: 1, reset: 27 * s},
			{at: 40 * s, wish: takes("d", 2), left: 0, reset: 30 * s}, // b has expired
			{at: 35 * s, wish: takes("e", 1), over: true, retry: 30 * s, reset: 30 * s},
		}},
		{"a budget", Limit{Kind: Fixed, Max: 10, Period: time.Minute, Hold: 30 * s}, []holdStep{
			{at: 0, wish: takes("a", 6), left: 4, reset: 60 * s},
			{at: 1 * s, wish: takes("b", 6), over: true, left: 4, retry: 59 * s, reset: 59 * s},
			{at: 2 * s, wish: settles("a", 2), left: 8, reset: 58 * s},
			{at: 2 * s, wish: takes("b", 6), left: 2, reset: 58 * s},
			{at: 3 * s, wish: takes("", 3), over: true, left: 2, retry: 57 * s, reset: 57 * s},
			{at: 3 * s, wish: takes("", 2), left: 0, reset: 57 * s},
			{at: 4 * s, wish: settles("b", 9), reset: 56 * s}, // 3 more than reserved
			{at: 4 * s, wish: settles("b", 9), reset: 56 * s},
			{at: 5 * s, wish: takes("c", 1), over: true, retry: 55 * s, reset: 55 * s},
			{at: 60 * s, wish: takes("c", 1), left: 9, reset: 60 * s},
		}},
		{"expired and charged", Limit{Kind: Fixed, Max: 10, Period: time.Minute, Hold: 30 * s}, []holdStep{
			{at: 0, wish: takes("a", 6), left: 4, reset: 60 * s},
			{at: 31 * s, wish: takes("b", 0), left: 4, reset: 29 * s},
			{at: 32 * s, wish: settles("a", 7), left: 3, reset: 28 * s}, // 6 were charged
			{at: 33 * s, wish: settles("a", 9), left: 3, reset: 27 * s},
			{at: 59 * s, wish: takes("c", 3), left: 0, reset: 61 * s},
			{at: 90 * s, wish: takes("d", 8), over: true, left: 7, retry: 30 * s, reset: 30 * s},
		}},
		{
			"expired and released",
			Limit{Kind: GCRA, Max: 10, Period: time.Minute, Burst: 9, Hold: 30 * s, Release: true},
			[]holdStep{
				{at: 0, wish: takes("a", 6), left: 4, reset: 30 * s},
				{at: 30 * s, wish: takes("b", 10), left: 0, reset: 30 * s},
				{at: 31 * s, wish: settles("a", 2), left: 0, reset: 29 * s},
				{at: 60 * s, wish: takes("c", 10), left: 0, reset: 30 * s}, // what a took is there again since 43 s
			},
		},
		{"the clock steps back", Limit{Kind: Sliding, Max: 4, Period: time.Minute, Hold: 30 * s}, []holdStep{
			{at: 20 * s, wish: takes("a", 2), left: 2, reset: 90 * s},
			{at: 10 * s, wish: takes("b", 2), left: 0, reset: 90 * s}, // 20 s of the holds
			{at: 39 * s, wish: takes("c", 1), over: true, retry: 61 * s, reset: 61 * s},
			{at: 40 * s, wish: takes("c", 1), over: true, retry: 60 * s, reset: 60 * s},
		}},
	}
}

// TestCalendar checks the model's own calendars, by hand.
func TestCalendar(t *testing.T) {
	for _, tt := range []struct {
		calendar     Calendar
		at, from, to string
	}{
		{
			Calendar{Unit: "day", Units: 1, Zone: "UTC"},
			"2026-07-25T12:00:00Z", "2026-07-25T00:00:00Z",
			"2026-07-26T00:00:00Z",
		},
		// 25 hours
		{
			Calendar{Unit: "day", Units: 1, Zone: "Europe/Berlin"},
			"2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z",
			"2026-10-25T23:00:00Z",
		},
		{
			Calendar{Unit: "week", Units: 1, Zone: "UTC", Starts: "monday"},
			"2026-01-04T23:00:00Z", "2025-12-29T00:00:00Z",
			"2026-01-05T00:00:00Z",
		},
		{
			Calendar{Unit: "month", Units: 1, Zone: "UTC", Anchor: 15},
			"2026-03-01T00:00:00Z", "2026-02-15T00:00:00Z",
			"2026-03-15T00:00:00Z",
		},
		{
			Calendar{Unit: "month", Units: 3, Zone: "Asia/Kolkata", Anchor: 1},
			"2026-05-01T00:00:00Z", "2026-03-31T18:30:00Z",
			"2026-06-30T18:30:00Z",
		},
		{
			Calendar{Unit: "year", Units: 10, Zone: "UTC"},
			"2029-12-31T00:00:00Z", "2020-01-01T00:00:00Z",
			"2030-01-01T00:00:00Z",
		},
		// In Havana 2026-03-08 starts at 01:00, and the midnight of 2026-11-01 is there twice.
		{
			Calendar{Unit: "day", Units: 1, Zone: "America/Havana"},
			"2026-03-08T12:00:00Z", "2026-03-08T05:00:00Z",
			"2026-03-09T04:00:00Z",
		},
		{
			Calendar{Unit: "day", Units: 1, Zone: "America/Havana"},
			"2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z",
			"2026-11-02T05:00:00Z",
		},
		// In Cairo the clock goes back at the end of 2026-10-29.
		{
			Calendar{Unit: "day", Units: 1, Zone: "Africa/Cairo"},
			"2026-10-29T21:30:00Z", "2026-10-28T21:00:00Z",
			"2026-10-29T22:00:00Z",
		},
	} {
		at, err := time.Parse(time.RFC3339, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		from, to := tt.calendar.bounds(int64(at.Sub(Start)))
		text := func(at int64) string { return Start.Add(time.Duration(at)).Format(time.RFC3339) }
		if text(from) != tt.from || text(to) != tt.to {
			t.Errorf("%v at %v: got %v to %v, want %v to %v", tt.calendar, tt.at, text(from), text(to), tt.from, tt.to)
		}
	}
}
