package resp

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
)

// Vectors of redis-cell 0.4.0: arguments behind the key, and the reply at the given time after the first one.
func TestThrottle(t *testing.T) {
	t.Parallel()
	type step struct {
		at         time.Duration
		args, want string
	}
	const second, ms = time.Second, time.Millisecond
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"the example of the README", []step{
			{0, "15 30 60", ":0 :16 :15 :-1 :2"},
			{0, "15 30 60 0", ":0 :16 :15 :-1 :2"},
			{0, "15 30 60 17", ":1 :16 :15 :-1 :2"},
			{0, "15 30 60 16", ":1 :16 :15 :2 :2"},
			{0, "15 30 60 9", ":0 :16 :6 :-1 :20"},
			{0, "15 30 60 7", ":1 :16 :6 :2 :20"},
			{0, "15 30 60 6", ":0 :16 :0 :-1 :32"},
			{0, "15 30 60 0", ":0 :16 :0 :-1 :32"},
			{second, "15 30 60", ":1 :16 :0 :1 :31"},
			{1500 * ms, "15 30 60", ":1 :16 :0 :1 :31"},
			{2 * second, "15 30 60", ":0 :16 :0 :-1 :32"},
			{34 * second, "15 30 60 16", ":0 :16 :0 :-1 :32"},
		}},
		{"a rest under a millisecond is dropped", []step{
			{0, "0 1 2", ":0 :1 :0 :-1 :2"},
			{0, "0 1 2", ":1 :1 :0 :2 :2"},
			{999 * ms, "0 1 2", ":1 :1 :0 :2 :2"},
			{second - 400*time.Microsecond, "0 1 2", ":1 :1 :0 :1 :1"},
			{2*second - 400*time.Microsecond, "0 1 2", ":1 :1 :0 :0 :0"},
			{2 * second, "0 1 2", ":0 :1 :0 :-1 :2"},
		}},
		{"what remains is whole microseconds", []step{
			{0, "2 3 1 3", ":0 :3 :0 :-1 :1"},
			{333_333_332, "2 3 1", ":1 :3 :1 :0 :1"},
			{333_333_333, "2 3 1", ":0 :3 :0 :-1 :1"},
		}},
		{"a quantity that is negative gives back", []step{
			{0, "4 1 1 3", ":0 :5 :2 :-1 :3"}, {0, "4 1 1 -2", ":0 :5 :4 :-1 :1"}, {0, "4 1 1 -9", ":0 :5 :5 :-1 :0"},
		}},
		{"other parameters for a key read its debt", []step{
			{0, "15 30 60 16", ":0 :16 :0 :-1 :32"}, {0, "31 30 60", ":0 :32 :15 :-1 :34"}, {0, "31 60 60", ":1 :32 :0 :3 :34"},
		}},
		{"a smaller burst waits for all of the debt", []step{
			{0, "15 30 60 16", ":0 :16 :0 :-1 :32"},
			{0, "3 30 60", ":1 :4 :0 :26 :32"},
			{0, "3 30 60 0", ":1 :4 :0 :24 :32"},
			{0, "3 30 60 5", ":1 :4 :0 :-1 :32"},
			{26 * second, "3 30 60", ":0 :4 :0 :-1 :8"},
		}},
		{"nothing passes", []step{{0, "-1 1 1", ":1 :0 :0 :-1 :0"}, {0, "-1 1 1 0", ":1 :0 :0 :-1 :0"}}},
		{"errors", []step{
			{0, "1 0 1", "-ERR Cell error: Store error: Zero rates are not supported"},
			{0, "1 1 0", "-ERR Cell error: Store error: Zero rates are not supported"},
			{0, "1 2000000000 1", "-ERR Cell error: Store error: Zero rates are not supported"},
			{0, "1.5 1 1", "-ERR Couldn't parse as integer: 1.5"},
			{0, "1 1", "-ERR wrong number of arguments for 'cl.throttle' command"},
			{0, "1 1 1 1 1", "-ERR wrong number of arguments for 'cl.throttle' command"},
			{0, "-2 1 1", "-ERR Cell error: max_burst is less than -1, or count_per_period or period are negative"},
			{0, "1 -1 1", "-ERR Cell error: max_burst is less than -1, or count_per_period or period are negative"},
			{0, "9223372036854775807 1 1", "-ERR Cell error: the burst takes longer than 100 years to fill"},
			{0, "0 1 9223372036854775807", "-ERR Cell error: the burst takes longer than 100 years to fill"},
			{0, "9223372036854775807 1000000000 1", "-ERR Cell error: the burst takes longer than 100 years to fill"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := build(t, Config{})
			for _, step := range tt.steps {
				s.now = epoch.Add(step.at)
				want := step.want
				if want[0] == ':' {
					want = "*5 " + want
				}
				converse(t, s, elsewhere, []exchange{{"CL.THROTTLE user123 " + step.args, want}})
			}
		})
	}
}

