package model

import (
	"math/big"
	"slices"
	"time"
)

// bounds are where the window around at begins and ends: windows side by side since the
// Unix epoch, or those of a calendar.
func bounds(l *Limit, at int64) (from, to int64) {
	if l.Calendar != (Calendar{}) {
		return l.Calendar.bounds(at)
	}
	from = at - (at+Start.UnixNano())%int64(l.Period) // no instant of a script is before 1970
	return from, from + int64(l.Period)
}

// edge is where the window around at begins.
func edge(l *Limit, at int64) int64 {
	from, _ := bounds(l, at)
	return from
}

// sum is what hits add up to that counts says count.
func (c *counter) sum(counts func(h *hit) bool) (n int64) {
	for i := range c.hits {
		if counts(&c.hits[i]) {
			n += c.hits[i].amount
		}
	}
	return n
}

// takeBack takes amount from the newest hits that counts says count, and returns
// how much there was.
func (c *counter) takeBack(amount int64, counts func(h *hit) bool) (given int64) {
	for i := len(c.hits) - 1; i >= 0 && given < amount; i-- {
		if h := &c.hits[i]; counts(h) {
			n := min(h.amount, amount-given)
			h.amount -= n
			given += n
		}
	}
	c.keep(func(h *hit) bool { return h.amount > 0 })
	return given
}

func (c *counter) keep(counts func(h *hit) bool) {
	kept := c.hits[:0]
	for i := range c.hits {
		if counts(&c.hits[i]) {
			kept = append(kept, c.hits[i])
		}
	}
	c.hits = kept
}

// plain is what most kinds have in common: the clock is the clock, and neither
// distances nor refused hits matter.
type plain struct{}

func (plain) distance(_ *Limit, _ *counter, _ int64) bool { return true }
func (plain) adopt(_ *Limit, _ *counter, _ int64) bool    { return false }

// fixed counts the hits of the window that the clock shows. Refused hits count, too, until the limit is raised, unless
// the store keeps only a count.
type fixed struct{ plain }

func inWindow(l *Limit, at int64) func(h *hit) bool {
	from, to := bounds(l, at)
	return func(h *hit) bool { return from <= h.at && h.at < to }
}

// counted returns what says which hits count under l.
func (fixed) counted(l *Limit, c *counter, at int64) func(h *hit) bool {
	in := inWindow(l, at)
	raised := !slices.ContainsFunc(c.hits, func(h hit) bool { return in(&h) && h.refused && h.under >= l.Max })
	return func(h *hit) bool { return in(h) && (!raised || !h.refused) }
}

// forget removes the hits of the window that count no more.
func (fixed) forget(l *Limit, c *counter, at int64, counted func(h *hit) bool) {
	in := inWindow(l, at)
	c.keep(func(h *hit) bool { return !in(h) || counted(h) })
}

func (f fixed) fits(l *Limit, c *counter, at, amount int64) bool {
	return c.sum(f.counted(l, c, at))+amount <= l.Max
}

// waits are both until the window ends, whether anybody was there or not: what a
// clock that stepped back has left in the next is not looked at.
func (fixed) waits(l *Limit, _ *counter, at, _ int64) (retry, reset time.Duration) {
	_, to := bounds(l, at)
	left := time.Duration(to - at)
	return left, left
}

// record: the last refusal says what is a raised limit.
func (f fixed) record(l *Limit, c *counter, at, amount int64) {
	refused := l.Counting && !l.UpstreamCounts && (l.Max == 0 || !f.fits(l, c, at, amount))
	f.forget(l, c, at, f.counted(l, c, at))
	if in := inWindow(l, at); refused {
		for i := range c.hits {
			if in(&c.hits[i]) {
				c.hits[i].under = l.Max
			}
		}
	}
	c.hits = append(c.hits, hit{at: at, amount: amount, refused: refused, under: l.Max})
}

// give takes back what was admitted first.
func (f fixed) give(l *Limit, c *counter, at, amount int64) int64 {
	counted := f.counted(l, c, at)
	given := c.takeBack(amount, func(h *hit) bool { return counted(h) && !h.refused })
	given += c.takeBack(amount-given, counted)
	if given > 0 {
		f.forget(l, c, at, counted)
	}
	return given
}

// firstHit counts the hits of the window that began with the first one.
type firstHit struct{ plain }

func (firstHit) running(l *Limit, c *counter, at int64) bool {
	return c.open && at < c.begun+int64(l.Period)
}

func (f firstHit) fits(l *Limit, c *counter, at, amount int64) bool {
	used := int64(0)
	if f.running(l, c, at) {
		used = c.sum(all)
	}
	return used+amount <= l.Max
}

func all(*hit) bool { return true }

func (f firstHit) empty(l *Limit, c *counter, at int64) bool {
	return !f.running(l, c, at) || c.sum(all) == 0
}

