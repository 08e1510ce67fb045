package leased

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// What a replica has of the counters of each rule: those whose windows have not ended, under the rule's newest name.
func TestUses(t *testing.T) {
	at := epochOfTests
	s := newTestStore(newShared(&at), 2, &at)
	daily := &algorithm.Limit{Max: 1000, Period: 24 * time.Hour}
	take := func(owner uint32, key string, l *algorithm.Limit) backend.Verdict {
		h := hit(key, l, algorithm.Charge, 1)
		h.Owner = owner
		return mustTake(t, s, h)[0]
	}
	check := func(name string, owner uint32, want Use) {
		t.Helper()
		if got := s.Uses()[owner]; got != want {
			t.Errorf("%s: owner %d has %+v, want %+v", name, owner, got, want)
		}
	}
	check("without leases", 1, Use{})
	at += int64(maxUsesAge)
	take(1, "a", minutely) // It takes 25 of 100.
	take(1, "b", minutely)
	take(2, "c", minutely) // The same limit, of another rule.
	take(2, "d", daily)    // A first lease of 16.
	s.Heard([][]byte{appendName(nil, []byte("b"), minutely, false)}, true)
	check("two rules with one limit", 1, Use{Counters: 2, Contended: 1, Held: 48})
	check("two rules with one limit", 2, Use{Counters: 2, Held: 24 + 15})
	take(1, "a", minutely)
	check("less than a second later", 1, Use{Counters: 2, Contended: 1, Held: 48})
	at += int64(maxUsesAge)
	check("a second later", 1, Use{Counters: 2, Contended: 1, Held: 47})
	at += int64(time.Minute)
	check("the windows have ended", 1, Use{})
	check("one window has ended", 2, Use{Counters: 1, Held: 15})
	for v := (backend.Verdict{}); !v.LeaseMissed; { // The rule has another name.
		v = take(3, "d", daily)
	}
	at += int64(maxUsesAge)
	check("renamed", 2, Use{})
	check("renamed", 3, Use{Counters: 1})
}

// Verdicts say which hits needed the store.
func TestLeaseMissed(t *testing.T) {
	at := epochOfTests
	s := newTestStore(newShared(&at), 2, &at)
	for i, want := range []bool{true, false, false} {
		if v := mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))[0]; v.LeaseMissed != want {
			t.Errorf("hit %d: missed %t", i, v.LeaseMissed)
		}
	}
	exact := hit("k", minutely, algorithm.Charge, 1)
	exact.Counting = backend.Exact
	if mustTake(t, s, exact)[0].LeaseMissed {
		t.Error("a hit that is counted exactly missed a lease")
	}
}
