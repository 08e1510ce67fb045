package algorithm

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestTakeSliding(t *testing.T) { runTables(t, slidingTables()) }

func slidingTables() []table {
	const us, ms, s, h = time.Microsecond, time.Millisecond, time.Second, time.Hour
	limit := func(most uint64, distance time.Duration, countBlocked bool) Limit {
		return Limit{Kind: SlidingWindow, Max: most, Period: 10 * s, MinInterval: distance, CountBlocked: countBlocked}
	}
	polite := func(most uint64) Limit { return limit(most, 0, false) }
	counting := func(most uint64) Limit { return limit(most, 0, true) }
	return []table{
		{name: "the example of the comment, refused hits do not count", limit: polite(2), turns: []turn{
			{at: 0, take: 1, charged: true, to: 1, left: 1, reset: 10 * s},
			{at: 1 * s, take: 1, charged: true, from: 1, to: 2, reset: 10 * s, full: 10 * s},
			{at: 2 * s, take: 1, over: true, from: 2, to: 2, retry: 8 * s, reset: 9 * s, full: 10 * s},
			{at: 10*s - 1, take: 1, over: true, from: 2, to: 2, retry: 1, reset: 1*s + 1, full: 10 * s},
			{at: 10 * s, take: 1, charged: true, from: 1, to: 2, reset: 10 * s, full: 11 * s},
			{at: 11*s - 1, take: 1, over: true, from: 2, to: 2, retry: 1, reset: 9*s + 1, full: 11 * s},
			{at: 11 * s, take: 1, charged: true, from: 1, to: 2, reset: 10 * s, full: 20 * s},
		}},
		{name: "the example of the comment, refused hits count", limit: counting(2), turns: []turn{
			{at: 0, take: 1, charged: true, to: 1, left: 1, reset: 10 * s},
			{at: 1 * s, take: 1, charged: true, from: 1, to: 2, reset: 10 * s},
			{at: 2 * s, take: 1, over: true, charged: true, from: 2, to: 3, retry: 9 * s, reset: 10 * s},
			{at: 11*s - us, op: Look, take: 1, over: true, from: 2, to: 2, retry: us, reset: 1*s + us},
			{at: 11 * s, take: 1, charged: true, from: 1, to: 2, reset: 10 * s},
		}},
		{name: "retries never pass if refused hits count", limit: counting(2), turns: []turn{
			{at: 0, take: 1, charged: true, to: 1, left: 1, reset: 10 * s},
			{at: 4 * s, take: 1, charged: true, from: 1, to: 2, reset: 10 * s},
			{at: 8 * s, take: 1, over: true, charged: true, from: 2, to: 3, retry: 6 * s, reset: 10 * s},
			{at: 12 * s, take: 1, over: true, charged: true, from: 2, to: 3, retry: 6 * s, reset: 10 * s},
			{at: 16 * s, take: 1, over: true, charged: true, from: 2, to: 3, retry: 6 * s, reset: 10 * s},
			{at: 20 * s, take: 1, over: true, charged: true, from: 2, to: 3, retry: 6 * s, reset: 10 * s},
			{at: 26 * s, take: 1, charged: true, from: 1, to: 2, reset: 10 * s},
		}},
		{name: "several units wait for as many to leave", limit: polite(5), turns: []turn{
			{at: 0, take: 3, charged: true, to: 3, left: 2, reset: 10 * s},
			{at: 2 * s, take: 2, charged: true, from: 3, to: 5, reset: 10 * s, full: 10 * s},
			{at: 3 * s, take: 1, over: true, from: 5, to: 5, retry: 7 * s, reset: 9 * s, full: 10 * s},
			{at: 3 * s, take: 3, over: true, from: 5, to: 5, retry: 7 * s, reset: 9 * s, full: 10 * s},
			{at: 3 * s, take: 4, over: true, from: 5, to: 5, retry: 9 * s, reset: 9 * s, full: 10 * s},
			{at: 3 * s, take: 6, over: true, from: 5, to: 5, retry: Never, reset: 9 * s, full: 10 * s},
			{at: 10 * s, take: 4, over: true, from: 2, to: 2, left: 3, retry: 2 * s, reset: 2 * s},
			{at: 10 * s, take: 3, charged: true, from: 2, to: 5, reset: 10 * s, full: 12 * s},
		}},
		{name: "more than the limit at once shuts the window if refused hits count", limit: counting(5), turns: []turn{
			{take: 6, over: true, charged: true, to: 6, retry: Never, reset: 10 * s},
			{at: 1 * s, take: 2, over: true, charged: true, from: 6, to: 8, retry: 9 * s, reset: 10 * s},
			{at: 1 * s, take: MaxAmount, over: true, charged: true, from: 8, to: MaxAmount + 8, retry: Never, reset: 10 * s},
			{at: 11*s - 1, op: Look, take: 0, over: true, from: MaxAmount + 2, to: MaxAmount + 2, retry: 1, reset: 1},
			{at: 11 * s, take: 5, charged: true, to: 5, reset: 10 * s},
		}},
		{name: "nothing asked passes until the count is beyond the limit", limit: counting(2), turns: []turn{
			{take: 0, left: 2},
			{take: 2, charged: true, to: 2, reset: 10 * s},
			{at: 1 * s, take: 0, from: 2, to: 2, reset: 9 * s},
			// the two leave together
			{at: 1 * s, take: 1, over: true, charged: true, from: 2, to: 3, retry: 9 * s, reset: 10 * s},
			{at: 1 * s, take: 0, over: true, from: 3, to: 3, retry: 9 * s, reset: 10 * s},
			{at: 10 * s, take: 0, from: 1, to: 1, left: 1, reset: 1 * s},
		}},
		{name: "what has more than the limit after it is forgotten", limit: polite(2), turns: []turn{
			{at: 0, op: Force, take: 5, charged: true, to: 5, reset: 10 * s, full: 10 * s},
			{at: 1 * s, op: Force, take: 3, charged: true, from: 5, to: 8, reset: 10 * s, full: 11 * s},
			{at: 1 * s, take: 1, over: true, from: 3, to: 3, retry: 10 * s, reset: 10 * s, full: 11 * s},
			{at: 1 * s, op: Refund, take: 8, charged: true, from: 3, to: 0, left: 2},
		}},
		{name: "a distance, and refused hits count", limit: limit(10, 1*s, true), turns: []turn{
			{at: 0, take: 1, charged: true, to: 1, left: 9, reset: 10 * s},
			{
				at: 999 * ms, take: 1, over: true, charged: true, interval: true, from: 1, to: 2, left: 8, retry: 1 * s,
				reset: 10 * s,
			},
			{
				at: 1998 * ms, take: 1, over: true, charged: true, interval: true, from: 2, to: 3, left: 7, retry: 1 * s,
				reset: 10 * s,
			},
			{
				at: 2997 * ms, op: Look, take: 1, over: true, interval: true, from: 3, to: 3, left: 7, retry: 1 * ms,
				reset: 9001 * ms,
			},
			{at: 2998 * ms, take: 1, charged: true, from: 3, to: 4, left: 6, reset: 10 * s},
		}},
		{name: "the distance to the hit before one that was given back", limit: limit(2, 60*s, false), turns: []turn{
			{at: 0, take: 1, charged: true, to: 1, left: 1, reset: 60 * s, full: 60 * s},
			{at: 50 * s, op: Force, take: 1, charged: true, to: 1, left: 1, reset: 60 * s, full: 110 * s},
			{at: 55 * s, op: Refund, take: 1, charged: true, from: 1, to: 0, left: 2, reset: 5 * s, full: 60 * s},
			{at: 59 * s, take: 1, over: true, interval: true, left: 2, retry: 1 * s, reset: 1 * s, full: 60 * s},
			{at: 60 * s, take: 1, charged: true, to: 1, left: 1, reset: 60 * s, full: 120 * s},
		}},
		{name: "a clock that steps back within the window", limit: polite(3), turns: []turn{
			{at: 0, take: 1, charged: true, to: 1, left: 2, reset: 10 * s},
			{at: 5 * s, take: 1, charged: true, from: 1, to: 2, left: 1, reset: 10 * s},
			{at: 6 * s, take: 1, charged: true, from: 2, to: 3, reset: 10 * s, full: 10 * s},
			{at: 4 * s, op: Look, take: 2, over: true, from: 3, to: 3, retry: 10 * s, reset: 10 * s, full: 10 * s},
			{at: 10 * s, take: 1, charged: true, from: 2, to: 3, reset: 10 * s, full: 14 * s},
			{at: 14 * s, take: 2, charged: true, from: 1, to: 3, reset: 10 * s, full: 20 * s},
		}},
		{name: "a clock that steps back, and a distance", limit: limit(2, 1*s, false), turns: []turn{
			{at: h, take: 1, charged: true, to: 1, left: 1, reset: 10 * s, full: h + 1*s},
			{at: 0, take: 0, over: true, interval: true, from: 1, to: 1, left: 1, retry: 1 * s, reset: 10 * s, full: 1 * s},
			{at: 1 * s, take: 1, charged: true, from: 1, to: 2, reset: 10 * s, full: 10 * s},
		}},
		{
			name: "the first instant there is", limit: limit(1, 2*s, false), start: time.Unix(0, 0), turns: []turn{
				{take: 1, charged: true, to: 1, reset: 10 * s, full: 10 * s},
				{take: 1, over: true, interval: true, from: 1, to: 1, retry: 10 * s, reset: 10 * s, full: 10 * s},
				{at: 2 * s, take: 1, over: true, from: 1, to: 1, retry: 8 * s, reset: 8 * s, full: 10 * s},
				{at: 10 * s, take: 1, charged: true, to: 1, reset: 10 * s, full: 20 * s},
			},
		},
		{
			name: "the longest and last window there is", start: latestValidInstant,
			limit: Limit{Kind: SlidingWindow, Max: MaxLoggedHits, Period: MaxPeriod, MinInterval: MaxPeriod}, turns: []turn{
				{take: MaxLoggedHits, charged: true, to: MaxLoggedHits, reset: MaxPeriod, full: MaxPeriod},
				{
					take: 1, over: true, interval: true, from: MaxLoggedHits, to: MaxLoggedHits, retry: MaxPeriod, reset: MaxPeriod,
					full: MaxPeriod,
				},
			},
		},
	}
}

