package leased

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

const second = int64(time.Second)

// both is an instant at which both clocks show the same.
func both(at int64) instant { return instant{at, at} }

// storeFunc is a store that decides batches with a function.
type storeFunc func(b *backend.Batch)

func (f storeFunc) Take(_ context.Context, b *backend.Batch) error { f(b); return nil }

// newShared returns a store in memory whose clock shows *at.
func newShared(at *int64) backend.Backend {
	shared, err := memory.New(memory.Config{})
	if err != nil {
		panic(err)
	}
	return storeFunc(func(b *backend.Batch) {
		now := b.Now
		if b.Now = time.Unix(0, *at); shared.Take(context.Background(), b) != nil {
			panic("misuse")
		}
		b.Now = now
	})
}

// newTestStore returns the store of one of n replicas, whose clocks show *at.
func newTestStore(next backend.Backend, n int, at *int64) *Store {
	s := New(Config{
		Next: next, Replicas: func() int { return n },
		Now: func() (time.Time, time.Duration) { return time.Unix(0, *at), time.Duration(*at) },
	})
	s.sleep = func(context.Context, time.Duration) bool { return true }
	return s
}

func hit(key string, l *algorithm.Limit, op algorithm.Op, amount uint64) backend.Hit {
	return backend.Hit{Key: []byte(key), Limit: l, Op: op, Amount: amount, Counting: backend.Leased}
}

// mustTake sends hits of one group.
func mustTake(t *testing.T, s backend.Backend, hits ...backend.Hit) []backend.Verdict {
	t.Helper()
	b := backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits))}
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Verdicts
}

// leaseOf returns the lease of a counter of s.
func leaseOf(s *Store, key string, l *algorithm.Limit) lease {
	hash := s.seeds.of([]byte(key), l.Kind, l.Period, false)
	sh := &s.shards[hash.shard]
	found, _, _ := sh.find(&hash, 0, &backend.Hit{Key: []byte(key), Limit: l})
	return found
}

// countIn returns the count of a counter in the store.
func countIn(t *testing.T, store backend.Backend, key string, l *algorithm.Limit) uint64 {
	t.Helper()
	return mustTake(t, store, hit(key, l, algorithm.Look, 0))[0].After
}

// What the store says of a limited or refused charge of more units than the hit has.
func TestSettle(t *testing.T) {
	counts := &algorithm.Limit{Max: 100, Period: time.Minute, CountBlocked: true}
	for _, c := range []struct {
		before, amount, asked uint64
		isOver                bool
		surplus, after        uint64
	}{
		{before: 90, amount: 1, asked: 10, surplus: 0, after: 100},
		{before: 95, amount: 1, asked: 10, surplus: 5, after: 100},
		{before: 95, amount: 5, asked: 10, surplus: 5, after: 100},
		{before: 95, amount: 6, asked: 10, isOver: true, surplus: 10, after: 95},
		{before: 100, amount: 1, asked: 10, isOver: true, surplus: 10, after: 100},
		{before: 250, amount: 1, asked: 1, isOver: true, surplus: 1, after: 250},
		{before: 0, amount: 101, asked: 101, isOver: true, surplus: 101, after: 0},
	} {
		var v backend.Verdict
		_, v.Outcome = algorithm.TakeFixed(counts, c.before, 1, algorithm.Charge, c.asked)
		surplus := settle(counts, &v, c.amount, c.asked)
		if surplus != c.surplus || v.Over != c.isOver || v.After != c.after || v.Charged == c.isOver {
			t.Errorf("%+v: %d are too many, %+v", c, surplus, v)
		}
		if !c.isOver && (v.RetryAfter != 0 || v.FullUntil != 0 && surplus > 0) {
			t.Errorf("%+v: passes, and is told to wait: %+v", c, v)
		}
		if want := v.ResetAfter; c.isOver && c.amount <= 100 && v.RetryAfter != want {
			t.Errorf("%+v: retry after %v, want %v", c, v.RetryAfter, want)
		}
	}
	for _, v := range []backend.Verdict{{}, {Outcome: algorithm.Outcome{Charged: true, After: 7}}} {
		if got := v; settle(counts, &got, 1, 5) != 0 || got != v {
			t.Errorf("a hit that passed is changed to %+v", got)
		}
	}
}

