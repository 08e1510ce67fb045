package algorithm

import (
	"math"
	"sort"
	"time"
)

// Log is what is kept of a sliding window: when its hits were. The zero value
// has none.
type Log struct {
	marks []mark // oldest first
	base  uint64 // the total before the first
}

// mark is a hit, or several at one instant.
type mark struct {
	at    int64  // nanoseconds since the Unix epoch; never less than before it
	total uint64 // of all hits up to this one
}

// Len is how many hits are kept.
func (g *Log) Len() int { return len(g.marks) }

// Cap is for how many there is memory.
func (g *Log) Cap() int { return cap(g.marks) }

// total is that of the newest.
func (g *Log) total() uint64 {
	if n := len(g.marks); n > 0 {
		return g.marks[n-1].total
	}
	return g.base
}

// before is the total before mark i.
func (g *Log) before(i int) uint64 {
	if i == 0 {
		return g.base
	}
	return g.marks[i-1].total
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
// No more is kept than matters: Max+1 units, the newest ones. Source: ClassDojo's
// rolling-rate-limiter, README.
func TakeSliding(l *Limit, g *Log, at int64, op Op, amount uint64) Verdict {
	now := at
	if n := len(g.marks); n > 0 {
		now = max(at, g.marks[n-1].at)
	}
	first := g.live(now - int64(l.Period))
	used := g.total() - g.before(first)
	s := SlidingState{Now: now, Used: used, Newest: g.newest()}
	v, take, give := s.judge(l, op, amount)
	switch {
	case take > 0:
		g.add(now, take)
		g.trim(first, l.Max)
	case give > 0:
		g.give(give)
	}
	if v.Charged {
		first = g.live(now - int64(l.Period))
	}
	s.NewestAfter = g.newest()
	s.Leaves = g.leaves(first, l.Max, amount)
	s.OneLeaves = g.leaves(first, l.Max, 1)
	s.settle(l, &v, amount)
	return v
}

// newest is when the newest hit was; 0: there is none.
func (g *Log) newest() int64 {
	if n := len(g.marks); n > 0 {
		return g.marks[n-1].at
	}
	return 0
}

// live is the index of the first mark after the instant since.
func (g *Log) live(since int64) int {
	if len(g.marks) == 0 || g.marks[0].at > since {
		return 0
	}
	return sort.Search(len(g.marks), func(i int) bool { return g.marks[i].at > since })
}

// leaves is when enough of the marks from first on have left for amount to
// pass: the instant of the last one that has to; 0 if none has to.
func (g *Log) leaves(first int, limit, amount uint64) int64 {
	if amount > limit || g.total()-g.before(first) <= limit-amount {
		return 0
	}
	room := limit - amount
	i := first + sort.Search(len(g.marks)-first, func(i int) bool { return g.total()-g.marks[first+i].total <= room })
	return g.marks[i].at
}

func (g *Log) add(at int64, amount uint64) {
	total := g.total() + amount
	if n := len(g.marks); n > 0 && g.marks[n-1].at == at {
		g.marks[n-1].total = total
		return
	}
	g.marks = append(g.marks, mark{at, total})
}

// give takes amount from the newest marks.
func (g *Log) give(amount uint64) {
	left := g.total() - amount
	n := len(g.marks)
	for n > 0 && g.before(n-1) >= left {
		n--
	}
	g.marks = g.marks[:n]
	if n > 0 {
		g.marks[n-1].total = left
	}
}

// trim forgets the marks before first, and those that matter to no hit, whatever
// its amount: what came after them is above the limit already.
func (g *Log) trim(first int, limit uint64) {
	for first < len(g.marks)-1 && g.total()-g.marks[first].total > limit {
		first++
	}
	if first == 0 {
		return
	}
	g.base = g.before(first)
	g.marks = g.marks[first:]
	if g.base > math.MaxInt64 {
		for i := range g.marks {
			g.marks[i].total -= g.base
		}
		g.base = 0
	}
}

// SlidingState is what the verdict on a hit on a sliding window depends on. A
// store that keeps the hits elsewhere fills it in. All instants are nanoseconds
// since the Unix epoch, 0 for none.
type SlidingState struct {
	Now  int64  // the clock, or the newest hit if that is later
	Used uint64 // in the window, before this hit
	// Newest is the newest hit before this one, NewestAfter after it.
	Newest, NewestAfter int64
	// Leaves is when the last of those hits was that have to leave the window
	// for the amount to pass, OneLeaves for one unit; 0: none has to. Both are
	// as after this hit.
	Leaves, OneLeaves int64
}

// Verdict is that of TakeSliding.
func (s *SlidingState) Verdict(l *Limit, op Op, amount uint64) Verdict {
	v, _, _ := s.judge(l, op, amount)
	s.settle(l, &v, amount)
	return v
}

// judge decides, and says how much is added or taken away.
func (s *SlidingState) judge(l *Limit, op Op, amount uint64) (v Verdict, take, give uint64) {
	v.Before = s.Used
	switch op {
	case Refund:
		give = min(s.Used, amount)
	case Force:
		take = amount
	case Charge, Look:
		v.Interval = s.Newest != 0 && s.Now-s.Newest < int64(l.MinInterval)
		v.Over = v.Interval || addSaturating(s.Used, amount) > l.Max
		if op == Charge && (!v.Over || l.CountBlocked) {
			take = amount
		}
	}
	v.Charged = take > 0 || give > 0
	v.After = s.Used + take - give
	return v, take, give
}

// settle completes v with what the state after the hit says.
func (s *SlidingState) settle(l *Limit, v *Verdict, amount uint64) {
	distance := int64(0)
	if s.NewestAfter != 0 {
		keep := int64(max(l.Period, l.MinInterval))
		v.ResetAfter = time.Duration(max(s.NewestAfter+keep-s.Now, 0))
		distance = max(s.NewestAfter+int64(l.MinInterval)-s.Now, 0)
	}
	wait := func(leaves int64) int64 {
		if leaves == 0 {
			return distance
		}
		return max(leaves+int64(l.Period)-s.Now, distance)
	}
	switch {
	case v.Over && amount > l.Max:
		v.RetryAfter = Never
	case v.Over:
		v.RetryAfter = time.Duration(wait(s.Leaves))
	case v.After < l.Max:
		v.Remaining = l.Max - v.After
	}
	if l.CountBlocked {
		return // a refusal changes the next, so none may be left out
	}
	if l.Max == 0 {
		v.FullUntil = time.Unix(0, math.MaxInt64)
	} else if full := wait(s.OneLeaves); full > 0 {
		v.FullUntil = time.Unix(0, s.Now+full)
	}
}