// The units of one instant have one record, which would overflow after 65,536 hits
// of the largest amount.
func TestSlidingStopsCounting(t *testing.T) {
	limit := Limit{Kind: SlidingWindow, Max: 1, Period: 10 * time.Second, CountBlocked: true}
	c := counter{limit: &limit}
	at, before := thursday.UnixNano(), uint64(0)
	for range 70_000 {
		v := c.apply(at, Force, MaxAmount)
		if v.Before < before || v.After < v.Before || v.After > MaxScriptCount {
			t.Fatalf("after %d: %+v", before, v)
		}
		before = v.After
	}
	if before != MaxScriptCount {
		t.Errorf("the count is %d, want %d", before, int64(MaxScriptCount))
	}
	// What comes on top is still recorded, and waited for.
	if v := c.apply(at+int64(time.Second), Charge, 1); !v.Charged || v.After != MaxScriptCount ||
		v.RetryAfter != 10*time.Second {
		t.Errorf("%+v", v)
	}
	if v := c.apply(at+int64(11*time.Second), Charge, 1); v.Over || v.After != 1 {
		t.Errorf("%+v", v)
	}
}

// Totals grow for ever, and begin anew before they overflow.
func TestSlidingCountsOn(t *testing.T) {
	limit := Limit{Kind: SlidingWindow, Max: 3, Period: 10 * time.Second, CountBlocked: true}
	c := counter{limit: &limit}
	for i := range int64(100_000) {
		at := i * int64(time.Second)
		if v := c.apply(at, Force, MaxAmount); v.After < MaxAmount || v.After > 2*MaxAmount {
			t.Fatalf("hit %d: %+v", i, v)
		}
	}
}

