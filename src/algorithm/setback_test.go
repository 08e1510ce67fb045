package algorithm

import (
	"math/rand/v2"
	"testing"
	"time"
)

// After a clock was set back, each wait that a hit is told is true, and shorter than one window, or two of a sliding
// window counter. Questions in between change nothing.
func TestWaitsAfterClockWasSetBack(t *testing.T) {
	rnd := rand.New(rand.NewPCG(10, 1))
	for kind := range Concurrency {
		for range 300 {
			l := Limit{Kind: kind, Max: 1 + rnd.Uint64N(8), Period: time.Minute, CountBlocked: false}
			longest := l.Period
			switch kind {
			case SlidingWindowCounter:
				longest = 2 * l.Period
			case SlidingWindow, GCRA:
				l.MinInterval = time.Duration(rnd.IntN(2)) * 7 * time.Second
			}
			if kind == GCRA {
				l.Burst = l.Max - 1
			}
			checkWaits(t, rnd, &counter{limit: &l}, longest)
		}
	}
}

func checkWaits(t *testing.T, rnd *rand.Rand, c *counter, longest time.Duration) {
	t.Helper()
	at := thursday.UnixNano()
	for range 30 {
		at += rnd.Int64N(int64(10 * time.Second))
		c.apply(at, Charge, 1)
	}
	at -= rnd.Int64N(int64([]time.Duration{time.Second, time.Minute, time.Hour}[rnd.IntN(3)]))
	amount := 1 + rnd.Uint64N(c.limit.Max)
	v := c.apply(at, []Op{Charge, Look}[rnd.IntN(2)], amount)
	if v.RetryAfter > longest || v.ResetAfter > longest {
		t.Fatalf("%+v: %+v", *c.limit, v)
	}
	if !v.Over {
		return
	}
	passesAt := at + int64(v.RetryAfter)
	at += rnd.Int64N(int64(v.RetryAfter))
	if again := c.apply(at, []Op{Charge, Look}[rnd.IntN(2)], amount); !again.Over ||
		at+int64(again.RetryAfter) != passesAt {
		t.Fatalf("%+v: told %v, and then %v instead of %v", *c.limit, v.RetryAfter, again.RetryAfter,
			time.Duration(passesAt-at))
	}
	if v := c.apply(passesAt-1, Look, amount); !v.Over {
		t.Fatalf("%+v: passes early", *c.limit)
	}
	if v := c.apply(passesAt, Charge, amount); v.Over {
		t.Fatalf("%+v: after the wait %+v", *c.limit, v)
	}
}
