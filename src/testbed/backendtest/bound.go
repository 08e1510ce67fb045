package backendtest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// bound returns how much may pass in any stretch as long as the period, as the comment of the kind says. The stretch is open at
// one end.
func bound(l *algorithm.Limit) uint64 {
	switch l.Kind {
	case algorithm.SlidingWindow:
		return l.Max
	case algorithm.SlidingWindowCounter:
		return 2*l.Max - 1
	case algorithm.GCRA:
		return l.Burst + 1 + l.Max
	}
	return 2 * l.Max
}

// testBound compares random timelines with the bound of each kind.
func (suite *Suite) testBound(t *testing.T, open func(*testing.T) backend.Backend) {
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		store := open(t)
		for timeline := range 10 {
			limit := &algorithm.Limit{Kind: kind, Max: 1 + rnd.Uint64N(20), Period: time.Minute, CountBlocked: timeline%2 == 0}
			if kind == algorithm.GCRA {
				limit.Burst = rnd.Uint64N(20)
			}
			if suite.can(limit) {
				testTimeline(t, store, rnd, fmt.Appendf(nil, "k%d", timeline), limit)
			}
		}
	})
}

func testTimeline(t *testing.T, store backend.Backend, rnd *rand.Rand, key []byte, limit *algorithm.Limit) {
	t.Helper()
	type passed struct {
		at time.Time
		n  uint64
	}
	var all []passed
	now := epoch
	for range 300 {
		switch rnd.IntN(4) {
		case 0: // a burst
		case 1: // to about the next edge
			now = now.Truncate(time.Minute).Add(time.Minute + time.Duration(rnd.IntN(3)-1)*time.Microsecond)
		default:
			now = now.Add(time.Duration(rnd.Int64N(10_000_000)) * time.Microsecond)
		}
		n := 1 + rnd.Uint64N(3)
		if send(t, store, now, backend.Hit{Key: key, Limit: limit, Amount: n})[0].Over {
			continue
		}
		all = append(all, passed{now, n})
		sum := uint64(0)
		for i := len(all) - 1; i >= 0 && now.Sub(all[i].at) < limit.Period; i-- {
			sum += all[i].n
		}
		if sum > bound(limit) {
			t.Fatalf("%d in the %v before %v, under %+v", sum, limit.Period, now, *limit)
		}
	}
}