// cell is redis-cell's arithmetic in floating point and without bounds, for one key.
type cell struct{ tat int64 }

func (c *cell) throttle(now, burst, count, period, quantity int64) string {
	emission := int64(float64(period) * 1e9 / float64(count))
	tolerance, increment := emission*(burst+1), emission*quantity
	ceil := func(ns int64) int64 { return (ns/1e6 + 999) / 1000 }
	newTAT := max(now, c.tat) + increment
	spare := now - (newTAT - tolerance)
	limited, retry, ttl := 0, int64(-1), newTAT-now
	if spare < 0 {
		limited, ttl = 1, max(c.tat, now)-now
		if increment <= tolerance {
			retry = ceil(-spare)
		}
	} else {
		c.tat = newTAT
	}
	remaining := int64(0)
	if left := tolerance - ttl; left > -emission {
		remaining = left / 1e3 / (emission / 1e3)
	}
	return fmt.Sprintf("*5 :%d :%d :%d :%d :%d", limited, burst+1, remaining, retry, ceil(ttl))
}

// FuzzThrottle compares with redis-cell's own arithmetic, within what it can count.
func FuzzThrottle(f *testing.F) {
	f.Add(int64(15), int64(30), int64(60), []byte{1, 0, 16, 3, 17, 200})
	f.Add(int64(0), int64(3), int64(1), []byte{1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, burst, count, period int64, steps []byte) {
		limit, err := throttleLimit(burst, count, period)
		if err != nil || limit.Max == 0 || limit.Emission < time.Microsecond || len(steps) > 64 {
			return
		}
		s, c, now := build(t, Config{}), cell{}, int64(0)
		for i := 0; i+1 < len(steps); i += 2 {
			now += int64(steps[i+1]) * (int64(limit.Emission)/100 + 1)
			s.now = epoch.Add(time.Duration(now))
			most := burst >> (steps[i] % 3) // Other bursts read the same debt.
			want := c.throttle(s.now.UnixNano(), most, count, period, int64(steps[i]))
			converse(t, s, elsewhere, []exchange{{fmt.Sprintf("CL.THROTTLE k %d %d %d %d", most, count, period,
				steps[i]), want}})
		}
	})
}

// The limit of a caller keeps the bounds of the arithmetic.
func TestThrottleLimits(t *testing.T) {
	t.Parallel()
	for _, n := range [][3]int64{
		{0, 1, 1},
		{15, 30, 60},
		{0, 1_000_000_000, 1},
		{1 << 40, 1_000_000_000, 1},
		{0, 1, 3_153_600_000},
		{-1, 1, 1},
	} {
		limit, refused := throttleLimit(n[0], n[1], n[2])
		if refused != nil {
			t.Errorf("%v: %v", n, refused)
			continue
		}
		if err := limit.Validate(); err != nil || limit.BurstTolerance() > int64(algorithm.MaxPeriod) {
			t.Errorf("%v: %v", n, err)
		}
	}
}

// A rate is right within 0.1 %, or refused.
func TestThrottleRates(t *testing.T) {
	for count, want := range map[int64]time.Duration{
		1_000_000: 1000, 999_999: 1000, 50_000_000: 20, 70_000_000: 0,
		600_000_000: 0,
	} {
		limit, err := throttleLimit(1, count, 1)
		if limit.Emission != want || (err == nil) != (want > 0) {
			t.Errorf("%d in a second: an interval of %v, %v, want %v", count, limit.Emission, err, want)
		}
	}
}