func (f firstHit) waits(l *Limit, c *counter, at, amount int64) (retry, reset time.Duration) {
	return byTrying(f, l, c, at, amount)
}

// adopt: a window that started in the future, by a clock that stepped back, starts
// now.
func (firstHit) adopt(_ *Limit, c *counter, at int64) bool {
	ahead := c.begun > at
	c.begun = min(c.begun, at)
	return ahead
}

func (f firstHit) record(l *Limit, c *counter, at, amount int64) {
	if !f.running(l, c, at) {
		c.hits, c.begun, c.open = nil, at, true
	}
	f.adopt(l, c, at)
	c.hits = append(c.hits, hit{at: at, amount: amount})
}

func (f firstHit) give(l *Limit, c *counter, at, amount int64) int64 {
	if !f.running(l, c, at) {
		return 0
	}
	given := c.takeBack(amount, all)
	if given > 0 {
		f.adopt(l, c, at)
	}
	return given
}

// sliding counts the hits of the period that ends now. Those that are later than now, because
// the clock stepped back, are of now.
type sliding struct{}

func (sliding) recent(l *Limit, at int64) func(h *hit) bool {
	return func(h *hit) bool { return at-h.at < int64(l.Period) }
}

func (s sliding) fits(l *Limit, c *counter, at, amount int64) bool {
	return c.sum(s.recent(l, at))+amount <= l.Max
}

func (sliding) distance(l *Limit, c *counter, at int64) bool {
	n := len(c.hits)
	return n == 0 || at-c.hits[n-1].at >= int64(l.Interval)
}

// empty: also the distance to the newest is a thing of the past.
func (s sliding) empty(l *Limit, c *counter, at int64) bool {
	return c.sum(s.recent(l, at)) == 0 && s.distance(l, c, at)
}

func (s sliding) waits(l *Limit, c *counter, at, amount int64) (retry, reset time.Duration) {
	return byTrying(s, l, c, at, amount)
}

// record also forgets hits, as is documented: those before the newest ones that
// exceed the limit by themselves, and those that have left.
func (s sliding) record(l *Limit, c *counter, at, amount int64) {
	s.adopt(l, c, at)
	c.hits = append(c.hits, hit{at: at, amount: amount})
	matters := max(l.Period, l.Interval)
	c.keep(func(h *hit) bool { return at-h.at < int64(matters) || h.at == at })
	for first := c.hits[0].at; first < at; first = c.hits[0].at {
		if c.sum(func(h *hit) bool { return h.at > first }) <= l.Max {
			return
		}
		c.keep(func(h *hit) bool { return h.at > first })
	}
}

func (s sliding) give(l *Limit, c *counter, at, amount int64) int64 {
	given := c.takeBack(amount, s.recent(l, at))
	if given > 0 {
		s.adopt(l, c, at)
	}
	return given
}

func (sliding) adopt(_ *Limit, c *counter, at int64) (ahead bool) {
	for i := range c.hits {
		ahead = ahead || c.hits[i].at > at
		c.hits[i].at = min(c.hits[i].at, at)
	}
	return ahead
}

// twoBuckets counts the hits of the window that the clock shows, and of those of
// the window before the share that a period ending now would still cover. If the clock
// stepped back behind the window that it counts in, all that counts is of the window that the clock shows.
type twoBuckets struct{ plain }

func (twoBuckets) counted(l *Limit, c *counter, from int64) int64 {
	return c.sum(func(h *hit) bool { return edge(l, h.at) == from })
}

func (b twoBuckets) adopt(l *Limit, c *counter, at int64) bool {
	if edge(l, at) >= c.begun || len(c.hits) == 0 {
		return false
	}
	b.forget(l, c)
	c.begun = edge(l, at)
	for i := range c.hits {
		c.hits[i].at = at
	}
	return true
}

// estimate is exact: no rounding.
func (b twoBuckets) estimate(l *Limit, c *counter, at int64) *big.Rat {
	from := edge(l, at)
	share := big.NewRat(from+int64(l.Period)-at, int64(l.Period))
	share.Mul(share, big.NewRat(b.counted(l, c, from-int64(l.Period)), 1))
	return share.Add(share, big.NewRat(b.counted(l, c, from), 1))
}

func (b twoBuckets) fits(l *Limit, c *counter, at, amount int64) bool {
	asked := b.estimate(l, c, at)
	return asked.Add(asked, big.NewRat(amount, 1)).Cmp(big.NewRat(l.Max, 1)) <= 0
}

func (b twoBuckets) empty(l *Limit, c *counter, at int64) bool {
	from := edge(l, at)
	return b.counted(l, c, from) == 0 && b.counted(l, c, from-int64(l.Period)) == 0
}

func (b twoBuckets) waits(l *Limit, c *counter, at, amount int64) (retry, reset time.Duration) {
	return byTrying(b, l, c, at, amount)
}

