package algorithm

import (
	"testing"
	"time"
)

// bound is the most that passes in a stretch of length d, its first and last
// instant included; d is at most a period.
func bound(l *Limit, d time.Duration) uint64 {
	switch l.Kind {
	case FixedWindow, FirstHitWindow:
		return 2 * l.Max
	case SlidingWindow:
		if d < l.Period {
			return l.Max
		}
		return 2 * l.Max // both ends count: a period lies between them
	case SlidingWindowCounter:
		// The earlier window counts c <= Max, and when y of the later has gone by, no
		// more than Max - c x (1 - y/period) have passed in that. Together that is
		// Max + c x y/period, cut to a whole number. If the stretch begins in the
		// last nanosecond of the earlier window, y is d less that nanosecond: for a
		// whole period it is 2 x Max - 1, or less if Max is above one in a nanosecond.
		more, _ := mulDiv(l.Max, uint64(max(d-1, 0)), uint64(l.Period))
		return l.Max + more
	default:
		if l.Max == 0 {
			return 0
		}
		return l.Burst + 1 + uint64(d)/uint64(l.EmissionInterval())
	}
}

// worst tries all that can pass at the instants from at to end, and returns the
// most in any stretch of length d.
func worst(c *counter, at, end, d int64) uint64 {
	passed := make([]uint64, end)
	var try func(c *counter, at int64) uint64
	try = func(c *counter, at int64) (found uint64) {
		if at == end {
			return 0
		}
		room := c.clone().apply(at, Look, 0).Remaining
		for n := range room + 1 {
			next := c.clone()
			if v := next.apply(at, Charge, n); v.Over {
				panic("what remains does not pass")
			}
			passed[at] = n
			var sum uint64
			for _, n := range passed[max(at-d, 0) : at+1] {
				sum += n
			}
			found = max(found, sum, try(next, at+1))
		}
		passed[at] = 0
		return found
	}
	return try(c, at)
}

// The bounds hold in worlds so small that everything can be tried, and nothing
// lower does.
func TestWorstCases(t *testing.T) {
	const period = 5
	for _, limit := range []Limit{
		{Kind: FixedWindow, Max: 1},
		{Kind: FixedWindow, Max: 3},
		{Kind: FirstHitWindow, Max: 1},
		{Kind: FirstHitWindow, Max: 3},
		{Kind: SlidingWindow, Max: 1},
		{Kind: SlidingWindow, Max: 3},
		{Kind: SlidingWindowCounter, Max: 1},
		{Kind: SlidingWindowCounter, Max: 2},
		{Kind: SlidingWindowCounter, Max: 3},
		{Kind: SlidingWindowCounter, Max: 4},
		{Kind: GCRA, Max: 1},
		{Kind: GCRA, Max: 2, Burst: 1},
		{Kind: GCRA, Max: 1, Burst: 3},
		{Kind: GCRA, Max: 5, Burst: 1},
	} {
		limit.Period = period
		// One tick shorter than the period, and as long.
		for d := int64(period - 1); d <= period; d++ {
			want := bound(&limit, time.Duration(d))
			if limit.Kind == FirstHitWindow && d < period {
				want-- // the first of the earlier window came too early
			}
			if got := worst(&counter{limit: &limit}, period, 3*period+1, d); got != want {
				t.Errorf("%+v: %d pass within %d of %d, want %d", limit, got, d, period, want)
			}
		}
	}
}

// checkBound adds up every stretch of what passed, less what was given back.
func checkBound(t *testing.T, l *Limit, passed []moment) {
	t.Helper()
	for i, first := range passed {
		var sum uint64
		for _, m := range passed[i:] {
			if m.at-first.at > int64(l.Period) {
				break
			}
			if m.op == Refund {
				if m.amount >= sum { // what follows begins a stretch of its own
					break
				}
				sum -= m.amount
				continue
			}
			sum += m.amount
			if d := time.Duration(m.at - first.at); sum > bound(l, d) {
				t.Fatalf("%+v: %d passed within %v, want no more than %d", *l, sum, d, bound(l, d))
			}
		}
	}
}

// In random timelines the bounds hold, too. With refunds they hold for what
// passed less what was given back, wherever that was charged; not where refused
// hits count, for then it may be those that are given back.
func TestBounds(t *testing.T) {
	for kind := range numKinds {
		t.Run(kind.String(), func(t *testing.T) {
			randomly(t, 1000, func(t *testing.T, script []byte) {
				tl, ok := decode(kind, script)
				if !ok {
					t.Fatal("a bad script")
				}
				tl.back, tl.force = false, false
				tl.give = tl.give && !tl.limit.CountBlocked
				c := &counter{limit: &tl.limit}
				var passed []moment
				tl.play(func(m moment) Outcome {
					v := c.apply(m.at, m.op, m.amount)
					switch {
					case !v.Charged || v.Over:
					case m.op == Charge:
						passed = append(passed, m)
					case m.op == Refund:
						passed = append(passed, moment{m.at, Refund, min(m.amount, v.Before)})
					}
					return v
				})
				checkBound(t, &tl.limit, passed)
			})
		})
	}
}