func checkMemory(t *testing.T, g *Log, limit uint64) {
	t.Helper()
	if n := g.Len(); uint64(n) > limit+1 {
		t.Fatalf("%d records for a limit of %d", n, limit)
	}
	if marks := g.liveRecords(); len(marks) > 0 && marks[len(marks)-1].runningTotal-marks[0].runningTotal > limit {
		t.Fatalf("%d units after the oldest record for a limit of %d",
			marks[len(marks)-1].runningTotal-marks[0].runningTotal, limit)
	}
	if n, room := g.Len(), g.Cap(); room > 4*n+8 {
		t.Fatalf("memory for %d of %d records", n, room)
	}
}

// Whatever is thrown at a log, it keeps no more than the limit needs.
func TestLogIsBounded(t *testing.T) {
	for _, most := range []uint64{0, 1, 2, 10, 1000} {
		for _, countBlocked := range []bool{false, true} {
			limit := Limit{
				Kind: SlidingWindow, Max: most, Period: time.Second, MinInterval: time.Hour,
				CountBlocked: countBlocked,
			}
			c := counter{limit: &limit}
			rnd := rand.New(rand.NewPCG(most, 1))
			at := thursday.UnixNano()
			for range 10*most + 1000 {
				at += rnd.Int64N(3)
				op := []Op{Charge, Charge, Charge, Force, Refund, Look}[rnd.IntN(6)]
				c.apply(at, op, rnd.Uint64N(4)*rnd.Uint64N(2))
				checkMemory(t, &c.SlidingLog, most)
			}
		}
	}
}