// record forgets the windows before the last one.
func (b twoBuckets) record(l *Limit, c *counter, at, amount int64) {
	b.adopt(l, c, at)
	c.begun = edge(l, at)
	c.hits = append(c.hits, hit{at: at, amount: amount})
	b.forget(l, c)
}

func (b twoBuckets) forget(l *Limit, c *counter) {
	c.keep(func(h *hit) bool { return edge(l, h.at) >= c.begun-int64(l.Period) })
}

func (b twoBuckets) give(l *Limit, c *counter, at, amount int64) int64 {
	seen := c.clone()
	b.adopt(l, seen, at)
	given := seen.takeBack(amount, inWindow(l, at))
	if given > 0 {
		*c = *seen
		c.begun = edge(l, at)
		b.forget(l, c)
	}
	return given
}

// bucket lets hits pass as long as in each stretch up to now no more has passed
// than it holds and got back meanwhile.
type bucket struct{}

// emission is the time in which one unit comes back, in whole nanoseconds.
func emission(l *Limit) *big.Int { return big.NewInt(int64(l.Period) / l.Max) }

func cost(l *Limit, amount int64) *big.Int {
	return new(big.Int).Mul(emission(l), big.NewInt(amount))
}

// longest is how much may be owed at most: the service goes no further than 100
// years.
var longest = new(big.Int).Mul(big.NewInt(100*365*24), big.NewInt(int64(time.Hour)))

// most is how much may be owed.
func (bucket) most(l *Limit) *big.Int {
	if l.Counting {
		return longest
	}
	return cost(l, l.Burst+1)
}

// raw is how much time is owed: of all stretches that end now the most that what
// was taken in one exceeds its length by.
func (bucket) raw(c *counter, at int64) *big.Int {
	most, sum := new(big.Int), new(big.Int)
	for i := len(c.hits) - 1; i >= 0; i-- {
		h := &c.hits[i]
		sum.Add(sum, h.cost)
		if excess := new(big.Int).Sub(sum, big.NewInt(at-h.at)); excess.Cmp(most) > 0 {
			most = excess
		}
	}
	return most
}

// owed is raw, but for what a clock that stepped back makes too much of.
func (b bucket) owed(l *Limit, c *counter, at int64) *big.Int {
	owed := b.raw(c, at)
	if most := b.most(l); owed.Cmp(most) > 0 {
		return most
	}
	return owed
}

// owe makes it that so much is owed.
func (b bucket) owe(l *Limit, c *counter, at int64, owed *big.Int) {
	if most := b.most(l); owed.Cmp(most) > 0 {
		owed = most
	}
	c.hits = nil
	if owed.Sign() > 0 {
		c.hits = []hit{{at: at, cost: owed}}
	}
}

func (b bucket) fits(l *Limit, c *counter, at, amount int64) bool {
	owed := b.owed(l, c, at)
	return new(big.Int).Add(owed, cost(l, amount)).Cmp(cost(l, l.Burst+1)) <= 0
}

func (bucket) distance(l *Limit, c *counter, at int64) bool {
	return l.Interval == 0 || !c.hasLast || at-min(c.last, at) >= int64(l.Interval)
}

func (b bucket) empty(l *Limit, c *counter, at int64) bool {
	return b.owed(l, c, at).Sign() == 0 && b.distance(l, c, at)
}

func (b bucket) waits(l *Limit, c *counter, at, amount int64) (retry, reset time.Duration) {
	return byTrying(b, l, c, at, amount)
}

func (b bucket) record(l *Limit, c *counter, at, amount int64) {
	owed := b.owed(l, c, at)
	if owed.Cmp(b.raw(c, at)) < 0 {
		b.owe(l, c, at, owed)
	}
	c.hits = append(c.hits, hit{at: at, amount: amount, cost: cost(l, amount)})
	if b.raw(c, at).Cmp(b.most(l)) > 0 {
		b.owe(l, c, at, b.most(l))
	}
	c.last, c.hasLast = at, l.Interval > 0
}

func (b bucket) give(l *Limit, c *counter, at, amount int64) int64 {
	owed := b.owed(l, c, at)
	if owed.Sign() == 0 {
		return 0
	}
	b.owe(l, c, at, owed)
	c.hits = append(c.hits, hit{at: at, amount: -amount, cost: new(big.Int).Neg(cost(l, amount))})
	if b.raw(c, at).Sign() == 0 {
		c.hits = nil
	}
	c.last = min(c.last, at)
	c.hasLast = c.hasLast && !b.distance(l, c, at)
	return amount
}

// adopt: the wait of a refused charge begins now, so what a clock that stepped
// back left too far ahead is pulled in.
func (b bucket) adopt(l *Limit, c *counter, at int64) bool {
	ahead := c.last > at
	if b.raw(c, at).Cmp(b.most(l)) > 0 {
		b.owe(l, c, at, b.most(l))
		ahead = true
	}
	c.last = min(c.last, at)
	return ahead
}
