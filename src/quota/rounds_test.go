package quota

import (
	"context"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/testbed/limitertest"
)

// hook is a store that calls before with each batch.
type hook struct {
	backend.Backend
	before func(*backend.Batch)
}

func (h *hook) Take(ctx context.Context, b *backend.Batch) error {
	if h.before != nil {
		h.before(b)
	}
	return h.Backend.Take(ctx, b)
}

// force charges units to the counter of a limit of the first bucket at a time.
func (w *world) force(limit int, units uint64, at time.Duration) {
	w.t.Helper()
	w.takeAt(limit, algorithm.Force, units, at)
}

// countAt returns the count of the counter of a limit of the first bucket at a time.
func (w *world) countAt(limit int, at time.Duration) uint64 {
	w.t.Helper()
	return w.takeAt(limit, algorithm.Look, 0, at).Before
}

func (w *world) takeAt(limit int, op algorithm.Op, units uint64, at time.Duration) backend.Verdict {
	w.t.Helper()
	target, err := FindTarget(w.limiter, []byte("d"), w.buckets[0].entries)
	if err != nil {
		w.t.Fatal(err)
	}
	batch := backend.Batch{Now: w.start.Add(at)}
	appendHit(&batch, &target.Hits[limit], op, units, 0)
	if err := w.store.Take(context.Background(), &batch); err != nil {
		w.t.Fatal(err)
	}
	return batch.Verdicts[0]
}

// round runs the rounds that are due at a time, or up to a tick later.
func (w *world) round(at time.Duration) {
	w.now = at
	w.nodes[0].Step(context.Background(), w.instant())
	w.now += tickTime
	w.nodes[0].Step(context.Background(), w.instant())
}

// report reports at a time, runs a round, and returns what the proxy is sent.
func (w *world) report(p *Proxy, allowed, denied uint64, at time.Duration) []Assignment {
	w.t.Helper()
	w.now = at
	if err := p.Report([]byte("k=v"), allowed, denied, w.instant(), oneEntry); err != nil {
		w.t.Fatal(err)
	}
	w.round(at)
	return p.TakePending(nil)
}

const perMinute = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 1000}}]"

func TestActionOfRules(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]Action{
		"{key: k, rate_limit: {unit: second, requests_per_unit: 10}}":                    AssignUnits,
		"{key: k, rate_limit: {unit: second, requests_per_unit: 0}}":                     DenyAll,
		"{key: k, rate_limit: {unlimited: true}}":                                        AllowAll,
		"{key: k, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 10}}": AllowAll,
		"{key: k, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}":  AllowAll,
		"{key: other, rate_limit: {unit: second, requests_per_unit: 10}}":                AllowAll,
	} {
		w := newWorld(t, 1, "domain: d\ndescriptors: ["+rule+"]", 1)
		got := w.report(w.nodes[0].Connect([]byte("d")), 0, 1, time.Second)
		if len(got) != 1 || got[0].Action != want {
			t.Errorf("%s: %+v, want action %d", rule, got, want)
		}
		target, err := FindTarget(w.limiter, []byte("d"), w.buckets[0].entries)
		if counts := len(target.CountedRules()) > 0; err != nil || counts != strings.Contains(rule, "key: k") {
			t.Errorf("%s: the decisions count for the rule: %t, %v", rule, counts, err)
		}
	}
}

// A newcomer gets enough to start at the next window, and a proxy without traffic keeps enough to start again.
func TestNewcomerAndFloor(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 1)
	a := w.connect(0, 300, 5*time.Second)
	w.run(10300 * time.Millisecond)
	b, before := w.connect(0, 20, 5*time.Second), a.total
	w.run(2700 * time.Millisecond)
	if b.total < 30 || a.total-before < 100 {
		t.Errorf("in 2 windows, the newcomer used %d units of 40, and the other one %d of 200", b.total, a.total-before)
	}
	b.rate = 0
	w.run(20 * time.Second)
	if b.current.Action != AssignUnits || b.left == 0 {
		t.Errorf("the proxy without traffic has %+v", b.current)
	}
}

