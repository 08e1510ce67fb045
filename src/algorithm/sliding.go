package algorithm

import (
	"math"
	"sort"
	"time"
)

// Log is what is kept of a sliding window: when its hits were. The zero value
// has none. A copy shares its memory, so only one of the two may go on; see Clone.
type Log struct {
	marks []mark // from head on, oldest first; what is before head is forgotten
	head  int
	base  uint64 // the total before the first that is kept
}

// mark is a hit, or several at one instant.
type mark struct {
	at    int64  // nanoseconds since the Unix epoch; never less than before it
	total uint64 // of all hits up to this one
}

// Clone is a log of its own with the same hits.
func (g *Log) Clone() Log {
	return Log{marks: append([]mark(nil), g.kept()...), base: g.base}
}

// Len is how many marks are kept; hits at one instant share one.
func (g *Log) Len() int { return len(g.marks) - g.head }

// Cap is for how many there is memory, 16 bytes each: 4 x Len + 8 at most.
func (g *Log) Cap() int { return cap(g.marks) }

// kept are the marks that count.
func (g *Log) kept() []mark { return g.marks[g.head:] }

// newest is when the newest hit was.
func (g *Log) newest() (at int64, ok bool) {
	if g.Len() == 0 {
		return 0, false
	}
	return g.marks[len(g.marks)-1].at, true
}

// age is how long ago the newest hit was at the instant now, which is not before
// it; negative: there is none.
func (g *Log) age(now int64) time.Duration {
	if newest, ok := g.newest(); ok {
		return time.Duration(now - newest)
	}
	return -1
}

// total is that of the newest.
func (g *Log) total() uint64 {
	if g.Len() == 0 {
		return g.base
	}
	return g.marks[len(g.marks)-1].total
}

// before is the total before mark i.
func (g *Log) before(i int) uint64 {
	if i == 0 {
		return g.base
	}
	return g.kept()[i-1].total
}

// TakeSliding applies op to g, which it changes only if something is charged. at
// and amount are as for TakeFixed.
//
// Exactly Max units pass in any stretch as long as the period, which is open at
// its beginning: a hit one period old does not count any more. A hit of several
// units is one as far as MinInterval is concerned. With CountBlocked refused
// hits count as well: who keeps trying faster than the limit, or than
// MinInterval, is not let in again.
//
// A worked example, Max 2 in 10 s: hits at 0 s and 1 s pass; one at 2 s is over
// and has to wait 8 s, with CountBlocked 9 s.
//
// A clock that steps back is taken to stand still at the newest hit.
//
// No more is kept than matters to a charge: Max+1 units, the newest ones. More
// than that are neither in the next Before nor can they be given back.
//
// Source: ClassDojo's rolling-rate-limiter, README.
func TakeSliding(l *Limit, g *Log, at int64, op Op, amount uint64) Outcome {
	now := at
	if newest, ok := g.newest(); ok {
		now = max(at, newest)
	}
	first := g.live(now - int64(l.Period))
	used := g.total() - g.before(first)
	s := SlidingState{Now: now, Used: used, Newest: g.age(now)}
	v, take, give := s.judge(l, op, amount)
	switch {
	case take > 0:
		g.add(now, take)
		g.trim(g.live(now-int64(max(l.Period, l.MinInterval))), l.Max)
	case give > 0:
		g.give(give)
	}
	if v.Charged {
		first = g.live(now - int64(l.Period))
	}
	s.NewestAfter = g.age(now)
	s.Leaves = g.leaves(l, first, now, amount)
	s.OneLeaves = g.leaves(l, first, now, 1)
	s.settle(l, &v, amount)
	return v
}

// live is the index of the first mark after the instant since.
func (g *Log) live(since int64) int {
	marks := g.kept()
	if len(marks) == 0 || marks[0].at > since {
		return 0
	}
	return sort.Search(len(marks), func(i int) bool { return marks[i].at > since })
}

// leaves is how long it takes until enough of the marks from first on have left
// for amount to pass; 0 if none has to.
func (g *Log) leaves(l *Limit, first int, now int64, amount uint64) time.Duration {
	total := g.total()
	if amount > l.Max || total-g.before(first) <= l.Max-amount {
		return 0
	}
	room, marks := l.Max-amount, g.kept()[first:]
	last := sort.Search(len(marks), func(i int) bool { return total-marks[i].total <= room })
	return time.Duration(marks[last].at + int64(l.Period) - now)
}