// Which hits of refused groups are sent again.
func TestAddGroups(t *testing.T) {
	type member struct {
		group               uint16
		over, failed, retry bool
		independent, noVeto bool
	}
	for _, c := range []struct {
		name    string
		members []member
		want    []int
	}{
		{"nothing is retried", []member{{over: true}, {}}, nil},
		{"one hit", []member{{over: true, retry: true}}, []int{0}},
		{"all of the group", []member{{}, {over: true, retry: true}, {}}, []int{0, 1, 2}},
		{"only its group", []member{{group: 1}, {group: 2, over: true, retry: true}, {group: 2}, {group: 3}}, []int{1, 2}},
		{"another hit refuses", []member{{over: true, retry: true}, {over: true}}, nil},
		{"another hit failed", []member{{over: true, retry: true}, {failed: true}}, nil},
		{"another hit would refuse", []member{{over: true, retry: true}, {over: true, noVeto: true}}, []int{0, 1}},
		{
			"the group passed without the vote of one",
			[]member{{over: true, retry: true, noVeto: true}, {}},
			[]int{0},
		},
		{"independent ones were charged", []member{{over: true, retry: true}, {independent: true}}, []int{0}},
		{
			"independent ones are retried though others refuse",
			[]member{{over: true}, {over: true, retry: true, independent: true}, {over: true, retry: true}},
			[]int{1},
		},
	} {
		var tr scratch
		b := &backend.Batch{}
		for i, m := range c.members {
			v := backend.Verdict{Outcome: algorithm.Outcome{Over: m.over}}
			if m.failed {
				v.Err = errors.New("no answer")
			}
			b.Hits = append(b.Hits, backend.Hit{GroupID: m.group, Atomic: !m.independent, NoVeto: m.noVeto})
			if b.Verdicts = append(b.Verdicts, v); m.retry {
				tr.retried = append([]int{i}, tr.retried...)
			}
		}
		tr.addGroups(b)
		if len(tr.retried) != len(c.want) || len(c.want) > 0 && !reflect.DeepEqual(tr.retried, c.want) {
			t.Errorf("%s: %v are sent again, want %v", c.name, tr.retried, c.want)
		}
	}
}

// A refused group of a leased and an exact hit uses no units, and gives them back once.
func TestRefusedGroupGivesBack(t *testing.T) {
	at := epochOfTests
	shared := newShared(&at)
	s := newTestStore(shared, 2, &at)
	leasedLimit := &algorithm.Limit{Max: 100, Period: time.Minute}
	exactLimit := &algorithm.Limit{Max: 2, Period: time.Minute}
	group := func() []backend.Hit {
		a, b := hit("a", leasedLimit, algorithm.Charge, 3), hit("b", exactLimit, algorithm.Charge, 1)
		a.Atomic, b.Atomic, b.Counting = true, true, backend.Exact
		return []backend.Hit{a, b}
	}
	mustTake(t, s, hit("a", leasedLimit, algorithm.Charge, 1))
	l := leaseOf(s, "a", leasedLimit)
	for i := range 5 {
		held, used, passes := l.held, l.used, i < 2
		v := mustTake(t, s, group()...)
		if v[0].Over || v[1].Over == passes || v[0].Charged != passes || v[1].Charged != passes {
			t.Errorf("group %d: %+v", i, v)
		}
		if want := used + 3; passes && (l.used != want || l.held != held-3) || !passes && (l.used != used || l.held != held) {
			t.Errorf("group %d: %d are held and %d used, before %d and %d", i, l.held, l.used, held, used)
		}
		if n := countIn(t, shared, "a", leasedLimit); n != uint64(l.held+l.used) {
			t.Errorf("group %d: %d are charged, and %d held or used", i, n, l.held+l.used)
		}
	}
}

// epochOfTests is a whole hour.
var epochOfTests = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