// What proxies used without an assignment is charged, at most the limit for one report.
func TestUnassignedUnitsAreCharged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ allowed, want uint64 }{
		{0, 0},
		{50, 50},
		{1000, 1000},
		{1 << 63, 1000},
		{1<<64 - 1, 1000},
	} {
		w := newWorld(t, 1, perMinute, 1)
		w.report(w.nodes[0].Connect([]byte("d")), tt.allowed, 0, time.Second)
		if got := w.countAt(0, time.Second) - w.nodes[0].Stats().AssignedUnits.Load(); got != tt.want {
			t.Errorf("a report of %d: %d units are charged beside those that are assigned, want %d", tt.allowed, got, tt.want)
		}
	}
}

// Units are given back to their own window only. Others use 50 units of the next minute.
func TestRefundInItsWindow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		leaves, round time.Duration
		late          time.Duration // how much later than the round the store decides.
		algorithm     string
		isRefunded    bool
	}{
		"a first-hit window": {
			leaves: 59 * time.Second, round: 59950 * time.Millisecond,
			algorithm: ", algorithm: first_hit_window", isRefunded: true,
		},
		"in time":              {leaves: 59 * time.Second, round: 59800 * time.Millisecond, isRefunded: true},
		"just before the end":  {leaves: 59 * time.Second, round: 59950 * time.Millisecond},
		"the store is late":    {leaves: 59 * time.Second, round: 59800 * time.Millisecond, late: 300 * time.Millisecond},
		"in the next window":   {leaves: 59 * time.Second, round: 60100 * time.Millisecond},
		"two windows too late": {leaves: 59 * time.Second, round: 130 * time.Second},
	} {
		w := limitedWorld(t, "unit: minute, requests_per_unit: 1000"+tt.algorithm, 1)
		n := w.nodes[0]
		p := n.Connect([]byte("d"))
		w.report(p, 0, 1, 40*time.Second)
		assigned := n.Stats().AssignedUnits.Load()
		if first := w.countAt(0, 40*time.Second); assigned == 0 || first != assigned {
			t.Fatalf("%s: %d units are assigned, and %d charged", name, assigned, first)
		}
		w.now = tt.leaves // The assignment has expired.
		if err := p.Report([]byte("k=v"), 0, 0, w.instant(), oneEntry); err != nil {
			t.Fatal(err)
		}
		p.Close()
		w.now = tt.round
		next := max(time.Minute, tt.round.Truncate(time.Minute))
		if tt.algorithm == "" {
			w.force(0, 50, next)
		}
		n.cfg.Backend = &hook{w.store, func(b *backend.Batch) { b.Now = b.Now.Add(tt.late) }}
		n.Step(t.Context(), w.instant())
		if want := map[bool]uint64{true: 0, false: assigned}[tt.isRefunded]; tt.round < time.Minute && tt.late == 0 &&
			w.countAt(0, tt.round) != want {
			t.Errorf("%s: the first minute counts %d units, want %d", name, w.countAt(0, tt.round), want)
		}
		if tt.algorithm == "" && w.countAt(0, next) != 50 {
			t.Errorf("%s: the next minute counts %d units, want 50", name, w.countAt(0, next))
		}
	}
}

// When a counter is lost, the next round replaces the units of all proxies, which are charged to the new one.
func TestLostCounter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, perMinute, 1)
	p := w.nodes[0].Connect([]byte("d"))
	first := w.report(p, 0, 1, time.Second)
	store := limitertest.Store(t, memory.Config{})
	w.store, w.nodes[0].cfg.Backend = store, store
	newcomer := w.report(w.nodes[0].Connect([]byte("d")), 0, 1, 2*time.Second)
	second, charged := p.TakePending(nil), w.countAt(0, w.now)
	if len(first) != 1 || len(second) != 1 || len(newcomer) != 1 || second[0].IsExtension ||
		charged != uint64(second[0].Units)+uint64(newcomer[0].Units) {
		t.Errorf("at first %+v, after the loss %+v; %d units are charged", first, second, charged)
	}
}

// If others take units between a look and a charge, nothing is charged, and a round tries again after 100 ms.
func TestRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, "domain: d\ndescriptors: [{key: k, rate_limits: [{unit: minute, requests_per_unit: 100}, {unit: "+
		"hour, requests_per_unit: 60}]}]", 1)
	raced := false
	w.nodes[0].cfg.Backend = &hook{w.store, func(b *backend.Batch) {
		if b.Hits[0].Op == algorithm.Charge && !raced {
			raced = true
			w.force(1, 59, w.now)
		}
	}}
	p := w.nodes[0].Connect([]byte("d"))
	if got := w.report(p, 0, 10, time.Second); len(got) > 0 || w.countAt(0, time.Second) != 0 ||
		w.nodes[0].Stats().Races.Load() != 1 {
		t.Errorf("after a race: %+v, %d units of the minute charged, %d races", got, w.countAt(0, time.Second),
			w.nodes[0].Stats().Races.Load())
	}
	w.round(w.now + retryTime)
	if got := p.TakePending(nil); len(got) != 1 || got[0].Units != 1 {
		t.Errorf("the next round: %+v, want the unit that is left", got)
	}
}