func (g *Log) add(at int64, amount uint64) {
	total := g.total() + amount
	if newest, ok := g.newest(); ok && newest == at {
		g.marks[len(g.marks)-1].total = total
		return
	}
	if len(g.marks) == cap(g.marks) {
		g.makeRoom()
	}
	g.marks = append(g.marks, mark{at, total})
}

// makeRoom moves the marks to the front if a third of the memory is free there,
// else to half as much again. So each is moved about twice, however many there
// are, and nothing is allocated while as many come as are forgotten.
func (g *Log) makeRoom() {
	if n := g.Len(); g.head > n/2 {
		g.marks = append(g.marks[:0], g.kept()...)
		g.head = 0
	} else {
		g.resize(n + n/2 + 2)
	}
}

func (g *Log) resize(size int) {
	g.marks = append(make([]mark, 0, size), g.kept()...)
	g.head = 0
}

// give takes amount from the newest marks.
func (g *Log) give(amount uint64) {
	left := g.total() - amount
	n := g.Len()
	for n > 0 && g.before(n-1) >= left {
		n--
	}
	g.marks = g.marks[:g.head+n]
	if n > 0 {
		g.marks[len(g.marks)-1].total = left
	}
	g.shrink()
}

// trim forgets the marks before first, and those that matter to no hit, whatever
// its amount: what came after them is above the limit already.
func (g *Log) trim(first int, limit uint64) {
	marks, total := g.kept(), g.total()
	for first < len(marks)-1 && total-marks[first].total > limit {
		first++
	}
	g.base = g.before(first)
	g.head += first
	// The oldest may be many hits at one instant: it, too, stops growing.
	g.base = max(g.base, total-min(total, MaxCounted))
	if g.base > math.MaxInt64/2 {
		for i := range g.kept() {
			g.kept()[i].total -= g.base
		}
		g.base = 0
	}
	g.shrink()
}

// shrink gives memory back after a flood: a log that is four times as large as
// its marks need.
func (g *Log) shrink() {
	if n := g.Len(); cap(g.marks) > 4*n+8 {
		g.resize(n + n/2 + 2)
	}
}

// SlidingState is what the verdict on a hit on a sliding window depends on. A
// store that keeps the hits elsewhere fills it in.
type SlidingState struct {
	Now  int64  // the clock, or the newest hit if that is later
	Used uint64 // in the window, before this hit
	// Newest is how long ago the newest hit was, before this one is recorded, and
	// NewestAfter after it; negative: there is none.
	Newest, NewestAfter time.Duration
	// Leaves is how long it takes until enough hits have left the window for the
	// amount to pass, and OneLeaves for one unit, when this hit is recorded; 0: none
	// has to.
	Leaves, OneLeaves time.Duration
}

// Outcome is that of TakeSliding.
func (s *SlidingState) Outcome(l *Limit, op Op, amount uint64) Outcome {
	v, _, _ := s.judge(l, op, amount)
	s.settle(l, &v, amount)
	return v
}

// judge decides, and says how much is added or taken away.
func (s *SlidingState) judge(l *Limit, op Op, amount uint64) (v Outcome, take, give uint64) {
	v.Before = s.Used
	switch op {
	case Refund:
		give = min(s.Used, amount)
	case Force:
		take = amount
	case Charge, Look:
		v.Interval = s.Newest >= 0 && s.Newest < l.MinInterval
		v.Over = v.Interval || s.Used+amount > l.Max
		if op == Charge && (!v.Over || l.CountBlocked) {
			take = amount
		}
	}
	v.Charged = take > 0 || give > 0
	v.After = min(s.Used+take, MaxCounted) - give
	return v, take, give
}

// settle completes v with what the state after the hit says.
func (s *SlidingState) settle(l *Limit, v *Outcome, amount uint64) {
	distance := time.Duration(0)
	if s.NewestAfter >= 0 {
		v.ResetAfter = max(l.Period, l.MinInterval, s.NewestAfter) - s.NewestAfter
		distance = max(l.MinInterval, s.NewestAfter) - s.NewestAfter
	}
	switch {
	case v.Over && amount > l.Max:
		v.RetryAfter = Never
	case v.Over:
		v.RetryAfter = max(s.Leaves, distance)
	}
	if v.After < l.Max {
		v.Remaining = l.Max - v.After
	}
	if l.CountBlocked {
		return // a refusal changes the next, so none may be left out
	}
	if l.Max == 0 {
		v.FullUntil = time.Unix(0, math.MaxInt64)
	} else if full := max(s.OneLeaves, distance); full > 0 {
		v.FullUntil = time.Unix(0, s.Now+int64(full))
	}
}
