package backendtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// limits returns the limits of random tests. Limits of one kind, period and minimum interval share counters.
func (suite *Suite) limits() (limits []*algorithm.Limit) {
	for _, kind := range suite.Kinds {
		odd := 90*time.Second + 500*time.Millisecond
		if kind == algorithm.FixedWindow {
			odd = 90 * time.Second
		}
		limits = append(
			limits,
			blocked(kind, 0, time.Minute), blocked(kind, 3, time.Minute), blocked(kind, 10, time.Minute), polite(kind, 10, time.Minute),
			blocked(kind, 20, time.Hour), polite(kind, 20, time.Hour), polite(kind, 7, odd), polite(kind, 5, odd),
		)
		switch kind {
		case algorithm.SlidingWindow:
			limits = append(limits, paced(polite(kind, 4, time.Minute), 15*time.Second), paced(blocked(kind, 9, time.Minute), 2*time.Minute))
		case algorithm.GCRA:
			limits = append(
				limits, paced(polite(kind, 4, time.Minute), 15*time.Second), paced(blocked(kind, 9, time.Minute), 2*time.Minute),
				&algorithm.Limit{Kind: kind, Max: 7, Period: time.Minute}, &algorithm.Limit{Kind: kind, Max: 7, Period: time.Minute, Burst: 30, CountBlocked: true},
				&algorithm.Limit{Kind: kind, Max: 1003, Period: time.Hour, Burst: 10},
			)
		default:
			limits = append(limits, blocked(kind, 1<<40, time.Hour))
		}
	}
	return slices.DeleteFunc(limits, func(l *algorithm.Limit) bool { return !suite.can(l) })
}

// play is one random test against the referee.
type play struct {
	suite *Suite
	rnd   *rand.Rand
	now   time.Time
	seen  time.Time // the latest
	right referee
	lives map[name]int
}

// name stands for the keys of some limits. When the clock is set back, the store may have dropped an expired counter or not. Such
// a key is not used again; its name gets a new key.
type name struct {
	kind     algorithm.Kind
	period   time.Duration
	interval time.Duration
	number   int
}

func (p *play) key(n name) string {
	// Kinds share keys. Windows of two lengths that start together may share a counter, so they do not.
	return fmt.Sprintf("key-%d-%v-%v-%d", n.number, n.period, n.interval, p.lives[n])
}

// step moves the clock: by some seconds, to the edge of a minute, an hour, or back.
func (p *play) step() {
	switch n := p.rnd.IntN(100); {
	case n < 10:
	case n < 20:
		p.now = p.now.Truncate(time.Minute).Add(time.Minute + time.Duration(p.rnd.IntN(3)-1)*time.Microsecond)
	case n < 22:
		p.now = p.now.Add(time.Hour)
	case n < 24:
		p.back(time.Duration(p.rnd.Int64N(3_600_000_000)) * time.Microsecond)
	case n < 27:
		p.back(time.Duration(p.rnd.Int64N(90_000_000)) * time.Microsecond)
	default:
		p.now = p.now.Add(time.Duration(p.rnd.Int64N(20_000_000)) * time.Microsecond)
	}
	if p.now.After(p.seen) {
		p.seen = p.now
	}
}

func (p *play) back(by time.Duration) {
	p.now = p.now.Add(-by)
	forgotten := make(map[string]bool)
	soon := p.seen.Add(time.Minute).UnixNano()
	for c, st := range p.right {
		if st.until <= soon || slices.Contains(p.suite.Forward, c.kind) {
			forgotten[fmt.Sprint(c.kind, c.key)] = true
		}
	}
	for n := range p.lives {
		if forgotten[fmt.Sprint(n.kind, p.key(n))] {
			p.lives[n]++
		}
	}
}

// batch returns up to three groups of up to three hits.
func (p *play) batch(limits []*algorithm.Limit) (hits []backend.Hit) {
	for group := range 1 + p.rnd.IntN(3) {
		for range 1 + p.rnd.IntN(3) {
			limit := limits[p.rnd.IntN(len(limits))]
			n := name{limit.Kind, limit.Period, limit.MinInterval, p.rnd.IntN(2)}
			p.lives[n] += 0
			hits = append(hits, backend.Hit{
				Key:    []byte(p.key(n)),
				Tag:    len("key-"),
				Limit:  limit,
				Amount: uint64(p.rnd.IntN(5)),
				Op:     []algorithm.Op{charge, charge, charge, charge, look, refund, force}[p.rnd.IntN(7)],
				Group:  uint16(group),
				Atomic: p.rnd.IntN(2) == 0 && !p.suite.NoGroups,
				NoVeto: p.rnd.IntN(4) == 0,
			})
			if last := len(hits) - 1; last > 0 && p.rnd.IntN(4) == 0 { // the same once more
				hits[last].Key, hits[last].Limit = hits[last-1].Key, hits[last-1].Limit
			}
		}
	}
	return hits
}

// testReferee sends random batches to the store and to the referee, first of each kind alone and then of all.
func (suite *Suite) testReferee(t *testing.T, open func(*testing.T) backend.Backend) {
	limits := suite.limits()
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		suite.testPlay(t, open(t), slices.DeleteFunc(slices.Clone(limits), func(l *algorithm.Limit) bool { return l.Kind != kind }))
	})
	if len(suite.Kinds) > 1 {
		t.Run("mixed", func(t *testing.T) { suite.testPlay(t, open(t), limits) })
	}
}

func (suite *Suite) testPlay(t *testing.T, store backend.Backend, limits []*algorithm.Limit) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p := play{suite: suite, rnd: rand.New(rand.NewPCG(seed, 1)), now: epoch, seen: epoch, right: make(referee), lives: make(map[name]int)}
	for round := range 2000 {
		p.step()
		b := backend.Batch{Hits: p.batch(limits)}
		got := send(t, store, p.now, b.Hits...)
		for i := 0; i < len(b.Hits); i = b.GroupEnd(i) {
			for j, want := range p.right.group(b.Hits[i:b.GroupEnd(i)], p.now.UnixNano()) {
				if h := b.Hits[i+j]; !suite.same(got[i+j], want) {
					t.Fatalf("round %d, hit %d of %d, at %v: %v of %d on %s, group %d, atomic %t, no veto %t, %+v\n got %+v\nwant %+v", round, i+j, len(b.Hits), p.now,
						h.Op, h.Amount, h.Key, h.Group, h.Atomic, h.NoVeto, *h.Limit, got[i+j], want)
				}
			}
		}
	}
}
