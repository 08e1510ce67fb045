package fallback

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// During an outage this process counts holds of its own, up to its share of the limit. A hold that is open in the store
// stays open there until it expires if its release comes during the outage.
func TestHoldsInAnOutage(t *testing.T) {
	t.Parallel()
	limit := &algorithm.Limit{Kind: algorithm.Concurrency, Max: 8, Period: time.Minute, Hold: time.Minute}
	next := inMemory(t)
	s := open(t, next, 4)
	take := func(at time.Duration, name string, op algorithm.Op) backend.Verdict {
		h := local("k", limit, 1)
		h.Op, h.HoldID = op, backend.NewHoldID([]byte(name))
		return send(t, s, at, h)[0]
	}
	take(0, "a", algorithm.Charge)
	next.down.Store(true)
	for _, step := range []struct {
		name  string
		op    algorithm.Op
		over  bool
		after uint64
	}{
		{"b", algorithm.Charge, false, 1},
		{"c", algorithm.Charge, false, 2},
		{"d", algorithm.Charge, true, 2},
		{"b", algorithm.Charge, false, 2},
		{"a", algorithm.Refund, false, 2},
		{"b", algorithm.Refund, false, 1},
		{"d", algorithm.Charge, false, 2},
		{"c", algorithm.Force, false, 1},
	} {
		if v := take(time.Second, step.name, step.op); v.Fallback != backend.FallbackLocal || v.Over != step.over ||
			v.After != step.after {
			t.Errorf("%v of %s: %+v, want over %t and %d after it", step.op, step.name, v, step.over, step.after)
		}
	}
	next.down.Store(false)
	if v := take(2*time.Second, "", algorithm.Look); v.Before != 1 {
		t.Errorf("after the outage: %+v, want hold a", v)
	}
	if v := take(time.Minute, "", algorithm.Look); v.Before != 0 || v.HoldsExpired != 1 {
		t.Errorf("a minute later: %+v", v)
	}
}

// If the fallback of one hit refuses a group, the hold of another one is looked at under its own name, and is not
// opened.
func TestRefusedGroupsOpenNoHolds(t *testing.T) {
	t.Parallel()
	limit := &algorithm.Limit{Kind: algorithm.Concurrency, Max: 1, Period: time.Minute, Hold: time.Minute}
	next := inMemory(t)
	s := open(t, next, 1)
	next.down.Store(true)
	held, denied := local("k", limit, 1), local("other", fixed(5, time.Minute), 1)
	held.HoldID = backend.NewHoldID([]byte("a"))
	denied.Fallback = backend.FallbackDeny
	held.Atomic, denied.Atomic = true, true
	if v := send(t, s, 0, held, denied); v[0].Over || v[0].Charged || !v[1].Over {
		t.Errorf("%+v", v)
	}
	alone := held
	alone.Atomic = false
	send(t, s, 0, alone)
	if v := send(t, s, 0, held, denied); v[0].Over || v[0].Before != 1 {
		t.Errorf("a hold that is open already: %+v", v)
	}
}
