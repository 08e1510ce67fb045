package backendtest

import (
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// referee is a slow and simple store. It tries a group on copies, which it drops if a hit refuses.
type referee struct {
	counters       map[counter]*state
	upstreamCounts bool // Suite.UpstreamCounts.
}

func newReferee(upstreamCounts bool) *referee {
	return &referee{make(map[counter]*state), upstreamCounts}
}

// counter identifies a counter of the referee.
type counter struct {
	key         string
	window      algorithm.Window
	windowStart int64 // the start of the fixed window that it counts; 0 for other kinds
}

// state is what the referee keeps of a counter.
type state struct {
	algorithm.State
	held    algorithm.HeldState // used instead of State if the limit has holds.
	expires int64               // the instant at which the counter expires, or shortly before
	// upstreamCounts is that of the referee.
	upstreamCounts bool
	reused         bool // says that held was used after expires. It may have charges that the store has dropped.
}

func (st *state) clone() *state {
	c := *st
	c.SlidingLog, c.held = st.SlidingLog.Clone(), st.held.Clone()
	return &c
}

func (st *state) apply(h *backend.Hit, now int64) algorithm.Outcome {
	if l := h.Limit; l.Hold > 0 {
		st.reused = st.reused || st.expires > 0 && st.expires <= now
		v := st.held.Take(l, now, h.Op, h.Amount, h.HoldID)
		if v.Charged || v.HoldsExpired > 0 {
			st.expires = max(st.expires, now+int64(v.ResetAfter))
		}
		return v
	}
	firstHit, arrival, buckets, newest := st.FirstHit, st.GCRA, st.SlidingCounter, st.SlidingLog.Newest()
	amount := h.Amount
	if h.Window != 0 {
		if asked := st.clone().Take(h.Limit, now, look, 0); asked.WindowEnd != h.Window {
			amount = 0
		}
	}
	v := st.Take(h.Limit, now, h.Op, amount)
	if st.upstreamCounts {
		st.FixedWindow = algorithm.FixedState{Count: st.FixedWindow.Count}
	}
	if v.Charged || st.FirstHit != firstHit || st.GCRA != arrival || st.SlidingCounter != buckets ||
		st.SlidingLog.Newest() != newest {
		st.expires = now + int64(v.ResetAfter) // After a clock was set back, a look may shorten a window.
	}
	return v
}

func counterOf(h *backend.Hit, now int64) counter {
	c := counter{key: string(h.Key), window: h.Limit.Window()}
	if c.window.Kind == algorithm.FixedWindow && !c.window.IsHeld {
		c.windowStart, _ = h.Limit.WindowBounds(now)
	}
	return c
}

// stateOf returns the state of c, which it creates if there is none.
func (r *referee) stateOf(c counter) *state {
	if r.counters[c] == nil {
		r.counters[c] = &state{upstreamCounts: r.upstreamCounts}
	}
	return r.counters[c]
}

// takeGroup decides a group. Holds expire even if a hit refuses the group.
func (r *referee) takeGroup(hits []backend.Hit, now int64) []backend.Verdict {
	verdicts, expired := make([]backend.Verdict, len(hits)), make([]algorithm.Outcome, len(hits))
	for i := range hits {
		if h := hits[i]; h.Limit.Hold > 0 {
			h.Op, h.Amount, h.HoldID = look, 0, algorithm.HoldID{}
			expired[i] = r.stateOf(counterOf(&h, now)).apply(&h, now)
		}
	}
	trial := make(map[counter]*state)
	vetoed := false
	for i := range hits {
		c := counterOf(&hits[i], now)
		if trial[c] == nil {
			trial[c] = r.stateOf(c).clone()
		}
		verdicts[i].Outcome = trial[c].apply(&hits[i], now)
		vetoed = vetoed || verdicts[i].Over && !hits[i].NoVeto
	}
	vetoed = vetoed && backend.AnyAtomic(hits)
	for i := range hits {
		st := r.stateOf(counterOf(&hits[i], now))
		if !vetoed || !hits[i].Atomic {
			verdicts[i].Outcome = st.apply(&hits[i], now)
		} else {
			seen := hits[i].AsLook()
			verdicts[i].Outcome = algorithm.UnchargedOutcome(hits[i].Limit, st.apply(&seen, now), verdicts[i].Outcome)
		}
		verdicts[i].HoldsExpired, verdicts[i].ExpiredUnits = expired[i].HoldsExpired, expired[i].ExpiredUnits
	}
	return verdicts
}

// randomLimits returns the limits of random tests. Limits of one kind, period and minimum interval share counters.
func (suite *Suite) randomLimits() (limits []*algorithm.Limit) {
	for _, kind := range suite.Kinds {
		oddPeriod := 90*time.Second + 500*time.Millisecond
		if kind == algorithm.FixedWindow {
			oddPeriod = 90 * time.Second
		}
		limits = append(
			limits,
			countingBlocked(kind, 0, time.Minute), countingBlocked(kind, 3, time.Minute), countingBlocked(kind, 10,
				time.Minute), ignoringBlocked(kind, 10, time.Minute),
			countingBlocked(kind, 20, time.Hour), ignoringBlocked(kind, 20, time.Hour), ignoringBlocked(kind, 7,
				oddPeriod), ignoringBlocked(kind, 5, oddPeriod),
		)
		switch kind {
		case algorithm.SlidingWindow:
			limits = append(limits, withInterval(ignoringBlocked(kind, 4, time.Minute), 15*time.Second),
				withInterval(countingBlocked(kind, 9, time.Minute), 2*time.Minute))
		case algorithm.GCRA:
			limits = append(
				limits, withInterval(ignoringBlocked(kind, 4, time.Minute),
					15*time.Second), withInterval(countingBlocked(kind, 9, time.Minute), 2*time.Minute),
				&algorithm.Limit{Kind: kind, Max: 7, Period: time.Minute}, &algorithm.Limit{
					Kind: kind, Max: 7,
					Period: time.Minute, Burst: 30, CountBlocked: true,
				},
				&algorithm.Limit{Kind: kind, Max: 1003, Period: time.Hour, Burst: 10},
			)
		default:
			limits = append(limits, countingBlocked(kind, 1<<40, time.Hour))
		}
	}
	limits = append(limits, randomCalendars()...)
	return slices.DeleteFunc(limits, func(l *algorithm.Limit) bool { return !suite.supports(l) })
}

// randomTest is one random test against the referee.
type randomTest struct {
	suite    *Suite
	rnd      *rand.Rand
	now      time.Time
	latest   time.Time // the latest value of now
	referee  *referee
	versions map[keyName]int // how often a name got a new key
	windows  seenWindows
}

// keyName stands for the keys of some limits. When the clock is set back, the store may or may not have dropped an
// expired counter. Such a key is not used again, and its name gets a new key, with a higher version.
type keyName struct {
	kind     algorithm.Kind
	period   time.Duration
	interval time.Duration
	hold     time.Duration
	released bool
	number   int
}

// key returns the current key of a name. Limits of several kinds share keys, but limits of several periods do not:
// windows of two lengths that start together may share a counter.
func (p *randomTest) key(n keyName) string {
	return fmt.Sprintf("key-%d-%v-%v-%v-%t-%d", n.number, n.period, n.interval, n.hold, n.released, p.versions[n])
}

// moveClock moves the clock by some seconds, to the edge of a minute, by an hour, or back.
func (p *randomTest) moveClock() {
	switch n := p.rnd.IntN(100); {
	case n < 10:
	case n < 20:
		p.now = p.now.Truncate(time.Minute).Add(time.Minute + time.Duration(p.rnd.IntN(3)-1)*time.Microsecond)
	case n < 22:
		p.now = p.now.Add(time.Hour)
	case n < 24:
		p.setBack(time.Duration(p.rnd.Int64N(3_600_000_000)) * time.Microsecond)
	case n < 27:
		p.setBack(time.Duration(p.rnd.Int64N(90_000_000)) * time.Microsecond)
	default:
		p.now = p.now.Add(time.Duration(p.rnd.Int64N(20_000_000)) * time.Microsecond)
	}
	if p.now.After(p.latest) {
		p.latest = p.now
	}
}

// setBack sets the clock back, and replaces the keys of counters that the store may have dropped.
func (p *randomTest) setBack(by time.Duration) {
	p.now = p.now.Add(-by)
	forgotten := make(map[string]bool)
	soon := p.latest.Add(time.Minute).UnixNano()
	for c, st := range p.referee.counters {
		if st.expires <= soon || st.reused || c.window.IsHeld && c.window.Kind == algorithm.FixedWindow ||
			slices.Contains(p.suite.InexactBackwards, c.window.Kind) {
			forgotten[fmt.Sprint(c.window.Kind, c.key)] = true
		}
	}
	for n := range p.versions {
		if forgotten[fmt.Sprint(n.kind, p.key(n))] {
			p.versions[n]++
		}
	}
}

// batch returns up to three groups of up to three hits.
func (p *randomTest) batch(limits []*algorithm.Limit) (hits []backend.Hit) {
	for group := range 1 + p.rnd.IntN(3) {
		for range 1 + p.rnd.IntN(3) {
			limit := limits[p.rnd.IntN(len(limits))]
			n := keyName{limit.Kind, limit.Period, limit.MinInterval, limit.Hold, limit.ReleaseUnsettled, p.rnd.IntN(2)}
			p.versions[n] += 0
			hits = append(hits, backend.Hit{
				Key:       []byte(p.key(n)),
				TagLength: len("key-"),
				Limit:     limit,
				Amount:    p.amount(limit),
				Op:        []algorithm.Op{charge, charge, charge, charge, look, refund, force}[p.rnd.IntN(7)],
				GroupID:   uint16(group),
				Atomic:    p.rnd.IntN(2) == 0 && !p.suite.NoGroups,
				NoVeto:    p.rnd.IntN(4) == 0,
			})
			// the key and the limit of the previous hit once more
			if last := len(hits) - 1; last > 0 && p.rnd.IntN(4) == 0 {
				hits[last].Key, hits[last].Limit = hits[last-1].Key, hits[last-1].Limit
			}
			h := &hits[len(hits)-1]
			if h.Limit.Hold > 0 && p.rnd.IntN(5) > 0 {
				h.HoldID = backend.NewHoldID([]byte{'a' + byte(p.rnd.IntN(6))})
				if p.rnd.IntN(3) == 0 {
					h.HoldID = algorithm.Unnamed
				}
			}
			p.nameWindow(h)
		}
	}
	return hits
}

// testReferee sends random batches to the store and to the referee, first of each kind alone and then of all.
func (suite *Suite) testReferee(t *testing.T, open func(*testing.T) backend.Backend) {
	limits := suite.randomLimits()
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		suite.testRandomly(t, open(t), slices.DeleteFunc(slices.Clone(limits),
			func(l *algorithm.Limit) bool { return l.Kind != kind }))
	})
	if len(suite.Kinds) > 1 {
		t.Run("mixed", func(t *testing.T) { suite.testRandomly(t, open(t), limits) })
	}
}