// Units that a group has reserved end with their window, though the group is refused in the next one.
func TestReservedUnitsEndWithTheirWindow(t *testing.T) {
	at := second
	limit := &algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 100, Period: 10 * time.Second}
	exact := &algorithm.Limit{Max: 1, Period: time.Minute}
	windowEnd, during := 11*second, func() {}
	s := newTestStore(storeFunc(func(b *backend.Batch) {
		for i, h := range b.Hits {
			v := &b.Verdicts[i].Outcome
			*v = algorithm.Outcome{After: h.Amount, Charged: true, WindowEnd: windowEnd, ResetAfter: 10 * time.Second}
			if h.Counting == backend.Exact && h.Op == algorithm.Charge {
				*v = algorithm.Outcome{Over: true}
				during()
			}
		}
	}), 1, &at)
	mustTake(t, s, hit("a", limit, algorithm.Charge, 1))
	a, b := hit("a", limit, algorithm.Charge, 2), hit("b", exact, algorithm.Charge, 1)
	a.Atomic, b.Atomic, b.Counting = true, true, backend.Exact
	l, held := leaseOf(s, "a", limit), uint32(0)
	during = func() { // The window ends while the store decides the group.
		at, windowEnd, during = 12*second, 22*second, func() {}
		mustTake(t, s, hit("a", limit, algorithm.Charge, 10))
		held = l.held
	}
	if mustTake(t, s, a, b); l.held != held || held == 0 || l.used != 10 {
		t.Errorf("%d are held, want %d; %d were used", l.held, held, l.used)
	}
}

// Units that a reply brings after the limit has changed go back: they were taken under the old one.
func TestLimitChangesWhileStoreIsAsked(t *testing.T) {
	at, refunded, nested := epochOfTests, uint64(0), func() {}
	old := &algorithm.Limit{Max: 100, Period: time.Minute}
	lower := &algorithm.Limit{Max: 50, Period: time.Minute}
	s := newTestStore(storeFunc(func(b *backend.Batch) {
		nested()
		for i, h := range b.Hits {
			_, b.Verdicts[i].Outcome = algorithm.TakeFixed(h.Limit, 0, at, h.Op, h.Amount)
			if h.Op == algorithm.Refund {
				refunded += h.Amount
			}
		}
	}), 1, &at)
	nested = func() {
		nested = func() {}
		mustTake(t, s, hit("k", lower, algorithm.Charge, 1))
	}
	mustTake(t, s, hit("k", old, algorithm.Charge, 1))
	l := leaseOf(s, "k", lower)
	if s.Tick(t.Context()); l.limit.Max != 50 || l.held != 0 || refunded != 49 {
		t.Errorf("%+v: %d are held, %d went back", *l.limit, l.held, refunded)
	}
	if l.isAsking() {
		t.Error("the lease waits for a reply that came")
	}
}

// A change of the limit gives units back, and what is refunded afterwards, too. A counter whose limit changes again and
// again is counted exactly, until its window ends.
func TestChangesOfLimit(t *testing.T) {
	at := epochOfTests
	shared := newShared(&at)
	s := newTestStore(shared, 1, &at)
	limits := []*algorithm.Limit{{Max: 1000, Period: time.Minute}, {Max: 900, Period: time.Minute}}
	for i := range 10 {
		limit := limits[i%2]
		mustTake(t, s, hit("k", limit, algorithm.Charge, 2))
		l := leaseOf(s, "k", limit)
		if *l.limit != *limit || (l.held > 0) != (i <= maxLimitChanges) || l.used != 2 || l.isAsking() {
			t.Errorf("change %d: %+v, %d are held, %d used", i, *l.limit, l.held, l.used)
		}
		s.Tick(t.Context())
		if n := countIn(t, shared, "k", limit); n != uint64(2*i+2)+uint64(l.held) {
			t.Errorf("change %d: %d are charged, want %d", i, n, uint64(2*i+2)+uint64(l.held))
		}
	}
}

