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

// leaseStep is what happens to a lease, and what it must be afterwards.
type leaseStep struct {
	name string
	do   func(l lease) uint64
	want uint64 // what do returns
	held uint32
	used uint32
}

// playSteps checks the steps of one lease.
func playSteps(t *testing.T, l lease, steps []leaseStep) {
	t.Helper()
	for _, s := range steps {
		if got := s.do(l); got != s.want || l.held != s.held || l.used != s.used {
			t.Errorf("%s: %d, want %d; %d are held, want %d; %d used, want %d", s.name, got, s.want, l.held, s.held,
				l.used, s.used)
		}
	}
}

func use(amount uint64, at int64) func(l lease) uint64 {
	return func(l lease) uint64 {
		if l.use(amount, both(at), 1) {
			return 1
		}
		return 0
	}
}

func giveBack(amount uint64, at int64) func(l lease) uint64 {
	return func(l lease) uint64 { return l.giveBack(amount, both(at)) }
}

func expire(at int64) func(l lease) uint64 {
	return func(l lease) uint64 { return l.expire(both(at)) }
}

// Units are used in their window only, given back at most once, and end with it.
func TestUseAndGiveBack(t *testing.T) {
	const start, end = 600 * second, 660 * second
	for _, kind := range []algorithm.Kind{
		algorithm.FixedWindow, algorithm.FirstHitWindow, algorithm.SlidingWindowCounter, algorithm.GCRA,
	} {
		limit := &algorithm.Limit{Kind: kind, Max: 100, Period: time.Minute, Burst: 50}
		l := testLease(limit)
		l.end, l.windowEnd, l.held = end, end, 10
		fixed, gcra := uint64(0), uint64(0)
		if kind == algorithm.FixedWindow {
			fixed = 1
		}
		if kind == algorithm.GCRA {
			gcra = 1
		}
		playSteps(t, l, []leaseStep{
			{"more than are held", use(11, start), 0, 10, 0},
			{"at the start", use(4, start), 1, 6, 4},
			{"before the end", use(1, end-1), 1, 5, 5},
			{"at the end", use(1, end), 0, 5, 5},
			{"nothing", use(0, start), 1, 5, 5},
			{"a part of what was used", giveBack(2, start), 2, 7, 3},
			{"more than was used", giveBack(9, start), 3, 10, 0},
			{"a second time", giveBack(9, start), 0, 10, 0},
			{"all", use(10, start), 1, 0, 10},
			{"nothing of nothing", use(0, start), 0, 0, 10},
			{"at the end", giveBack(1, end), 0, 0, 10},
			{"nothing expires", expire(end), 0, 0, 10},
			{"before the start", giveBack(1, start-1), 1 - fixed, uint32(1 - fixed), uint32(9 + fixed)},
			{"for the rest", giveBack(2+fixed, start), 2 + fixed, 3, 7},
			{"not yet", expire(end - 1), 0, 3, 7},
			{"expired", expire(end), 3 * gcra, 0, 7},
		})
	}
	l := testLease(minutely) // The clock of a fixed window is set back.
	l.end, l.windowEnd, l.held = end, end, 10
	playSteps(t, l, []leaseStep{
		{"before the window", use(1, start-1), 0, 10, 0},
		{"expired", expire(start - 1), 0, 0, 0},
	})
}

func TestUnitsThatAreNeeded(t *testing.T) {
	l := testLease(minutely)
	l.end, l.held = 60*second, 100
	for _, c := range []struct {
		tick          uint32
		amount, needs uint64 // what is used in the tick, and needed afterwards
	}{
		{10, 3, 3},
		{10, 2, 5},
		{11, 1, 5}, // As many as in the tick before.
		{12, 4, 4},
		{14, 1, 1}, // Nothing in the tick before.
		{14 + 1<<16, 2, 3},
	} {
		if !l.use(c.amount, both(1), c.tick) || uint64(l.needed(c.tick)) != c.needs {
			t.Errorf("tick %d: %d are needed, want %d", c.tick, l.needed(c.tick), c.needs)
		}
	}
	if l.needed(15) != 3 || l.needed(16) != 0 {
		t.Errorf("%d are needed a tick later, %d another one", l.needed(15), l.needed(16))
	}
}

// reply is one reply of the store, in the order in which they come, and what the lease must be afterwards. Times are in
// seconds.
type reply struct {
	name             string
	asked, windowEnd int64
	after, granted   uint64
	reset            time.Duration
	back             uint64 // what goes back
	held             uint32
	taken            uint32
	end              int64
}

