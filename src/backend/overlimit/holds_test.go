package overlimit

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// The cache answers no hit on a limit with holds, even if it knows that a limit without holds is full under the same
// key and window.
func TestHoldsAreNotCached(t *testing.T) {
	t.Parallel()
	later := epoch.Add(time.Second) // The cache knows nothing of a bucket that was filled at this instant.
	for kind := range algorithm.Concurrency + 1 {
		plain := algorithm.Limit{Kind: kind, Max: 3, Period: time.Minute}
		if kind == algorithm.GCRA {
			plain.Burst = 2
		}
		held := plain
		held.Hold = time.Minute // A concurrency has the same Period.
		c, store := open(t)
		named := func(name string, op algorithm.Op) backend.Hit {
			h := hit("k", &held, 1)
			h.Op, h.HoldID = op, backend.NewHoldID([]byte(name))
			return h
		}
		if kind != algorithm.Concurrency {
			store.send(t, c, epoch, hit("k", &plain, 3))
			store.send(t, c, later, hit("k", &plain, 1))
			if v, _ := store.send(t, c, later, hit("k", &plain, 1)); !v[0].Over ||
				v[0].Cached != (kind != algorithm.SlidingWindowCounter) {
				t.Fatalf("%v without holds: %+v", kind, v)
			}
		}
		for i := range 5 {
			v, asked := store.send(t, c, later, named(fmt.Sprint(i), charge))
			if v[0].Over != (i >= 3) || v[0].Cached || len(asked) != 1 || v[0].FullUntil != 0 {
				t.Errorf("%v, hold %d: %+v", kind, i, v)
			}
		}
		if v, _ := store.send(t, c, later, named("0", refund), named("5", charge)); v[1].Over || v[1].Cached {
			t.Errorf("%v after a release: %+v", kind, v)
		}
	}
}
