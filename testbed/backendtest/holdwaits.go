package backendtest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// testHoldWaits plays random hits on limits with holds, and then leaves the counter alone. What the last hit was told
// must come true: it passes after its wait and not before, and the counter is empty after the reset and not before.
func (suite *Suite) testHoldWaits(t *testing.T, open func(*testing.T) backend.Backend) {
	for kind := range algorithm.Concurrency + 1 {
		for _, released := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/released=%t", kind, released), func(t *testing.T) {
				store, rnd := open(t), randomOf(t)
				for round := range suite.count(50, 20) {
					l := ignoringBlocked(kind, 4+rnd.Uint64N(12), time.Minute)
					l.Hold, l.ReleaseUnsettled = time.Duration(1+rnd.IntN(90))*time.Second, released &&
						kind != algorithm.Concurrency
					if kind == algorithm.Concurrency {
						l.Period, l.Burst = l.Hold, 0
					}
					if kind == algorithm.GCRA {
						l.Burst = 3 + rnd.Uint64N(12)
					}
					w := holdWaits{
						store: store, rnd: rnd, limit: l,
						now: epoch.Add(time.Duration(rnd.IntN(60)) * time.Second),
					}
					w.check(t, fmt.Sprintf("k%d", round))
				}
			})
		}
	}
}

// holdWaits is a counter with holds.
type holdWaits struct {
	store backend.Backend
	rnd   *rand.Rand
	limit *algorithm.Limit
	now   time.Time
	key   string
}

func (w *holdWaits) send(t *testing.T, at time.Time, op algorithm.Op, amount uint64, hold string) backend.Verdict {
	t.Helper()
	return send(t, w.store, at, backend.Hit{
		Key: []byte(w.key), Limit: w.limit, Op: op, Amount: amount,
		HoldID: backend.NewHoldID([]byte(hold)),
	})[0]
}

// check plays hits on a key.
func (w *holdWaits) check(t *testing.T, key string) {
	t.Helper()
	w.key = key
	reserved := make(map[string]uint64)
	for i := range 4 + w.rnd.IntN(20) {
		w.now = w.now.Add(time.Duration(w.rnd.Int64N(5_000_000)) * time.Microsecond)
		hold := fmt.Sprint(w.rnd.IntN(12))
		switch n := w.rnd.IntN(10); {
		case n < 6:
			amount := 1 + w.rnd.Uint64N(3)
			if w.send(t, w.now, charge, amount, hold).HoldOpened {
				reserved[hold] = amount
			}
		case n < 7:
			w.send(t, w.now, refund, 1, hold)
		case n < 8:
			w.send(t, w.now, force, w.rnd.Uint64N(reserved[hold]+1), hold)
		case w.limit.Kind != algorithm.Concurrency && i < 6:
			w.send(t, w.now, charge, 1, "")
		}
	}
	amount := 1 + w.rnd.Uint64N(w.limit.Capacity())
	v := w.send(t, w.now, look, amount, "new")
	emptyAt := w.now.Add(v.ResetAfter + time.Microsecond - 1).Truncate(time.Microsecond)
	if v.Over {
		passesAt := w.now.Add(v.RetryAfter + time.Microsecond - 1).Truncate(time.Microsecond)
		for range w.rnd.IntN(3) { // Others ask meanwhile.
			w.now = w.now.Add(time.Duration(w.rnd.Int64N(max(passesAt.Sub(w.now).Microseconds(),
				1))) * time.Microsecond)
			w.send(t, w.now, look, 1, "other")
		}
		if passesAt.After(w.now.Add(time.Microsecond)) {
			if again := w.send(t, passesAt.Add(-time.Microsecond), look, amount, "new"); !again.Over {
				t.Fatalf("%+v: passes before the wait of %+v", *w.limit, v)
			}
		}
		if again := w.send(t, passesAt, look, amount, "new"); again.Over {
			t.Fatalf("%+v: %+v, and after the wait of that %+v", *w.limit, v, again)
		}
		w.now = passesAt
	}
	if v.ResetAfter == 0 || w.limit.Kind == algorithm.FixedWindow && v.Before == 0 {
		return
	}
	// It always ends with its window.
	if before := emptyAt.Add(-time.Microsecond); before.After(w.now) && w.limit.Kind != algorithm.FixedWindow {
		if again := w.send(t, before, look, 0, "new"); again.Before == 0 {
			t.Fatalf("%+v: empty before the reset of %+v", *w.limit, v)
		}
	}
	if again := w.send(t, emptyAt, look, 0, "new"); again.Before != 0 {
		t.Fatalf("%+v: %+v, and after the reset of that %+v", *w.limit, v, again)
	}
}
