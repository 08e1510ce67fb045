package leased

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

func testLease(l *algorithm.Limit) lease { return lease{new(record), l} }

// What a lease cannot count goes back, or counts less: never more than what was taken may be used.
func TestUnitsSaturate(t *testing.T) {
	l := testLease(&algorithm.Limit{Kind: algorithm.GCRA, Max: 1000, Burst: maxUnits - 1, Period: time.Second})
	at := instant{1, 1}
	if back := l.learn(&algorithm.Outcome{After: maxUnits + 10}, at, maxUnits-5); back != 0 || l.held != maxUnits-5 {
		t.Errorf("%d go back, %d are held", back, l.held)
	}
	if l.left(at) != 0 || l.taken != maxUnits {
		t.Errorf("%d are left, %d taken", l.left(at), l.taken)
	}
	if back := l.learn(&algorithm.Outcome{After: 10}, at, 8); back != 3 || l.held != maxUnits {
		t.Errorf("%d go back, %d are held", back, l.held)
	}
	if l.use(maxUnits+1, at, 1) || l.use(algorithm.MaxAmount, at, 1) || !l.use(maxUnits-2, at, 1) || l.held != 2 {
		t.Errorf("%d are held", l.held)
	}
	l.countUse(algorithm.MaxAmount, 1)
	if l.used != maxUnits || l.needed(1) != maxUnits || l.needed(2) != maxUnits || l.needed(3) != 0 {
		t.Errorf("%d were used, %d in this tick", l.used, l.needed(1))
	}
	if n := l.giveBack(algorithm.MaxAmount, at); n != maxUnits-2 || l.held != maxUnits || l.used != 2 {
		t.Errorf("%d are given back, %d are held, %d were used", n, l.held, l.used)
	}
}

// Limits whose units a lease cannot count are counted exactly, and so are hits of more units than are held.
func TestLargeLimitsAndAmounts(t *testing.T) {
	shared, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Next: shared, Replicas: func() int { return 1 }})
	for _, max := range []uint64{maxUnits, maxUnits + 1, algorithm.MaxAmount} {
		limit := &algorithm.Limit{Max: max, Period: time.Minute}
		h := backend.Hit{Key: []byte("k"), Limit: limit, Amount: max/2 + 1, Counting: backend.Leased}
		before := s.Stats().Counters
		for i, want := range []bool{false, true} {
			if v, err := backend.TakeHit(t.Context(), s, h); err != nil || v.Over != want {
				t.Errorf("hit %d of %d, of %d: %+v, %v", i, h.Amount, max, v, err)
			}
		}
		if got := s.Stats().Counters - before; got != 1 && max == maxUnits || got != 0 && max > maxUnits {
			t.Errorf("%d leases for a limit of %d", got, max)
		}
		_, _ = backend.TakeHit(t.Context(), s, backend.Hit{Key: h.Key, Limit: limit, Amount: h.Amount, Op: algorithm.Refund})
	}
}

// A counter is contended since a little later, and long ago once it was asked often enough.
func TestContendedFor(t *testing.T) {
	var s state
	at := instant{mono: 5}
	for range 100 {
		s.contend(at)
		for _, d := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, time.Second, time.Minute} {
			got := s.contendedFor(instant{mono: at.mono + int64(d)})
			if got > d || got < d-maxRounded*contendedUnit {
				t.Fatalf("contended for %v, want %v", got, d)
			}
		}
		at.mono += 17_123_456_789
	}
	for range 100 {
		at.mono += int64(30 * time.Second)
		s.settleContention(at)
		if s.contendedFor(at) < 30*time.Second-maxRounded*contendedUnit || !s.isContended() {
			t.Fatalf("contended for %v", s.contendedFor(at))
		}
	}
	if s = (state{}); s.isContended() {
		t.Error("a new lease is contended")
	}
	s.settleContention(at)
	if s.isContended() {
		t.Error("contended once it is settled")
	}
}

// Flags and counts in one byte do not change each other.
func TestFlags(t *testing.T) {
	var s state
	for i := range 300 {
		s.setAsking(i%2 == 0)
		s.countLimitChange()
		if s.isAsking() != (i%2 == 0) || s.limitChanges() != min(i+1, maxLimitChanges+1) {
			t.Fatalf("after %d changes: %d, %v", i+1, s.limitChanges(), s.isAsking())
		}
	}
	l := lease{&record{state: s}, minutely}
	l.setAsking(true)
	l.startWindow(&algorithm.Outcome{WindowEnd: 1})
	if !l.isAsking() || l.limitChanges() != 0 {
		t.Error("a new window changes what was asked for")
	}
}
