package algorithm

import (
	"testing"
	"time"
)

func TestTakeGCRA(t *testing.T) { runTables(t, gcraTables()) }

func gcraTables() []table {
	const us, ms, s, m, h = time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour
	// Ten a minute, three at once: one unit comes back every 6 s.
	limit := func(distance time.Duration, countBlocked bool) Limit {
		return Limit{Kind: GCRA, Max: 10, Period: m, Burst: 2, MinInterval: distance, CountBlocked: countBlocked}
	}
	polite, counting := limit(0, false), limit(0, true)
	const most = 525_600_000 // units of 6 s in 100 years
	const slow = MaxPeriod / (1<<32 - 1)
	return []table{
		{name: "the example of the comment", limit: polite, turns: []turn{
			{take: 1, charged: true, to: 1, left: 2, reset: 6 * s},
			{take: 1, charged: true, from: 1, to: 2, left: 1, reset: 12 * s},
			{take: 1, charged: true, from: 2, to: 3, reset: 18 * s, full: 6 * s},
			{take: 1, over: true, from: 3, to: 3, retry: 6 * s, reset: 18 * s, full: 6 * s},
			{at: 6*s - 1, take: 1, over: true, from: 3, to: 3, retry: 1, reset: 12*s + 1, full: 6 * s},
			{at: 6 * s, take: 1, charged: true, from: 2, to: 3, reset: 18 * s, full: 12 * s},
			{at: 24*s - 1, op: Look, take: 3, over: true, from: 1, to: 1, left: 2, retry: 1, reset: 1},
			{at: 24 * s, op: Look, take: 3, left: 3},
		}},
		{name: "redis-cell's 15 30 60", limit: Limit{Kind: GCRA, Max: 30, Period: m, Burst: 15}, turns: []turn{
			{take: 1, charged: true, to: 1, left: 15, reset: 2 * s},
			{take: 0, from: 1, to: 1, left: 15, reset: 2 * s},
			{take: 17, over: true, from: 1, to: 1, left: 15, retry: Never, reset: 2 * s},
			{take: 16, over: true, from: 1, to: 1, left: 15, retry: 2 * s, reset: 2 * s}, // a full bucket, or none
			{take: 9, charged: true, from: 1, to: 10, left: 6, reset: 20 * s},
			{take: 7, over: true, from: 10, to: 10, left: 6, retry: 2 * s, reset: 20 * s},
			{take: 6, charged: true, from: 10, to: 16, reset: 32 * s, full: 2 * s},
			{take: 0, from: 16, to: 16, reset: 32 * s, full: 2 * s},
			{at: 1 * s, take: 1, over: true, from: 16, to: 16, retry: 1 * s, reset: 31 * s, full: 2 * s},
			{at: 1500 * ms, take: 1, over: true, from: 16, to: 16, retry: 500 * ms, reset: 30500 * ms, full: 2 * s},
			{at: 2 * s, take: 1, charged: true, from: 15, to: 16, reset: 32 * s, full: 4 * s}, // hammering delays nothing
			{at: 34 * s, take: 16, charged: true, to: 16, reset: 32 * s, full: 36 * s},
		}},
		{name: "no burst is a pace", limit: Limit{Kind: GCRA, Max: 4, Period: s}, turns: []turn{
			{take: 1, charged: true, to: 1, reset: 250 * ms, full: 250 * ms},
			{take: 2, over: true, from: 1, to: 1, retry: Never, reset: 250 * ms, full: 250 * ms},
			{at: 250*ms - 1, take: 1, over: true, from: 1, to: 1, retry: 1, reset: 1, full: 250 * ms},
			{at: 250 * ms, take: 1, charged: true, to: 1, reset: 250 * ms, full: 500 * ms},
			{at: 600 * ms, take: 1, charged: true, to: 1, reset: 250 * ms, full: 850 * ms}, // a late one gains nothing
		}},
		{
			name: "three in a second come back a little early", limit: Limit{Kind: GCRA, Max: 3, Period: s, Burst: 2},
			turns: []turn{
				{take: 3, charged: true, to: 3, reset: 999_999_999, full: 333_333_333},
				{at: 333_333_332, take: 1, over: true, from: 3, to: 3, retry: 1, reset: 666_666_667, full: 333_333_333},
				{at: 333_333_333, take: 1, charged: true, from: 2, to: 3, reset: 999_999_999, full: 666_666_666},
			},
		},
		{name: "asked for nothing at first, charged afterwards", limit: counting, turns: []turn{
			{take: 0, left: 3},
			{op: Force, take: 10, charged: true, to: 10, reset: 60 * s},
			{op: Look, take: 0, over: true, from: 10, to: 10, retry: 42 * s, reset: 60 * s},
			{at: 42 * s, take: 0, from: 3, to: 3, reset: 18 * s},
			{at: 42 * s, op: Look, take: 1, over: true, from: 3, to: 3, retry: 6 * s, reset: 18 * s},
			{at: 48 * s, take: 1, charged: true, from: 2, to: 3, reset: 18 * s},
		}},
		{name: "refunds of what is owed", limit: counting, turns: []turn{
			{op: Force, take: 10, charged: true, to: 10, reset: 60 * s},
			{op: Refund, take: 6, charged: true, from: 10, to: 4, reset: 24 * s}, // never over
			{op: Refund, take: 2, charged: true, from: 4, to: 2, left: 1, reset: 12 * s},
		}},
		{name: "a distance, and refused hits count", limit: limit(1*s, true), turns: []turn{
			{take: 1, charged: true, to: 1, left: 2, reset: 6 * s},
			{
				at: 500 * ms, take: 1, over: true, charged: true, interval: true, from: 1, to: 2, left: 1, retry: 1 * s,
				reset: 11500 * ms,
			},
			{
				at: 1500*ms - 1, op: Look, take: 1, over: true, interval: true, from: 2, to: 2, left: 1, retry: 1,
				reset: 10500*ms + 1,
			},
			{at: 1500 * ms, take: 1, charged: true, from: 2, to: 3, reset: 16500 * ms},
			{
				at: 1600 * ms, take: 1, over: true, charged: true, interval: true, from: 3, to: 4, retry: 10400 * ms,
				reset: 22400 * ms,
			},
		}},
		{name: "a distance longer than the period", limit: limit(90*s, false), turns: []turn{
			{take: 3, charged: true, to: 3, reset: 90 * s, full: 90 * s},
			{at: 60 * s, take: 1, over: true, interval: true, left: 3, retry: 30 * s, reset: 30 * s, full: 90 * s},
			{at: 90*s - 1, take: 1, over: true, interval: true, left: 3, retry: 1, reset: 1, full: 90 * s},
			{at: 90 * s, take: 1, charged: true, to: 1, left: 2, reset: 90 * s, full: 180 * s},
			// the hit was
			{at: 92 * s, op: Refund, take: 1, charged: true, from: 1, to: 0, left: 3, reset: 88 * s, full: 180 * s},
			{at: 180 * s, take: 1, charged: true, to: 1, left: 2, reset: 90 * s, full: 270 * s},
			{at: 270 * s, op: Refund, take: 1, left: 3},
		}},
		{name: "a clock that steps back is waited for if refused hits count", limit: counting, turns: []turn{
			{at: h, take: 1, charged: true, to: 1, left: 2, reset: 6 * s},
			{at: 0, take: 1, over: true, charged: true, from: 601, to: 602, retry: h, reset: h + 12*s},
			{at: h, take: 1, charged: true, from: 2, to: 3, reset: 18 * s},
		}},
		{
			name:  "a clock that steps back begins the distance anew",
			limit: Limit{Kind: GCRA, Max: 10, Period: m, Burst: 1000, MinInterval: s}, turns: []turn{
				{at: h, take: 1, charged: true, to: 1, left: 1000, reset: 6 * s, full: h + 1*s},
				{
					at: 0, take: 1, over: true, interval: true, from: 601, to: 601, left: 400, retry: 1 * s, reset: h + 6*s,
					full: 1 * s,
				},
				{
					at: 1*s - 1, take: 1, over: true, interval: true, from: 601, to: 601, left: 400, retry: 1, reset: h + 5*s + 1,
					full: 1 * s,
				},
				{at: 1 * s, take: 1, charged: true, from: 601, to: 602, left: 399, reset: h + 11*s, full: 2 * s},
			},
		},
		{
			name: "a refund pulls in as well", limit: polite,
			begin: func(start int64, c *counter) { c.GCRA.TAT = start + int64(h) },
			turns: []turn{
				{op: Refund, take: 1, charged: true, from: 3, to: 2, left: 1, reset: 12 * s},
				{take: 1, charged: true, from: 2, to: 3, reset: 18 * s, full: 6 * s},
			},
		},
		{name: "debt stops growing at 100 years", limit: counting, start: latestValidInstant, turns: []turn{
			{take: MaxAmount, over: true, charged: true, to: most, retry: Never, reset: MaxPeriod},
			{take: 1, over: true, charged: true, from: most, to: most, retry: MaxPeriod - 12*s, reset: MaxPeriod},
			{op: Force, take: MaxAmount, charged: true, from: most, to: most, reset: MaxPeriod},
			{op: Refund, take: most - 1, charged: true, from: most, to: 1, left: 2, reset: 6 * s},
		}},
		{
			name: "the largest bucket of a rule file", start: latestValidInstant,
			limit: Limit{Kind: GCRA, Max: 1<<32 - 1, Period: MaxPeriod, Burst: 1<<32 - 2}, turns: []turn{
				{take: 1<<32 - 1, charged: true, to: 1<<32 - 1, reset: slow * (1<<32 - 1), full: slow},
				{take: 1, over: true, from: 1<<32 - 1, to: 1<<32 - 1, retry: slow, reset: slow * (1<<32 - 1), full: slow},
				{take: 1 << 32, over: true, from: 1<<32 - 1, to: 1<<32 - 1, retry: Never, reset: slow * (1<<32 - 1), full: slow},
				{take: MaxAmount, over: true, from: 1<<32 - 1, to: 1<<32 - 1, retry: Never, reset: slow * (1<<32 - 1), full: slow},
			},
		},
		{
			name: "one in 100 years", start: latestValidInstant,
			limit: Limit{Kind: GCRA, Max: 1, Period: MaxPeriod}, turns: []turn{
				{take: 2, over: true, left: 1, retry: Never},
				{take: MaxAmount, over: true, left: 1, retry: Never},
				{take: 1, charged: true, to: 1, reset: MaxPeriod, full: MaxPeriod},
				{take: 1, over: true, from: 1, to: 1, retry: MaxPeriod, reset: MaxPeriod, full: MaxPeriod},
			},
		},
		{
			name:  "one in a nanosecond",
			limit: Limit{Kind: GCRA, Max: 1_000_000, Period: ms, Burst: 999_999}, turns: []turn{
				{take: 1_000_000, charged: true, to: 1_000_000, reset: ms, full: 1},
				{at: 1, take: 1, charged: true, from: 999_999, to: 1_000_000, reset: ms, full: 2},
				{at: 1, take: 2, over: true, from: 1_000_000, to: 1_000_000, retry: 2, reset: ms, full: 2},
			},
		},
		{
			name: "the first instant there is", limit: limit(1*s, false), start: time.Unix(0, 0), turns: []turn{
				{take: 1, charged: true, to: 1, left: 2, reset: 6 * s, full: 1 * s},
				{take: 1, over: true, interval: true, from: 1, to: 1, left: 2, retry: 1 * s, reset: 6 * s, full: 1 * s},
				{at: 1 * s, take: 1, charged: true, from: 1, to: 2, left: 1, reset: 11 * s, full: 2 * s},
			},
		},
	}
}