// A log that was large once does not stay so, whether its hits leave by time or
// are given back, and however slowly others come.
func TestLogGivesMemoryBack(t *testing.T) {
	const most = 100_000
	limit := Limit{Kind: SlidingWindow, Max: most, Period: time.Hour}
	fill := func() *counter {
		c := &counter{limit: &limit}
		for i := range int64(most) {
			c.apply(i, Charge, 1)
		}
		if c.SlidingLog.Len() != most {
			t.Fatalf("%d records", c.SlidingLog.Len())
		}
		checkMemory(t, &c.SlidingLog, most)
		return c
	}
	c := fill()
	c.apply(int64(2*time.Hour), Charge, 1)
	if c.SlidingLog.Len() != 1 || c.SlidingLog.Cap() > 12 {
		t.Errorf("one hit, later: memory for %d, want a few", c.SlidingLog.Cap())
	}
	c = fill()
	if c.apply(most, Refund, most); c.SlidingLog.Len() != 0 || c.SlidingLog.Cap() > 8 {
		t.Errorf("all given back: memory for %d, want a few", c.SlidingLog.Cap())
	}
	c = fill()
	for i := range int64(most) { // half of them leave, one by one
		c.apply(int64(time.Hour)+i, Charge, uint64(i%2))
		checkMemory(t, &c.SlidingLog, most)
	}
}

// Once a log is as large as it gets, hits that come as others leave cost no
// memory.
func TestSlidingAllocatesNothing(t *testing.T) {
	for _, most := range []uint64{1, 10, 1000} {
		limit := Limit{Kind: SlidingWindow, Max: most, Period: time.Second}
		c, at := counter{limit: &limit}, thursday.UnixNano()
		step := func() {
			if v := c.apply(at, Charge, 1); v.Over {
				t.Fatal("over")
			}
			at += int64(limit.Period) / int64(most)
		}
		for range 3 * most {
			step()
		}
		// All in one run: the average of many would be rounded down to none.
		if n := testing.AllocsPerRun(1, func() {
			for range 10 * most {
				step()
			}
		}); n != 0 {
			t.Errorf("limit %d: %v allocations in %d hits", most, n, 10*most)
		}
	}
}