func (suite *Suite) testRandomly(t *testing.T, store backend.Backend, limits []*algorithm.Limit) {
	p := randomTest{
		suite: suite, rnd: randomOf(t), now: epoch, latest: epoch,
		referee: newReferee(suite.UpstreamCounts), versions: make(map[keyName]int), windows: make(seenWindows),
	}
	for round := range suite.count(1000, 200) {
		p.moveClock()
		b := backend.Batch{Hits: p.batch(limits)}
		got := send(t, store, p.now, b.Hits...)
		expired, forgotten, units, forgottenUnits := 0, 0, 0, 0
		for _, v := range got {
			expired, units = expired+int(v.HoldsExpired), units+int(v.ExpiredUnits)
		}
		for i := 0; i < len(b.Hits); i = b.GroupEnd(i) {
			for j, want := range p.referee.takeGroup(b.Hits[i:b.GroupEnd(i)], p.now.UnixNano()) {
				h := &b.Hits[i+j]
				if !suite.equal(got[i+j], want) {
					t.Fatalf("round %d, hit %d of %d, at %v: %v of %d on %s, window %d, group %d, atomic %t, no veto %t, %+v\n"+
						" got %+v\nwant %+v", round, i+j, len(b.Hits), p.now,
						h.Op, h.Amount, h.Key, h.Window, h.GroupID, h.Atomic, h.NoVeto, *h.Limit, got[i+j], want)
				}
				p.windows.add(h, &want)
				expired, units = expired-int(want.HoldsExpired), units-int(want.ExpiredUnits)
				if want.Before == 0 { // The store may have dropped the counter, which counts nothing.
					forgotten, forgottenUnits = forgotten+int(want.HoldsExpired), forgottenUnits+int(want.ExpiredUnits)
				}
			}
		}
		if expired > 0 || expired < -forgotten {
			t.Fatalf("round %d at %v: the store reports %+d expired holds", round, p.now, expired)
		}
		if units > 0 || units < -forgottenUnits {
			t.Fatalf("round %d at %v: the store reports %+d units of expired holds", round, p.now, units)
		}
	}
}

// randomOf returns a source of random numbers, which are other ones in each test and the same ones in each run of it.
func randomOf(t *testing.T) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, t.Name())
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}

// maxPerPeriod returns the most units that may pass within any one period, which excludes its start; see
// algorithm.Kind.
func maxPerPeriod(l *algorithm.Limit) uint64 {
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

// testBound sends random hits, and checks that no more pass within a period than the kind of the limit allows.
func (suite *Suite) testBound(t *testing.T, open func(*testing.T) backend.Backend) {
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		rnd, store := randomOf(t), open(t)
		for timeline := range suite.count(4, 2) {
			limit := &algorithm.Limit{
				Kind: kind, Max: 1 + rnd.Uint64N(20), Period: time.Minute,
				CountBlocked: timeline%2 == 0,
			}
			if kind == algorithm.GCRA {
				limit.Burst = rnd.Uint64N(20)
			}
			if suite.supports(limit) {
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
	for range 200 {
		switch rnd.IntN(4) {
		case 0: // the clock stands still
		case 1: // the clock moves to about the next edge of a minute
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
		if sum > maxPerPeriod(limit) {
			t.Fatalf("%d in the %v before %v, under %+v", sum, limit.Period, now, *limit)
		}
	}
}