// A limit that grows frees at once, a limit that shrinks owes no more than its
// bucket: the arrival time knows nothing of either.
func TestGCRAWithAnotherLimit(t *testing.T) {
	small := Limit{Kind: GCRA, Max: 10, Period: time.Minute, Burst: 2}
	large := Limit{Kind: GCRA, Max: 10, Period: time.Minute, Burst: 9}
	at := thursday.UnixNano()
	s, v := TakeGCRA(&large, GCRAState{}, at, Charge, 10)
	if v.Over || v.ResetAfter != time.Minute {
		t.Fatalf("%+v", v)
	}
	s, v = TakeGCRA(&small, s, at, Charge, 1)
	if !v.Over || v.Charged || v.Before != 3 || v.RetryAfter != 6*time.Second {
		t.Errorf("%+v", v)
	}
	s, v = TakeGCRA(&small, s, at+int64(6*time.Second), Charge, 1) // as it was told
	if v.Over || v.ResetAfter != 18*time.Second {
		t.Errorf("%+v", v)
	}
	if _, v = TakeGCRA(&large, s, at+int64(6*time.Second), Charge, 7); v.Over {
		t.Errorf("%+v", v)
	}
}

// A limit that keeps its debt waits for all of it after it has shrunk, as redis-cell does.
func TestGCRAKeepsDebt(t *testing.T) {
	small := Limit{Kind: GCRA, Max: 10, Period: time.Minute, Burst: 2, KeepsDebt: true}
	large := Limit{Kind: GCRA, Max: 10, Period: time.Minute, Burst: 9, KeepsDebt: true}
	at, second := thursday.UnixNano(), int64(time.Second)
	s, _ := TakeGCRA(&large, GCRAState{}, at, Charge, 10) // It owes 60 s, and the small limit lets owe 18 s.
	for i, step := range []struct {
		after        int64 // in seconds.
		op           Op
		amount       uint64
		over         bool
		retry, reset time.Duration
	}{
		{0, Charge, 1, true, 48 * time.Second, 60 * time.Second},
		{0, Charge, 0, true, 42 * time.Second, 60 * time.Second},
		{10, Charge, 3, true, 50 * time.Second, 50 * time.Second},
		{10, Refund, 5, false, 0, 20 * time.Second},
		{20, Charge, 1, false, 0, 16 * time.Second},
	} {
		var v Outcome
		s, v = TakeGCRA(&small, s, at+step.after*second, step.op, step.amount)
		if v.Over != step.over || v.RetryAfter != step.retry || v.ResetAfter != step.reset {
			t.Errorf("step %d: %+v", i+1, v)
		}
	}
}

