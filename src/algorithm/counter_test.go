package algorithm

import (
	"math"
	"slices"
	"testing"
	"time"
)

// counter is one key under one limit of any kind, as a store keeps it.
type counter struct {
	State
	limit  *Limit
	window int64 // the start of the fixed window that State.Count counts
}

// apply applies op, and stores what there is to store.
func (c *counter) apply(at int64, op Op, amount uint64) (v Outcome) {
	if start, _ := WindowBounds(at, c.limit.Period); c.limit.Kind == FixedWindow && start != c.window {
		c.window, c.FixedWindow = start, FixedState{}
	}
	return c.Take(c.limit, at, op, amount)
}

// clone is c as it is now, with a life of its own.
func (c *counter) clone() *counter {
	d := *c
	d.SlidingLog.allRecords = slices.Clone(c.SlidingLog.allRecords)
	return &d
}

// same reports whether c and d keep the same.
func (c *counter) same(d *counter) bool {
	return c.window == d.window && c.FixedWindow == d.FixedWindow && c.FirstHit == d.FirstHit &&
		c.SlidingCounter == d.SlidingCounter &&
		c.GCRA == d.GCRA && c.SlidingLog.totalBeforeFirst == d.SlidingLog.totalBeforeFirst &&
		slices.Equal(c.SlidingLog.liveRecords(), d.SlidingLog.liveRecords())
}

// isAhead reports whether c was written by a clock that was ahead of at.
func (c *counter) isAhead(at int64) bool {
	return c.FirstHit.WindowEnd > at+int64(c.limit.Period) || c.SlidingCounter.WindowStart > at ||
		c.SlidingLog.Newest() > at ||
		c.GCRA.TAT > at || c.GCRA.LastHit > at
}

// turn is one hit of a table, and all that its verdict says.
type turn struct {
	at   time.Duration // after the table's start
	op   Op
	take uint64

	over, charged, interval bool
	from, to                uint64 // the count before and after
	left                    uint64
	retry, reset            time.Duration
	full                    time.Duration // FullUntil, after the table's start; 0: not set
}

// always is the full of what no wait helps.
const always time.Duration = math.MaxInt64

// table is a limit and what happens under it, one hit after the other.
type table struct {
	name  string
	limit Limit
	start time.Time                     // zero: thursday
	begin func(start int64, c *counter) // what was there before; nil: nothing
	turns []turn
}

func runTables(t *testing.T, tables []table) {
	for _, test := range tables {
		t.Run(test.name, func(t *testing.T) {
			if err := test.limit.Validate(); err != nil {
				t.Fatal(err)
			}
			if test.start.IsZero() {
				test.start = thursday
			}
			start := test.start.UnixNano()
			c := &counter{limit: &test.limit}
			if test.begin != nil {
				test.begin(start, c)
			}
			for i, want := range test.turns {
				at := start + int64(want.at)
				before := c.clone()
				v := c.apply(at, want.op, want.take)
				checkVerdict(t, before, c, at, want.op, want.take, v)
				got := turn{
					want.at, want.op, want.take, v.Over, v.Charged, v.WithinMinInterval,
					v.Before, v.After, v.Remaining, v.RetryAfter, v.ResetAfter, 0,
				}
				switch {
				case v.FullUntil == endOfTime:
					got.full = always
				case v.FullUntil != 0:
					got.full = time.Duration(v.FullUntil - test.start.UnixNano())
				}
				if got != want {
					t.Errorf("turn %d:\n got %+v\nwant %+v", i, got, want)
				}
			}
		})
	}
}

// checkVerdict holds v, the verdict on a hit that took before to after, to what
// is true whatever the kind and the state. FixedWindow has its own rules; see
// checkFixed.
func checkVerdict(t *testing.T, before, after *counter, at int64, op Op, amount uint64, v Outcome) {
	t.Helper()
	l := before.limit
	asks := op == Charge || op == Look
	for _, rule := range []struct {
		holds bool
		words string
	}{
		{asks || !v.Over, "refunds and forced hits are never over"},
		{op != Look || !v.Charged, "a look charges nothing"},
		{op != Look || after.same(before) || before.isAhead(at), "a look writes nothing unless the clock was set back"},
		{
			amount > 0 || !v.Charged && (after.same(before) || before.isAhead(at)),
			"nothing asked writes nothing unless the clock was set back",
		},
		{v.Charged || v.Before == v.After, "what is not charged does not change the count"},
		{v.Charged || op != Charge || amount == 0 || l.Max == 0 || v.Over, "what passes is charged"},
		{op != Charge || !v.Charged || !v.Over || l.CountBlocked, "what is refused is charged only if refused hits count"},
		{!v.Over || v.Remaining == 0 || l.Kind != FixedWindow, "over leaves nothing of a fixed window"},
		{!v.Over || v.WithinMinInterval || amount == 0 || v.Remaining < amount, "an amount that is left passes"},
		{v.Remaining <= l.Capacity()-min(v.After, l.Capacity()), "no more is left than the limit less the count"},
		{!v.WithinMinInterval || v.Over, "what the interval refuses is over"},
		{(v.RetryAfter == 0) == !v.Over, "there is a wait exactly when it is over"},
		{
			(v.RetryAfter == Never) == (v.Over && max(amount, 1) > l.Capacity()),
			"only what an empty counter refuses waits for ever",
		},
		{v.RetryAfter >= 0 && v.ResetAfter >= 0, "time does not go back"},
		{v.FullUntil == 0 || v.FullUntil > at, "full is full until later"},
		{v.WindowEnd == 0 || v.WindowEnd > at, "the window ends later"},
		{(v.WindowEnd != 0) == l.HasWindowEnd() || l.Kind == FirstHitWindow, "only kinds with windows have one"},
		{v.WindowEnd == after.WindowEnd(l, at), "the window is that of the state"},
	} {
		if !rule.holds {
			t.Errorf("%v of %d at %d, limit %+v: %+v, but %s", op, amount, at, *l, v, rule.words)
		}
	}
}
