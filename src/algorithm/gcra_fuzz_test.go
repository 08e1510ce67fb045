package algorithm

import (
	"math/big"
	"testing"
	"time"
)

// cell is redis-cell's arithmetic in its own words, with numbers that cannot
// overflow, and beyond it what redis-cell has not: a distance, refused hits that
// count, a state that is pulled in.
type cell struct {
	limit *Limit
	tat   *big.Int // nil: never hit
	last  *big.Int // nil: not known
}

func (c *cell) apply(at int64, op Op, amount uint64) Outcome {
	l := c.limit
	if l.Max == 0 { // an error in redis-cell
		if op == Refund || op == Force {
			return Outcome{FullUntil: endOfTime}
		}
		return Outcome{Over: true, RetryAfter: Never, FullUntil: endOfTime}
	}
	n := func(n int64) *big.Int { return big.NewInt(n) }
	add := func(a, b *big.Int) *big.Int { return new(big.Int).Add(a, b) }
	sub := func(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) }
	mul := func(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) }
	least := func(a, b *big.Int) *big.Int {
		if a.Cmp(b) < 0 {
			return a
		}
		return b
	}
	greatest := func(a, b *big.Int) *big.Int { return sub(n(0), least(sub(n(0), a), sub(n(0), b))) }

	now, quantity := n(at), new(big.Int).SetUint64(amount)
	emission := new(big.Int).Div(n(int64(l.Period)), new(big.Int).SetUint64(l.Max))
	tolerance := mul(emission, add(new(big.Int).SetUint64(l.Burst), n(1)))
	increment := mul(emission, quantity)
	farthest := add(now, tolerance)
	if l.CountBlocked {
		farthest = add(now, n(int64(MaxPeriod)))
	}
	tat := now
	if c.tat != nil {
		tat = least(greatest(c.tat, now), farthest)
	}
	var last *big.Int
	if c.last != nil {
		last = least(c.last, now)
	}
	newTAT := add(tat, increment)
	spare := sub(now, sub(newTAT, tolerance))

	used := func(tat *big.Int) uint64 { // -1 div emission rounds up
		return new(big.Int).Neg(new(big.Int).Div(sub(now, tat), emission)).Uint64()
	}
	pause := func() *big.Int {
		if last == nil {
			return n(0)
		}
		return greatest(sub(add(last, n(int64(l.MinInterval))), now), n(0))
	}
	v := Outcome{Before: used(tat)}
	asks := op == Charge || op == Look
	v.WithinMinInterval = asks && pause().Sign() > 0
	v.Over = asks && (spare.Sign() < 0 || v.WithinMinInterval)
	stored := tat
	switch {
	case op == Refund:
		stored = greatest(sub(tat, increment), now)
		v.Charged = stored.Cmp(tat) != 0
	case amount > 0 && (op == Force || op == Charge && (!v.Over || l.CountBlocked)):
		v.Charged = true
		stored, last = least(newTAT, farthest), now
	}
	switch {
	case v.Charged:
		if pause().Sign() == 0 {
			last = n(0) // not kept once the distance is there
		}
		c.tat, c.last = stored, last
		if stored.Cmp(now) == 0 {
			c.tat = n(0) // whole, also for a clock that steps back
			if last.Sign() == 0 {
				c.tat, c.last = nil, nil // nothing is left to remember
			}
		}
	case c.tat != nil: // pulled in
		c.tat, c.last = least(c.tat, farthest), last
	}
	v.After = used(stored)
	ttl := sub(stored, now)
	v.ResetAfter = time.Duration(greatest(ttl, pause()).Int64())
	spare = sub(now, sub(add(stored, increment), tolerance))
	switch {
	case v.Over && increment.Cmp(tolerance) > 0:
		v.RetryAfter = Never
	case v.Over:
		v.RetryAfter = time.Duration(greatest(new(big.Int).Neg(spare), pause()).Int64())
	}
	if left := sub(tolerance, ttl); left.Sign() > 0 { // also when it is over: what a smaller hit could take
		v.Remaining = new(big.Int).Div(left, emission).Uint64()
	}
	full := greatest(sub(add(ttl, emission), tolerance), pause())
	if full.Sign() > 0 && !l.CountBlocked {
		v.FullUntil = at + full.Int64()
	}
	return v
}