func playReplies(t *testing.T, l lease, replies []reply) {
	t.Helper()
	for _, r := range replies {
		v := &algorithm.Outcome{WindowEnd: r.windowEnd * second, After: r.after, ResetAfter: r.reset}
		back := l.learn(v, both(r.asked*second), r.granted)
		if back != r.back || l.held != r.held || l.taken != r.taken || l.end != r.end*second {
			t.Errorf("%s: %d go back, %d are held, %d taken, end %v, want %+v", r.name, back, l.held, l.taken,
				time.Duration(l.end), r)
		}
	}
}

func TestRepliesOutOfOrder(t *testing.T) {
	l := testLease(minutely)
	playReplies(t, l, []reply{
		{"the first", 5, 60, 10, 10, 0, 0, 10, 10, 60},
		{"a later one", 9, 60, 30, 10, 0, 0, 20, 30, 60},
		{"an earlier one", 7, 60, 20, 10, 0, 0, 30, 30, 60},
	})
	l.used, l.recent = 3, 3
	l.contend(both(1))
	l.countLimitChange()
	playReplies(t, l, []reply{{"one without units", 10, 60, 31, 0, 0, 0, 30, 31, 60}})
	if !l.isContended() || l.used != 3 || l.limitChanges() != 1 {
		t.Error("the same window changes what is known of it")
	}
	playReplies(t, l, []reply{{"of the next window", 60, 120, 4, 4, 0, 0, 4, 4, 120}})
	if l.isContended() || l.used != 0 || l.limitChanges() != 0 {
		t.Error("the next window starts with what was of another one")
	}
	l.used = 2
	playReplies(t, l, []reply{
		{"of the window before", 59, 60, 50, 20, 0, 20, 4, 4, 120},
		{"of the same window, but earlier", 60, 120, 4, 0, 0, 0, 4, 4, 120},
		{"by a clock that was set back", 70, 60, 7, 2, 0, 0, 2, 7, 60},
	})
	l = testLease(&algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 100, Period: time.Minute})
	playReplies(t, l, []reply{
		{"by the clock of the store", 5, 1060, 10, 10, 50 * time.Second, 0, 10, 10, 55},
		{"slower", 6, 1060, 20, 10, 48 * time.Second, 0, 20, 20, 54},
	})
	l = testLease(&algorithm.Limit{Kind: algorithm.SlidingWindowCounter, Max: 100, Period: time.Minute})
	playReplies(t, l, []reply{
		{"in the current window", 5, 1060, 10, 10, 100 * time.Second, 0, 10, 10, 45},
		{"nothing counts", 6, 1060, 0, 0, 0, 0, 10, 0, 6},
	})
}

func TestRepliesOfGCRA(t *testing.T) {
	l := testLease(&algorithm.Limit{Kind: algorithm.GCRA, Max: 100, Burst: 99, Period: 100 * time.Second})
	playReplies(t, l, []reply{
		{"the first", 5, 0, 10, 10, 0, 0, 10, 10, 15},
		{"units keep their end", 9, 0, 40, 10, 0, 0, 20, 40, 15},
		{"they expire", 15, 0, 60, 5, 0, 20, 5, 60, 25},
	})
	l.held = 0
	playReplies(t, l, []reply{
		{"older units end earlier", 14, 0, 50, 7, 0, 0, 7, 60, 24},
		{"without units nothing ends", 14, 0, 50, 0, 0, 0, 7, 60, 24},
	})
	l.contend(both(1))
	if playReplies(t, l, []reply{{"much is taken", 16, 0, 51, 0, 0, 0, 7, 51, 24}}); !l.isContended() {
		t.Error("not contended though little is left")
	}
	if playReplies(t, l, []reply{{"half is left", 17, 0, 50, 0, 0, 0, 7, 50, 24}}); l.isContended() {
		t.Error("contended though half is left")
	}
	if l.left(both(20*second)) != 53 || l.left(both(17*second)) != 50 || l.left(both(1000*second)) != 100 {
		t.Errorf("%d are left three emissions later", l.left(both(20*second)))
	}
}

