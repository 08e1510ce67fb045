package algorithm

import (
	"sort"
	"time"
)

// Draft is a Log as it would be after some hits of one instant. It reads the marks of
// the log and never writes them, so making one costs the same however long the log is.
// The log must not change while the draft is in use. The zero value is a draft of an
// empty log.
type Draft struct {
	marks []mark // of the log; those that the hits took away are cut off
	base  uint64 // the total before the first
	// own are the newest marks: one of the log's with another total, and one of the
	// instant of the hits.
	own   [2]mark
	owned int // of own
}

// Draft returns a draft of g; nil is an empty log.
func (g *Log) Draft() Draft {
	if g == nil {
		return Draft{}
	}
	return Draft{marks: g.kept(), base: g.base}
}

// Take is TakeSliding on the draft, step by step: one function for both would make each
// log escape. at must be the same in all calls.
func (d *Draft) Take(l *Limit, at int64, op Op, amount uint64) Outcome {
	now := at
	if newest, ok := d.newest(); ok {
		now = max(at, newest)
	}
	first := d.live(now - int64(l.Period))
	s := SlidingState{Now: now, Used: d.total() - d.before(first), Newest: d.age(now)}
	v, take, give := s.judge(l, op, amount)
	switch {
	case take > 0:
		d.add(now, take)
		d.trim(d.live(now-int64(max(l.Period, l.MinInterval))), l.Max)
	case give > 0:
		d.give(give)
	}
	if v.Charged {
		first = d.live(now - int64(l.Period))
	}
	s.NewestAfter = d.age(now)
	s.Leaves = d.leaves(l, first, now, amount)
	s.OneLeaves = d.leaves(l, first, now, 1)
	s.settle(l, &v, amount)
	return v
}

func (d *Draft) age(now int64) time.Duration {
	if newest, ok := d.newest(); ok {
		return time.Duration(now - newest)
	}
	return -1
}

func (d *Draft) leaves(l *Limit, first int, now int64, amount uint64) time.Duration {
	total := d.total()
	if amount > l.Max || total-d.before(first) <= l.Max-amount {
		return 0
	}
	room := l.Max - amount
	last := first + sort.Search(d.size()-first, func(i int) bool { return total-d.mark(first+i).total <= room })
	return time.Duration(d.mark(last).at + int64(l.Period) - now)
}

func (d *Draft) size() int { return len(d.marks) + d.owned }

func (d *Draft) mark(i int) mark {
	if i < len(d.marks) {
		return d.marks[i]
	}
	return d.own[i-len(d.marks)]
}

func (d *Draft) newest() (at int64, ok bool) {
	if d.size() == 0 {
		return 0, false
	}
	return d.mark(d.size() - 1).at, true
}

func (d *Draft) total() uint64 { return d.before(d.size()) }

func (d *Draft) before(i int) uint64 {
	if i == 0 {
		return d.base
	}
	return d.mark(i - 1).total
}

func (d *Draft) live(since int64) int {
	return sort.Search(d.size(), func(i int) bool { return d.mark(i).at > since })
}

// cut takes the marks from n on away.
func (d *Draft) cut(n int) {
	d.owned = max(0, n-len(d.marks))
	d.marks = d.marks[:min(n, len(d.marks))]
}

func (d *Draft) add(at int64, amount uint64) {
	total := d.total() + amount
	if newest, ok := d.newest(); ok && newest == at {
		d.cut(d.size() - 1)
	}
	d.own[d.owned] = mark{at, total}
	d.owned++
}

func (d *Draft) give(amount uint64) {
	left, n := d.total()-amount, d.size()
	for n > 0 && d.before(n-1) >= left {
		n--
	}
	if n == 0 {
		d.cut(0)
		return
	}
	newest := d.mark(n - 1).at
	d.cut(n - 1)
	d.own[d.owned] = mark{newest, left}
	d.owned++
}

func (d *Draft) trim(first int, limit uint64) {
	total, last := d.total(), d.size()-1
	if first < last {
		first += sort.Search(last-first, func(i int) bool { return total-d.mark(first+i).total <= limit })
	}
	d.base = max(d.before(first), total-min(total, MaxCounted))
	if n := min(first, len(d.marks)); n > 0 {
		d.marks = d.marks[n:]
		first -= n
	}
	copy(d.own[:], d.own[first:])
	d.owned -= first
}