// An assignment is extended only if the proxy has it, and if the extension arrives before it expires: it holds for 11
// s.
func TestExtensions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		after   time.Duration
		isTaken bool
		want    bool
	}{
		{6 * time.Second, true, true},
		{6 * time.Second, false, false},
		{10500 * time.Millisecond, true, false},
		{30 * time.Second, true, false},
	} {
		w := newWorld(t, 1, perMinute, 1)
		p := w.nodes[0].Connect([]byte("d"))
		if err := p.Report([]byte("k=v"), 0, 1, NewInstant(time.Second, w.start.Add(time.Second)), oneEntry); err != nil {
			t.Fatal(err)
		}
		w.round(time.Second)
		if tt.isTaken {
			p.TakePending(nil)
		}
		if got := w.report(p, 0, 1, time.Second+tt.after); len(got) != 1 || got[0].IsExtension != tt.want ||
			got[0].Units == 0 {
			t.Errorf("%+v: %+v", tt, got)
		}
	}
}

// A proxy that uses little of a long window never waits for units.
func TestSlowProxyIsNeverRefused(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: hour, requests_per_unit: 1000", 1)
	p := w.connect(0, 0.2, 5*time.Second)
	w.run(2 * time.Minute)
	if p.total < 22 {
		t.Errorf("%d of 24 requests passed, want all but the first", p.total)
	}
}

func TestSilentProxyGetsNothing(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 1)
	p := w.connect(0, 300, time.Second)
	w.run(5 * time.Second)
	p.isSilent = true
	w.run(5 * time.Second)
	before := w.nodes[0].Stats().Assignments.Load()
	w.run(10 * time.Second)
	if got := w.nodes[0].Stats().Assignments.Load(); got != before {
		t.Errorf("the silent proxy got %d assignments", got-before)
	}
}

// If nothing is left when a window begins, proxies lose the units of the last window.
func TestWindowWithoutUnits(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 100", 1)
	p := w.nodes[0].Connect([]byte("d"))
	if got := w.report(p, 0, 10, 500*time.Millisecond); len(got) != 1 || got[0].Action != AssignUnits {
		t.Fatalf("%+v", got)
	}
	w.force(0, 100, time.Second)
	w.round(time.Second)
	if got := p.TakePending(nil); len(got) != 1 || got[0].Action != DenyAll {
		t.Errorf("%+v, want DenyAll", got)
	}
}

// A bucket that is not used is abandoned, in windows of any length.
func TestAbandon(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"second", "minute"} {
		w := limitedWorld(t, "unit: "+unit+", requests_per_unit: 100", 1)
		w.nodes[0].cfg.AbandonAfter = 20 * time.Second
		p := w.connect(0, 5, 5*time.Second)
		w.run(5 * time.Second)
		p.rate = 0
		w.run(15 * time.Second)
		if got := w.nodes[0].Stats().Abandoned.Load(); got != 0 {
			t.Errorf("%s: abandoned after 15 s, want 20 s", unit)
		}
		w.run(15 * time.Second)
		s := w.nodes[0].Stats()
		if s.Abandoned.Load() != 1 || s.Members.Load() != 0 || p.known {
			t.Errorf("%s: %d abandoned, %d members", unit, s.Abandoned.Load(), s.Members.Load())
		}
	}
}

// After a reload from a long window to a short one, replicas keep to their shares of the short one.
func TestSharesAfterReload(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: minute, requests_per_unit: 600", 2)
	for i := range 6 {
		w.connect(min(i, 1), 200, time.Second)
	}
	w.run(40 * time.Second)
	w.useRules("domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 60}}]")
	w.run(5 * time.Second)
	for _, p := range w.proxies {
		p.total = 0
	}
	w.run(5 * time.Second)
	for i, p := range w.proxies {
		if p.total < 25 {
			t.Errorf("proxy %d used %d units, an equal share is 50", i, p.total)
		}
	}
}