// A refund goes to the lease as far as this replica used units, and the rest to the store.
func TestRefunds(t *testing.T) {
	at, limit := epochOfTests, &algorithm.Limit{Max: 100, Period: time.Minute}
	for _, c := range []struct {
		name                     string
		amount                   uint64
		isContended, inGroup     bool
		taken                    uint32
		held, used, storeRefunds uint32
	}{
		{name: "all of it in the lease", amount: 3, held: 13, used: 1},
		{name: "partly in the lease", amount: 7, held: 14, used: 0, storeRefunds: 3},
		{name: "while others need units", amount: 3, isContended: true, held: 10, used: 1, storeRefunds: 3},
		{name: "of a group, which may be refused", amount: 3, inGroup: true, held: 10, used: 1, storeRefunds: 3},
		{name: "of a full counter", amount: 3, taken: 100, held: 13, used: 1},
		{name: "of a counter above its limit", amount: 3, taken: 101, held: 10, used: 1, storeRefunds: 3},
	} {
		shared := newShared(&at)
		s := newTestStore(shared, 2, &at)
		mustTake(t, s, hit("k", limit, algorithm.Charge, 1))
		mustTake(t, shared, hit("k", limit, algorithm.Force, 50))
		l := leaseOf(s, "k", limit)
		sh := &s.shards[s.seeds.of([]byte("k"), limit.Kind, limit.Period, false).shard]
		l.held, l.used, sh.held = 10, 4, 10
		if c.taken > 0 {
			l.taken = c.taken
		}
		if c.isContended {
			l.contend(s.now())
		}
		before := countIn(t, shared, "k", limit)
		refund := hit("k", limit, algorithm.Refund, c.amount)
		if c.inGroup {
			other := hit("other", limit, algorithm.Look, 1)
			refund.Atomic, other.Counting = true, backend.Exact
			mustTake(t, s, refund, other)
		} else {
			mustTake(t, s, refund)
		}
		refunds := before - countIn(t, shared, "k", limit)
		if l.held != c.held || l.used != c.used || refunds != uint64(c.storeRefunds) || sh.held != uint64(l.held) {
			t.Errorf("%s: %d are held, %d used, the store got %d", c.name, l.held, l.used, refunds)
		}
	}
}

// If the last reply said that nothing is left of a limit that counts refused hits, the store is asked first.
func TestLookBeforeCharge(t *testing.T) {
	at := epochOfTests
	shared := newShared(&at)
	limit := &algorithm.Limit{Max: 100, Period: time.Minute, CountBlocked: true}
	var ops []algorithm.Op
	s := newTestStore(storeFunc(func(b *backend.Batch) {
		for i := range b.Hits {
			ops = append(ops, b.Hits[i].Op)
		}
		_ = shared.Take(t.Context(), b)
	}), 4, &at)
	look, charge, refund := algorithm.Look, algorithm.Charge, algorithm.Refund
	mustTake(t, shared, hit("k", limit, charge, 100))
	for i, c := range []struct {
		isOver bool
		ops    []algorithm.Op // that the store gets
	}{
		{true, []algorithm.Op{charge, refund, charge}}, // What a refused hit was charged goes back before the next try.
		{true, []algorithm.Op{look, charge}},
		{false, []algorithm.Op{look, charge}},
	} {
		if i == 2 {
			mustTake(t, shared, hit("k", limit, refund, 1))
		}
		if ops = nil; mustTake(t, s, hit("k", limit, charge, 1))[0].Over != c.isOver || !reflect.DeepEqual(ops, c.ops) {
			t.Errorf("hit %d: the store gets %v, want %v", i, ops, c.ops)
		}
		if s.Tick(t.Context()); countIn(t, shared, "k", limit) != 100 {
			t.Errorf("hit %d: the store has %d", i, countIn(t, shared, "k", limit))
		}
	}
}