// A user of redis-cell printed what 101 calls say, a millisecond apart, that
// charge 15 30 60 for the user and 5 10 15 for the user's trades: limited, limit,
// remaining, and the seconds of retry and reset, which were cut off then.
func TestGCRATranscript(t *testing.T) {
	type reply [5]int
	user := Limit{Kind: GCRA, Max: 30, Period: 60 * time.Second, Burst: 15}
	trade := Limit{Kind: GCRA, Max: 10, Period: 15 * time.Second, Burst: 5}
	call := func(c *counter, at int64) reply {
		v := c.apply(at, Charge, 1)
		r := reply{0, int(c.limit.Capacity()), int(v.Remaining), -1, int(v.ResetAfter / time.Second)}
		if v.Over {
			r[0], r[3] = 1, int(v.RetryAfter/time.Second)
		}
		return r
	}
	users, trades := counter{limit: &user}, counter{limit: &trade}
	for k := 1; k <= 101; k++ {
		wantUser := reply{1, 16, 0, 1, 31}
		if k <= 16 { // two seconds more for each, less what has gone by
			wantUser = reply{0, 16, 16 - k, -1, 2*k - min(k-1, 1)}
		}
		wantTrade := reply{1, 6, 0, 1, 8}
		if k <= 6 {
			wantTrade = reply{0, 6, 6 - k, -1, []int{1, 2, 4, 5, 7, 8}[k-1]}
		}
		at := thursday.UnixNano() + int64(k-1)*int64(time.Millisecond)
		if got := call(&users, at); got != wantUser {
			t.Errorf("call %d, user: %v, want %v", k, got, wantUser)
		}
		if got := call(&trades, at); got != wantTrade {
			t.Errorf("call %d, trade: %v, want %v", k, got, wantTrade)
		}
	}
}