func TestWanted(t *testing.T) {
	long := &algorithm.Limit{Max: 10_000, Period: time.Hour}
	large := &algorithm.Limit{Max: 4 * smallPart * 50, Period: time.Hour}
	for _, c := range []struct {
		name            string
		limit           *algorithm.Limit
		taken, size     uint32
		age             time.Duration // since the last reply
		amount          uint64
		replicas, wants int
	}{
		{"half of all", minutely, 0, 0, 0, 1, 1, 50},
		{"half of what is left", minutely, 60, 20, 0, 1, 1, 20},
		{"an eighth", minutely, 20, 0, 0, 1, 4, 10},
		{"at least the amount", minutely, 20, 0, 0, 30, 4, 30},
		{"nothing is left", minutely, 100, 0, 0, 1, 4, 1},
		{"more than all is taken", minutely, 150, 0, 0, 1, 4, 1},
		{"nothing needed, nothing left", minutely, 99, 0, 0, 0, 1, 0},
		{"a long period starts small", long, 0, 0, 0, 1, 1, firstOfLong},
		{"it grows", long, 0, 16, growWithin - 1, 1, 1, 32},
		{"it stays", long, 0, 64, growWithin, 1, 1, 64},
		{"it shrinks", long, 0, 64, shrinkAfter, 1, 1, 32},
		{"it stays large enough", long, 0, 16, shrinkAfter, 1, 1, firstOfLong},
		{"a thousandth of a large share", large, 0, 0, 0, 1, 2, 50},
		{"it shrinks to that", large, 0, 64, shrinkAfter, 1, 2, 50},
		{"a large share of which little is left", large, 4*smallPart*50 - 64, 0, 0, 1, 2, 16},
		{"at most half of what is left", long, 9990, 64, 0, 1, 1, 5},
		{"large amounts", long, 0, 16, 0, 500, 1, 500},
	} {
		l := testLease(c.limit)
		l.taken, l.size, l.knownAt, l.end = c.taken, approxBelow(c.size), second, 3600*second
		now := both(second + int64(c.age))
		if got := l.wanted(c.amount, c.replicas, now); got != uint64(c.wants) {
			t.Errorf("%s: %d, want %d", c.name, got, c.wants)
		}
		for range maxLimitChanges {
			l.countLimitChange()
		}
		if got := l.wanted(c.amount, c.replicas, now); got != uint64(c.wants) {
			t.Errorf("%s, after some changes: %d, want %d", c.name, got, c.wants)
		}
		if l.countLimitChange(); l.wanted(c.amount, c.replicas, now) != c.amount {
			t.Errorf("%s, after many changes: %d", c.name, l.wanted(c.amount, c.replicas, now))
		}
	}
	l := testLease(minutely)
	if l.taken, l.end = 100, 60*second; l.wanted(1, 1, both(60*second)) != 50 || l.wanted(1, 1, both(60*second-1)) != 1 {
		t.Error("the next window has its units")
	}
}

func TestIsLowAndIsUp(t *testing.T) {
	for _, c := range []struct {
		max      uint64
		taken    uint32
		replicas int
		isLow    bool
	}{
		{80, 69, 2, false},
		{80, 70, 2, true},
		{80, 200, 2, true},
		{80, 70, 1, false},
		{80, 70, 20, true},
		{80, 70, 21, false}, // Each would hold one.
		{7, 7, 2, false},
		{8, 7, 2, true},
	} {
		l := testLease(&algorithm.Limit{Max: c.max, Period: time.Minute})
		if l.taken, l.end = c.taken, 60*second; l.isLow(c.replicas, both(1)) != c.isLow {
			t.Errorf("%+v: low is %v", c, !c.isLow)
		}
	}
	l := testLease(minutely)
	l.end, l.size, l.held = 60*second, approxBelow(8), 5
	if l.isUp(both(1)) || !l.isUp(both(60*second)) {
		t.Error("5 of 8 units are up, or those of the last window are not")
	}
	if l.held = 4; !l.isUp(both(1)) {
		t.Error("4 of 8 units are not up")
	}
}

// The outcome of a decision counts what others were charged and what was used here, but no units that are held.
func TestOutcome(t *testing.T) {
	l := testLease(minutely)
	l.end, l.taken, l.held, l.knownAt = 60*second, 70, 20, 1
	for _, c := range []struct {
		op              algorithm.Op
		amount, at      uint64
		before, charged uint64
	}{
		{algorithm.Charge, 5, 20, 45, 1},
		{algorithm.Force, 60, 20, 0, 1},
		{algorithm.Refund, 5, 20, 55, 1},
		{algorithm.Look, 5, 20, 50, 0},
		{algorithm.Charge, 0, 20, 50, 0},
	} {
		v := l.outcome(c.op, c.amount, both(20*second))
		want := algorithm.Outcome{
			Before: c.before, After: 50, Charged: c.charged == 1, Remaining: 50, ResetAfter: 40 * time.Second,
			WindowEnd: 60 * second,
		}
		if v != want {
			t.Errorf("%v of %d: %+v, want %+v", c.op, c.amount, v, want)
		}
	}
	if l.taken = 300; l.outcome(algorithm.Look, 0, both(1)).Remaining != 0 {
		t.Error("more remains than nothing")
	}
}