// The first hit of a replica asks for a lease. If not even its own unit is left, it waits for other replicas, or is
// told how long one unit takes.
func TestFirstHitWaits(t *testing.T) {
	counts := &algorithm.Limit{Max: 100, Period: time.Minute, CountBlocked: true}
	bucket := &algorithm.Limit{Kind: algorithm.GCRA, Max: 60, Burst: 99, Period: time.Minute}
	for _, c := range []struct {
		name         string
		limit        *algorithm.Limit
		onContention backend.Contention
		left, back   uint64 // in the store, and given back while the hit waits
		sleeps       int
		isOver       bool
		sent         int // batches
		retry        time.Duration
	}{
		{"others give back", minutely, backend.Wait, 0, 1, 1, false, 2, 0},
		{"others give back, of a limit that counts refused hits", counts, backend.Wait, 0, 1, 1, false, 3, 0},
		{"nobody gives back", minutely, backend.Wait, 0, 0, 1, true, 2, time.Minute},
		{"refused at once", minutely, backend.Refuse, 0, 1, 0, true, 2, time.Minute},
		{"refused at once by a limit that counts refused hits", counts, backend.Refuse, 0, 1, 0, true, 1, time.Minute},
		{"one is left", minutely, backend.Wait, 1, 0, 0, false, 2, 0},
		{"nothing is in the bucket", bucket, backend.Refuse, 0, 0, 0, true, 2, time.Second},
	} {
		at, sleeps, sent := epochOfTests, 0, 0
		shared := newShared(&at)
		s := newTestStore(storeFunc(func(b *backend.Batch) {
			sent++
			_ = shared.Take(t.Context(), b)
		}), 2, &at)
		s.SetSleep(func(context.Context, time.Duration) bool {
			sleeps++
			mustTake(t, shared, hit("k", c.limit, algorithm.Refund, c.back))
			return true
		})
		mustTake(t, shared, hit("k", c.limit, algorithm.Charge, 100-c.left))
		h := hit("k", c.limit, algorithm.Charge, 1)
		h.OnContention = c.onContention
		v := mustTake(t, s, h)[0]
		if v.Over != c.isOver || sleeps != c.sleeps || sent != c.sent || v.RetryAfter != c.retry {
			t.Errorf("%s: %d waits, %d batches, %+v", c.name, sleeps, sent, v)
		}
		if want := uint64(min(sleeps, 1)); s.Stats().Waited != want || s.Stats().Refused > 1 {
			t.Errorf("%s: %+v", c.name, s.Stats())
		}
	}
}

// A hit that only looked is charged, even if its batch has no time to wait for another hit.
func TestNoTimeToWait(t *testing.T) {
	at := epochOfTests
	shared := newShared(&at)
	counts := &algorithm.Limit{Max: 100, Period: time.Minute, CountBlocked: true}
	s := newTestStore(shared, 2, &at)
	mustTake(t, shared, hit("k", counts, algorithm.Charge, 100), hit("full", minutely, algorithm.Charge, 100))
	refused := hit("k", counts, algorithm.Charge, 1)
	refused.OnContention = backend.Refuse
	mustTake(t, s, refused) // The next hit looks first.
	s.Tick(t.Context())
	mustTake(t, shared, hit("k", counts, algorithm.Refund, 1))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	b := &backend.Batch{
		Hits:     []backend.Hit{hit("k", counts, algorithm.Charge, 1), hit("full", minutely, algorithm.Charge, 1)},
		Verdicts: make([]backend.Verdict, 2),
	}
	b.Hits[1].GroupID = 1
	if err := s.Take(ctx, b); err != nil || b.Verdicts[0].Over || !b.Verdicts[1].Over {
		t.Errorf("%+v, %v", b.Verdicts, err)
	}
	if n := countIn(t, shared, "k", counts); n != 100 {
		t.Errorf("the store has %d of 100, and the hit passed", n)
	}
}

// A refill of a limit that counts refused hits gets what is left.
func TestRefillOfWhatIsLeft(t *testing.T) {
	at, limit := epochOfTests, &algorithm.Limit{Max: 100, Period: time.Minute, CountBlocked: true}
	shared := newShared(&at)
	s := newTestStore(shared, 2, &at)
	mustTake(t, s, hit("k", limit, algorithm.Charge, 1))
	mustTake(t, s, hit("k", limit, algorithm.Charge, 15)) // It asks for 18 more.
	mustTake(t, shared, hit("k", limit, algorithm.Force, 70))
	s.Refill(t.Context())
	s.Tick(t.Context())
	l, count := leaseOf(s, "k", limit), countIn(t, shared, "k", limit)
	if uint64(l.used)+uint64(l.held) != 30 || count != 100 {
		t.Errorf("%d are used and %d held, of 30; the store has %d", l.used, l.held, count)
	}
}

