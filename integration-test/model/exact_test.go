package model

import (
	"testing"
	"time"
)

// TestExact checks the model itself, by hand.
func TestExact(t *testing.T) {
	for _, tt := range exactCases() {
		t.Run(tt.name, func(t *testing.T) {
			c := new(counter)
			for i, st := range tt.steps {
				want := verdict{over: st.over, remaining: st.left, retry: max(st.retry, 0), never: st.retry < 0, reset: st.reset}
				if got := c.apply(&tt.limit, int64(st.at), st.amount); got != want {
					t.Errorf("step %d, %d at %v: got %+v, want %+v", i+1, st.amount, st.at, got, want)
				}
			}
		})
	}
}

type exactStep struct {
	at     time.Duration
	amount int64
	over   bool
	left   int64
	retry  time.Duration // -1: never
	reset  time.Duration
}

type exactCase struct {
	name  string
	limit Limit
	steps []exactStep
}

func exactCases() []exactCase {
	const s, ms = time.Second, time.Millisecond
	return []exactCase{
		{"a fixed window", Limit{Kind: Fixed, Max: 3, Period: time.Minute}, []exactStep{
			{at: 10 * s, amount: 2, left: 1, reset: 50 * s},
			{at: 20 * s, amount: 2, over: true, retry: 40 * s, reset: 40 * s},
			{at: 20 * s, amount: 1, left: 0, reset: 40 * s},
			{at: 20 * s, amount: 0, left: 0, reset: 40 * s},
			{at: 59 * s, amount: 4, over: true, retry: -1, reset: 1 * s},
			{at: 60 * s, amount: 1, left: 2, reset: 60 * s},
			{at: 61 * s, amount: -5, left: 3, reset: 59 * s},
			{at: 30 * s, amount: 1, over: true, retry: 30 * s, reset: 30 * s}, // the clock went back
		}},
		{
			"a fixed window that counts what it refuses",
			Limit{Kind: Fixed, Max: 3, Period: time.Minute, Counting: true},
			[]exactStep{
				{at: 0, amount: 5, over: true, retry: -1, reset: 60 * s},
				{at: 0, amount: 0, over: true, retry: 60 * s, reset: 60 * s},
				{at: 0, amount: -4, left: 2, reset: 60 * s},
			},
		},
		{"a first-hit window", Limit{Kind: FirstHit, Max: 2, Period: 10 * s}, []exactStep{
			{at: 2 * s, amount: 0, left: 2},
			{at: 3 * s, amount: 1, left: 1, reset: 10 * s},
			{at: 4 * s, amount: 1, left: 0, reset: 9 * s},
			{at: 12900 * ms, amount: 1, over: true, retry: 100 * ms, reset: 100 * ms},
			{at: 13 * s, amount: 2, left: 0, reset: 10 * s},
			{at: 14 * s, amount: -2, left: 2},
			{at: 22 * s, amount: 1, left: 1, reset: 1 * s}, // the window goes on
		}},
		{"a sliding window", Limit{Kind: Sliding, Max: 2, Period: 10 * s}, []exactStep{
			{at: 0, amount: 1, left: 1, reset: 10 * s},
			{at: 1 * s, amount: 1, left: 0, reset: 10 * s},
			{at: 2 * s, amount: 1, over: true, retry: 8 * s, reset: 9 * s},
			{at: 2 * s, amount: 2, over: true, retry: 9 * s, reset: 9 * s},
			{at: 10 * s, amount: 1, left: 0, reset: 10 * s},
			{at: 5 * s, amount: 0, left: 0, reset: 10 * s}, // stands still at 10 s
			{at: 10 * s, amount: -1, left: 1, reset: 1 * s},
		}},
		{"a sliding window with a distance", Limit{Kind: Sliding, Max: 5, Period: 10 * s, Interval: 3 * s}, []exactStep{
			{at: 0, amount: 2, left: 3, reset: 10 * s},
			{at: 2 * s, amount: 1, over: true, left: 3, retry: 1 * s, reset: 8 * s},
			{at: 3 * s, amount: 1, left: 2, reset: 10 * s},
		}},
		{
			"a sliding window that counts what it refuses",
			Limit{Kind: Sliding, Max: 2, Period: 10 * s, Counting: true},
			[]exactStep{
				{at: 0, amount: 1, left: 1, reset: 10 * s},
				{at: 1 * s, amount: 1, left: 0, reset: 10 * s},
				{at: 2 * s, amount: 1, over: true, retry: 9 * s, reset: 10 * s},
				{at: 2 * s, amount: -3, left: 2},
			},
		},
		{"two buckets", Limit{Kind: Counter, Max: 10, Period: time.Minute}, []exactStep{
			{at: 30 * s, amount: 8, left: 2, reset: 90 * s},
			{at: 60 * s, amount: 2, left: 0, reset: 120 * s},
			{at: 67500 * ms, amount: 1, left: 0, reset: 112500 * ms},              // 7 + 3
			{at: 75 * s, amount: 1, left: 0, reset: 105 * s},                      // 6 + 4
			{at: 75 * s, amount: 1, over: true, retry: 7500 * ms, reset: 105 * s}, // 8 x 37.5/60 = 5
			{at: 75 * s, amount: 7, over: true, retry: 60 * s, reset: 105 * s},    // 4 x 45/60 = 3
			{at: 75 * s, amount: 11, over: true, retry: -1, reset: 105 * s},       //
			{at: 180 * s, amount: 10, left: 0, reset: 120 * s},                    // all is past
			{at: 170 * s, amount: 1, over: true, retry: 16 * s, reset: 70 * s},    // all is of the window before
			{at: 180 * s, amount: -11, left: 0, reset: 60 * s},                    // nothing of this one
		}},
		{"a bucket", Limit{Kind: GCRA, Max: 10, Period: time.Minute, Burst: 2}, []exactStep{
			{at: 0, amount: 3, left: 0, reset: 18 * s},
			{at: 1 * s, amount: 1, over: true, retry: 5 * s, reset: 17 * s},
			{at: 6 * s, amount: 1, left: 0, reset: 18 * s},
			{at: 6 * s, amount: 4, over: true, retry: -1, reset: 18 * s},
			{at: 8 * s, amount: -1, left: 1, reset: 10 * s},
			{at: 2 * s, amount: 0, left: 0, reset: 16 * s},
			{at: 0, amount: 1, over: true, retry: 6 * s, reset: 18 * s}, // no more than it holds
			{at: 1 * s, amount: 0, left: 0, reset: 17 * s},              // that stayed
			{at: 18 * s, amount: -5, left: 3},
		}},
		{
			"a bucket that counts what it refuses",
			Limit{Kind: GCRA, Max: 10, Period: time.Minute, Burst: 0, Counting: true},
			[]exactStep{
				{at: 0, amount: 2, over: true, retry: -1, reset: 12 * s},
				{at: 0, amount: 0, over: true, retry: 6 * s, reset: 12 * s},
				{at: 6 * s, amount: 0, left: 0, reset: 6 * s},
			},
		},
		{"a bucket with a distance", Limit{Kind: GCRA, Max: 60, Period: time.Minute, Burst: 5, Interval: 3 * s}, []exactStep{
			{at: 0, amount: 1, left: 5, reset: 3 * s},
			{at: 2 * s, amount: 1, over: true, left: 6, retry: 1 * s, reset: 1 * s},
			{at: 3 * s, amount: 1, left: 5, reset: 3 * s},
		}},
		{"a bucket that holds nothing", Limit{Kind: GCRA, Max: 0, Period: time.Minute}, []exactStep{
			{at: 0, amount: 1, over: true, retry: -1},
			{at: 0, amount: 0, over: true, retry: -1},
			{at: 0, amount: -1},
		}},
	}
}
