package backendtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// testClockSetBack fills counters, sets the clock back, and checks the waits that refused hits are told: each is true,
// and none is longer than a window, or two of a sliding window counter.
func (suite *Suite) testClockSetBack(t *testing.T, open func(*testing.T) backend.Backend) {
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		if slices.Contains(suite.InexactBackwards, kind) || kind == algorithm.FixedWindow {
			t.Skip("the window of the clock is part of the counter's name")
		}
		store, rnd := open(t), randomOf(t)
		for round := range suite.count(60, 12) {
			limit := ignoringBlocked(kind, 1+rnd.Uint64N(8), time.Minute)
			if kind == algorithm.SlidingWindow || kind == algorithm.GCRA {
				limit.MinInterval = time.Duration(rnd.IntN(2)) * 7 * time.Second
			}
			if suite.supports(limit) {
				checkWaitsAfterSetBack(t, store, rnd, backend.Hit{Key: fmt.Appendf(nil, "k%d", round), Limit: limit})
			}
		}
	})
}

func checkWaitsAfterSetBack(t *testing.T, store backend.Backend, rnd *rand.Rand, h backend.Hit) {
	t.Helper()
	now := epoch.Add(2 * time.Hour)
	for range 20 {
		now = now.Add(time.Duration(rnd.Int64N(10_000_000)) * time.Microsecond)
		h.Amount = 1
		send(t, store, now, h)
	}
	steps := []time.Duration{time.Second, time.Minute, time.Hour}
	now = now.Add(-time.Duration(rnd.Int64N(steps[rnd.IntN(len(steps))].Microseconds())) * time.Microsecond)
	// Each of these hits starts the wait: one that is refused, one that only looks, one of a group that is refused.
	h.Amount, h.Op, h.Atomic = 1+rnd.Uint64N(h.Limit.Max), []algorithm.Op{charge, look}[rnd.IntN(2)], rnd.IntN(3) == 0
	v := send(t, store, now, h)[0]
	longest := h.Limit.Period
	if h.Limit.Kind == algorithm.SlidingWindowCounter {
		longest *= 2
	}
	if v.RetryAfter > longest || v.ResetAfter > longest {
		t.Fatalf("%+v: %+v after the clock was set back", *h.Limit, v)
	}
	if !v.Over {
		return
	}
	passesAt := now.Add((v.RetryAfter + time.Microsecond - 1).Truncate(time.Microsecond))
	now = now.Add(time.Duration(rnd.Int64N(int64(v.RetryAfter))).Truncate(time.Microsecond))
	if v := send(t, store, now, h)[0]; !v.Over || now.Add(v.RetryAfter).After(passesAt) ||
		passesAt.Sub(now.Add(v.RetryAfter)) >= time.Microsecond {
		t.Fatalf("%+v: told a wait until %v, and then %+v at %v", *h.Limit, passesAt, v, now)
	}
	h.Op = charge
	if v := send(t, store, passesAt, h)[0]; v.Over {
		t.Fatalf("%+v: after the wait %+v", *h.Limit, v)
	}
}