// bucket is the same from the other side: a bucket of Burst+1 units, into which
// one drips in each emission interval. Its level is a fraction of which that
// interval is the denominator. It knows no clock that steps back, and no limit
// of 0.
type bucket struct {
	limit  *Limit
	events []event
	now    int64
	level  *big.Int
	last   int64 // of the events that took something
	hit    bool
}

// emission is worked out anew, not asked for.
func (w *bucket) emission() int64 { return int64(w.limit.Period) / int64(w.limit.Max) }

func (w *bucket) size() *big.Int { return times(w.limit.Burst+1, w.emission()) }

// drip is the level after d.
func (w *bucket) drip(level *big.Int, d int64) *big.Int {
	more := big.NewInt(d)
	return w.capped(more.Add(more, level))
}

func (w *bucket) capped(level *big.Int) *big.Int {
	if size := w.size(); level.Cmp(size) > 0 {
		return size
	}
	return level
}

// owed is level, but not less than what a bucket may owe.
func (w *bucket) owed(level *big.Int) *big.Int {
	least := new(big.Int)
	if w.limit.CountBlocked {
		least.Sub(w.size(), big.NewInt(int64(MaxPeriod)))
	}
	if level.Cmp(least) < 0 {
		return least
	}
	return level
}

func (w *bucket) see(at int64) int64 {
	w.level, w.now, w.hit = w.size(), at, false
	before := int64(0)
	for _, e := range w.events {
		w.level = w.drip(w.level, e.at-before)
		amount := times(e.amount, w.emission())
		if e.give {
			w.level = w.capped(amount.Add(w.level, amount))
		} else {
			w.level = w.owed(amount.Sub(w.level, amount))
			w.last, w.hit = e.at, true
		}
		before = e.at
	}
	w.level = w.drip(w.level, at-before)
	return at
}

func (w *bucket) count(d int64) uint64 {
	gone := w.size()
	return ceil(gone.Sub(gone, w.drip(w.level, d)), w.emission())
}

func (w *bucket) refused(d int64, amount uint64) (count, interval bool) {
	interval = w.hit && w.now+d-w.last < int64(w.limit.MinInterval)
	return w.drip(w.level, d).Cmp(times(amount, w.emission())) < 0, interval
}

func (w *bucket) fresh(d int64) bool {
	_, interval := w.refused(d, 0)
	return w.drip(w.level, d).Cmp(w.size()) == 0 && !interval
}

func (w *bucket) add(amount uint64) {
	w.events = append(w.events, event{at: w.now, amount: amount})
	w.see(w.now)
}

func (w *bucket) give(amount uint64) uint64 {
	given := min(amount, w.count(0)) // the last of them may be a part of one
	if given > 0 {
		w.events = append(w.events, event{at: w.now, amount: given, give: true})
		w.see(w.now)
	}
	return given
}

func (w *bucket) horizon() int64 {
	if w.limit.CountBlocked {
		return int64(MaxPeriod)
	}
	return max(w.limit.BurstTolerance(), int64(w.limit.MinInterval))
}

func playGCRA(t *testing.T, script []byte) {
	tl, ok := decode(GCRA, script)
	if !ok {
		return
	}
	c, sim := &counter{limit: &tl.limit}, &cell{limit: &tl.limit}
	tl.play(func(m moment) Outcome {
		before := c.clone()
		v := c.apply(m.at, m.op, m.amount)
		checkVerdict(t, before, c, m.at, m.op, m.amount, v)
		if want := sim.apply(m.at, m.op, m.amount); v != want {
			t.Fatalf("%v of %d at %d on %+v, limit %+v\n got %+v\nwant %+v", m.op, m.amount, m.at, before.GCRA, tl.limit,
				v, want)
		}
		return v
	})
	if !tl.back && tl.limit.Max > 0 {
		against(t, GCRA, script, func(tl *timeline) []world { return []world{&bucket{limit: &tl.limit}} })
	}
}

func TestGCRAAgainstSimulators(t *testing.T) { randomly(t, 600, playGCRA) }

func FuzzTakeGCRA(f *testing.F) {
	seedCorpus(f)
	f.Fuzz(playGCRA)
}