// A division counts what proxies got of one counter in one window.
func TestDivisionStartsAnew(t *testing.T) {
	t.Parallel()
	target := func(key string) Target {
		return Target{Hits: []backend.Hit{{
			Key:   []byte(key),
			Limit: &algorithm.Limit{Max: 100, Period: time.Minute},
		}}}
	}
	for name, tt := range map[string]struct {
		key         string
		steps       time.Duration // by how much the clock is stepped.
		isForgotten bool
	}{
		"the same window": {key: "a"},
		"another counter": {key: "b", isForgotten: true},
		"another window":  {key: "a", steps: time.Minute, isForgotten: true},
	} {
		b := &bucket{members: []*member{{}}}
		b.use(target("a"))
		b.advance(NewInstant(0, time.Unix(60, 0)))
		b.taken, b.members[0].taken = 7, 7
		b.peers.published, b.peers.publishedAt = presence{proxies: 1}, 1
		b.use(target(tt.key))
		b.advance(NewInstant(time.Second, time.Unix(61, 0).Add(tt.steps)))
		if got := b.taken == 0 && b.members[0].taken == 0; got != tt.isForgotten {
			t.Errorf("%s: %d units are taken, by the member %d", name, b.taken, b.members[0].taken)
		}
		if isPublished := b.peers.publishedAt > 0; isPublished != (tt.key == "a") {
			t.Errorf("%s: presence is published: %v", name, isPublished)
		}
	}
}

// If a limit has fewer units than proxies, all get one in turn.
func TestProxiesTakeTurns(t *testing.T) {
	t.Parallel()
	w := limitedWorld(t, "unit: second, requests_per_unit: 1", 1)
	a, b := w.connect(0, 5, time.Second), w.connect(0, 5, time.Second)
	w.run(60 * time.Second)
	if min(a.total, b.total) < 10 {
		t.Errorf("the proxies used %d and %d of 60 units", a.total, b.total)
	}
}

// Units that go back do not count as taken in the division.
func TestSpareIsNotTaken(t *testing.T) {
	t.Parallel()
	b := &bucket{limits: []limitState{{freed: 5}}, taken: 100}
	b.members = []*member{
		{outstanding: []uint64{50}, taken: 80},
		{outstanding: []uint64{10}, taken: 20, account: account{settledUnits: 10}},
	}
	if spare := b.takeSpare(0); spare != 55 || b.members[0].taken != 30 || b.members[1].taken != 20 || b.taken != 50 ||
		b.takeSpare(0) != 0 {
		t.Errorf("%d units are spare; %d and %d of %d are taken", spare, b.members[0].taken, b.members[1].taken, b.taken)
	}
}

// Of the 100 units of a second, a replica with half of the proxies gets half, and in the last four tenths what there
// is.
func TestAllowance(t *testing.T) {
	t.Parallel()
	b := &bucket{members: []*member{{demand: 200}}}
	b.use(Target{Hits: []backend.Hit{{Limit: &algorithm.Limit{Max: 100, Period: time.Second}}}})
	b.peers.others = presence{1, 1, demandUnit}
	b.advance(NewInstant(0, time.Unix(100, 0)))
	for _, tt := range []struct {
		at               time.Duration
		taken, available uint64
		want             uint64
	}{
		{0, 0, 100, 50},
		{500 * time.Millisecond, 50, 50, 0},
		{500 * time.Millisecond, 20, 60, 30},
		{500 * time.Millisecond, 0, 20, 20},
		{599 * time.Millisecond, 50, 50, 0},
		{600 * time.Millisecond, 50, 50, 50},
	} {
		b.taken = tt.taken
		if got := b.allowance(tt.available, NewInstant(tt.at, time.Unix(100, int64(tt.at)))); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

// A report of a bucket that the proxy has reported before allocates nothing.
func TestReportsAllocateNothing(t *testing.T) {
	w := newWorld(t, 1, perMinute, 1)
	p := w.nodes[0].Connect([]byte("d"))
	w.report(p, 0, 10, time.Second)
	id := []byte("k=v")
	if n := testing.AllocsPerRun(100, func() {
		w.now += time.Second
		if err := p.Report(id, 5, 5, w.instant(), oneEntry); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
