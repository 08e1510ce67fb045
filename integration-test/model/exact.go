package model

import (
	"fmt"
	"math/big"
	"slices"
	"sort"
	"strings"
	"time"
)

// hit is what was counted at an instant, in nanoseconds since Start.
type hit struct {
	at     int64
	amount int64
	// cost is how much time a bucket needs for it; negative for what was given
	// back. Buckets keep it, since the limit may change meanwhile.
	cost *big.Int
	// refused is that of a fixed window that counts what it refuses, and under is the limit of the last refusal.
	refused bool
	under   int64
}

// counter is what is known of a value of a rule under one limit: the hits that
// count or once did, oldest first. The zero value has none.
type counter struct {
	hits []hit
	// begun is where a first-hit window began, open says that there is one. Of a
	// sliding window counter it is the window of the last write.
	begun int64
	open  bool
	// last is the last hit that a bucket with a minimum interval keeps.
	last    int64
	hasLast bool
	// until is when nothing of it matters any more, as of the last write; life is
	// how far off that was then. Written is when that was, by the clock on the wall.
	until         int64
	life, written time.Duration
	wrote         bool // by the take under way
	// holds are those of a limit that has a hold. The fields above are about what was charged.
	holds holds
}

func (c *counter) clone() *counter {
	out := *c
	out.hits, out.holds.list = slices.Clone(c.hits), slices.Clone(c.holds.list)
	return &out
}

// String tells counters apart, whatever their write times.
func (c *counter) String() string {
	var b strings.Builder
	for _, h := range c.hits {
		fmt.Fprintf(&b, "%d@%d", h.amount, h.at)
		if h.refused {
			fmt.Fprintf(&b, "!%d", h.under)
		}
		if h.cost != nil {
			fmt.Fprintf(&b, "~%v", h.cost)
		}
		b.WriteByte(' ')
	}
	fmt.Fprintf(&b, "%d %t %d %t%v", c.begun, c.open, c.last, c.hasLast, &c.holds)
	return b.String()
}

// verdict is what a limit says of a hit.
type verdict struct {
	over      bool
	remaining int64
	retry     time.Duration // when over
	never     bool          // no wait is long enough
	reset     time.Duration
}

// method is how a kind counts, by definition. What looks at a counter as of an
// instant changes nothing.
type method interface {
	// fits says whether amount has room, distance whether enough time has passed
	// since the last hit.
	fits(l *Limit, c *counter, at, amount int64) bool
	distance(l *Limit, c *counter, at int64) bool
	// waits are how long it takes until amount passes, if it can, and until the
	// limit is whole.
	waits(l *Limit, c *counter, at, amount int64) (retry, reset time.Duration)
	// record counts amount, which is above 0.
	record(l *Limit, c *counter, at, amount int64)
	// give takes amount back; how much of it was there.
	give(l *Limit, c *counter, at, amount int64) int64
	// adopt makes the changes of the first hit after the clock stepped back, and reports whether there are any.
	adopt(l *Limit, c *counter, at int64) bool
}

var methods = map[Kind]method{
	Fixed: fixed{}, FirstHit: firstHit{}, Sliding: sliding{}, Counter: twoBuckets{},
	GCRA: bucket{}, Concurrency: slots{},
}

// take decides on what is asked, and counts it. A look at holds removes those that have expired.
func (c *counter) take(l *Limit, at int64, w wish) verdict {
	switch {
	case l.Hold > 0:
		return c.applyHeld(l, at, w)
	case w.look:
		return c.look(l, at, w.amount)
	}
	return c.apply(l, at, w.amount)
}

// apply decides on amount, below 0 a refund, and counts it.
func (c *counter) apply(l *Limit, at, amount int64) verdict {
	m, v, wrote := methods[l.Kind], verdict{}, false
	switch {
	case l.Kind == GCRA && l.Max == 0: // a bucket that holds nothing
		return verdict{over: amount >= 0, never: amount >= 0}
	case amount < 0:
		wrote = m.adopt(l, c, at)
		wrote = m.give(l, c, at, -amount) > 0 || wrote
	default:
		wrote = m.adopt(l, c, at)
		v.over = l.Max == 0 || !m.fits(l, c, at, amount) || !m.distance(l, c, at)
		if amount > 0 && (!v.over || l.Counting) {
			m.record(l, c, at, amount)
			wrote = true
		}
	}
	c.describe(l, at, amount, &v)
	c.noteWrite(wrote, at, v.reset)
	return v
}

// noteWrite notes that nothing matters any more after the reset.
func (c *counter) noteWrite(wrote bool, at int64, reset time.Duration) {
	if wrote {
		c.until, c.life, c.wrote = at+int64(reset), reset, true
	}
}

// look is the verdict on a charge that counts nothing.
func (c *counter) look(l *Limit, at, amount int64) verdict {
	if l.Kind == GCRA && l.Max == 0 {
		return verdict{over: true, never: true}
	}
	m := methods[l.Kind]
	wrote := m.adopt(l, c, at)
	v := verdict{over: l.Max == 0 || !m.fits(l, c, at, amount) || !m.distance(l, c, at)}
	c.describe(l, at, amount, &v)
	c.noteWrite(wrote, at, v.reset)
	return v
}

// describe fills in what follows from the state after the hit.
func (c *counter) describe(l *Limit, at, amount int64, v *verdict) {
	m, seen := methods[l.Kind], c.clone()
	m.adopt(l, seen, at)
	v.never = v.over && !l.canPass(amount)
	var retry time.Duration
	retry, v.reset = m.waits(l, seen, at, amount)
	if !v.over || l.tellsRest() { // what more would pass, whatever its distance
		v.remaining = int64(sort.Search(int(l.capacity()), func(n int) bool { return !m.fits(l, seen, at, int64(n)+1) }))
	}
	if v.over && !v.never {
		v.retry = retry
	}
}

// tellsRest reports whether a refused hit is told what is left: callers expect 0 of fixed
// windows.
func (l *Limit) tellsRest() bool { return l.Kind != Fixed }

// tried is a method whose waits are found by trying.
type tried interface {
	fits(l *Limit, c *counter, at, amount int64) bool
	distance(l *Limit, c *counter, at int64) bool
	// empty says that no hit matters any more to the next.
	empty(l *Limit, c *counter, at int64) bool
}

// byTrying finds how long it takes until amount passes if no other hit comes before, and
// until no hit matters any more.
func byTrying(m tried, l *Limit, c *counter, at, amount int64) (retry, reset time.Duration) {
	if l.canPass(amount) {
		retry = wait(at, func(then int64) bool { return m.fits(l, c, then, amount) && m.distance(l, c, then) })
	}
	return retry, wait(at, func(then int64) bool { return m.empty(l, c, then) })
}

// wait is the least time after now from which on ok holds.
func wait(now int64, ok func(then int64) bool) time.Duration {
	reach := int64(1)
	for !ok(now+reach) && reach < 1<<61 {
		reach *= 2
	}
	return time.Duration(sort.Search(int(reach), func(w int) bool { return ok(now + int64(w)) }))
}