// A refill that a limit which counts refused hits has no room for goes back.
func TestRefillThatIsRefused(t *testing.T) {
	at, limit := epochOfTests, &algorithm.Limit{Max: 100, Period: time.Minute, CountBlocked: true}
	shared := newShared(&at)
	s := newTestStore(shared, 2, &at)
	mustTake(t, s, hit("k", limit, algorithm.Charge, 1))
	l := leaseOf(s, "k", limit)
	mustTake(t, s, hit("k", limit, algorithm.Charge, 15))
	mustTake(t, shared, hit("k", limit, algorithm.Force, 80))
	held := l.held
	if s.Refill(t.Context()); l.held != held || l.isAsking() {
		t.Errorf("%d are held, want %d", l.held, held)
	}
	if s.Tick(t.Context()); l.held+l.used+80 != uint32(countIn(t, shared, "k", limit)) {
		t.Errorf("%d are held and %d used, of %d", l.held, l.used, countIn(t, shared, "k", limit))
	}
}

// Units that a group has reserved go back to the store if the lease cannot have them any more.
func TestReservedUnitsGoToTheStore(t *testing.T) {
	at := epochOfTests
	bucket := &algorithm.Limit{Kind: algorithm.GCRA, Max: 100, Burst: 99, Period: time.Minute}
	for _, c := range []struct {
		name       string
		limit      *algorithm.Limit
		meanwhile  func(s *Store, l lease)
		held, back uint64
	}{
		{"the same lease", minutely, func(*Store, lease) {}, 49, 0},
		{"refunded by others", minutely, func(_ *Store, l lease) { l.used = 1 }, 48, 1},
		{"later units of a bucket", bucket, func(_ *Store, l lease) { l.end++ }, 47, 2},
		{"earlier units of a bucket", bucket, func(_ *Store, l lease) { l.end-- }, 49, 0},
		{"an operator's change", minutely, func(s *Store, l lease) {
			s.forAll(func(sh *shard, l lease, _ uint32) { s.forget(sh, l, s.now()) })
		}, 0, 0},
	} {
		shared := newShared(&at)
		during := func() {}
		s := newTestStore(storeFunc(func(b *backend.Batch) {
			_ = shared.Take(t.Context(), b)
			during()
		}), 1, &at)
		mustTake(t, s, hit("k", c.limit, algorithm.Charge, 1))
		l := leaseOf(s, "k", c.limit)
		k, e := hit("k", c.limit, algorithm.Charge, 2), hit("e", minutely, algorithm.Charge, 101)
		k.Atomic, e.Atomic, e.Counting = true, true, backend.Exact
		during = func() { c.meanwhile(s, l) }
		mustTake(t, s, k, e)
		if held, waiting := s.Units(k); held != c.held || waiting != c.back || held != s.Stats().UnitsHeld {
			t.Errorf("%s: %d are held and %d go back, want %d and %d", c.name, held, waiting, c.held, c.back)
		}
	}
}

// A group that the store refuses passes whole or not at all, also if this replica gets units for one of its hits
// meanwhile.
func TestRefusedGroupWithUnitsMeanwhile(t *testing.T) {
	at := epochOfTests
	shared := newShared(&at)
	during := func() {}
	s := newTestStore(storeFunc(func(b *backend.Batch) {
		_ = shared.Take(t.Context(), b)
		during()
	}), 1, &at)
	mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))
	l := leaseOf(s, "k", minutely)
	units := l.held
	l.held = 0 // The store has them as used.
	others := hit("k", minutely, algorithm.Charge, 100-uint64(units)-1)
	others.Counting = backend.Exact
	mustTake(t, s, others)
	during = func() {
		during = func() {}
		l.held = units
	}
	k, e := hit("k", minutely, algorithm.Charge, 2), hit("e", minutely, algorithm.Charge, 1)
	k.Atomic, e.Atomic, e.Counting = true, true, backend.Exact
	e.GroupID = k.GroupID
	v := mustTake(t, s, k, e)
	if v[0].Over == v[1].Charged || v[0].Over == (l.used == 3) {
		t.Errorf("%d of 2 units are used, in a group with %+v", l.used-1, v)
	}
}
