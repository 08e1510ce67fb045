package algorithm

import (
	"slices"
	"sort"
	"time"
)

// Log is the state of a sliding window: its hits, oldest first. The zero value is empty.
// A copy shares its memory, so only one of the two may be changed; see Clone.
type Log struct {
	marks []mark // the marks before head are forgotten
	head  int
	base  uint64 // the total of all hits before marks[head]
}

// mark is one hit, or several hits of one instant. Totals may wrap around; only their
// differences count.
type mark struct {
	at    int64  // nanoseconds since the Unix epoch; never before the previous mark
	total uint64 // of all hits up to and including this mark
}

// Clone returns a log with the same hits and memory of its own.
func (g *Log) Clone() Log { return Log{marks: slices.Clone(g.kept()), base: g.base} }

// Len returns how many marks are kept; hits of one instant share a mark.
func (g *Log) Len() int { return len(g.marks) - g.head }

// Cap returns for how many marks there is memory, 16 bytes each. It is at most 4 x Len + 8.
func (g *Log) Cap() int { return cap(g.marks) }

func (g *Log) kept() []mark { return g.marks[g.head:] }

// resize moves the marks to memory of their own, half as large again as they need.
func (g *Log) resize() {
	g.marks = append(make([]mark, 0, g.Len()*3/2+2), g.kept()...)
	g.head = 0
}

// commit makes g equal to d, which must be a draft of g as it is.
func (g *Log) commit(d *Draft) {
	g.head += d.dropped
	g.marks, g.base = g.marks[:g.head+len(d.marks)], d.base
	for _, m := range d.own[:d.owned] {
		switch {
		case len(g.marks) < cap(g.marks):
		case g.head > g.Len()/2: // so each mark is moved about twice in all
			g.marks, g.head = append(g.marks[:0], g.kept()...), 0
		default:
			g.resize()
		}
		g.marks = append(g.marks, m)
	}
	if cap(g.marks) > 4*g.Len()+8 { // after a flood
		g.resize()
	}
}

// Draft is a Log as it would be after some hits of one instant. It never writes to the
// log, and making one costs the same for a log of any length. The log must not change
// while the draft is in use. The zero value is a draft of an empty log.
type Draft struct {
	marks   []mark // of the log
	dropped int    // how many marks of the log are in front of marks
	base    uint64 // the total before the first mark
	// own are the newest marks, behind marks: at most one of the log's with another
	// total, and one of the instant of the hits.
	own   [2]mark
	owned int // length of own
}

// Draft returns a draft of g; nil is an empty log.
func (g *Log) Draft() Draft {
	if g == nil {
		return Draft{}
	}
	return Draft{marks: g.kept(), base: g.base}
}

func (d *Draft) size() int { return len(d.marks) + d.owned }

func (d *Draft) mark(i int) mark {
	if i < len(d.marks) {
		return d.marks[i]
	}
	return d.own[i-len(d.marks)]
}

// age returns how long before now the newest hit was; -1: there is none.
func (d *Draft) age(now int64) time.Duration {
	if n := d.size(); n > 0 {
		return time.Duration(now - d.mark(n-1).at)
	}
	return -1
}

// total returns the total of the newest mark.
func (d *Draft) total() uint64 { return d.before(d.size()) }

// before returns the total before mark i.
func (d *Draft) before(i int) uint64 {
	if i == 0 {
		return d.base
	}
	return d.mark(i - 1).total
}

// firstAfter returns the index of the first mark after the instant since.
func (d *Draft) firstAfter(since int64) int {
	n := d.size()
	if n == 0 || d.mark(0).at > since {
		return 0
	}
	return sort.Search(n, func(i int) bool { return d.mark(i).at > since })
}

// fits returns the index of the first mark, from first on, that at most room units follow.
func (d *Draft) fits(first int, room uint64) int {
	total := d.total()
	for range 2 { // most often it is one of these two
		if total-d.mark(first).total <= room {
			return first
		}
		first++
	}
	return first + sort.Search(d.size()-first, func(i int) bool { return total-d.mark(first+i).total <= room })
}

// put cuts the marks from i on off, and puts m behind the rest.
func (d *Draft) put(i int, m mark) {
	d.cut(i)
	d.own[d.owned] = m
	d.owned++
}

// cut removes the marks from i on.
func (d *Draft) cut(i int) {
	d.owned = max(0, i-len(d.marks))
	d.marks = d.marks[:min(i, len(d.marks))]
}

func (d *Draft) add(at int64, amount uint64) {
	n, total := d.size(), d.total()+amount
	if n > 0 && d.mark(n-1).at == at {
		n--
	}
	d.put(n, mark{at, total})
}

// remove takes amount from the newest marks.
func (d *Draft) remove(amount uint64) {
	total, n := d.total(), d.size()
	for n > 0 && total-d.before(n-1) <= amount {
		n--
	}
	if n == 0 {
		d.cut(0)
		return
	}
	d.put(n-1, mark{d.mark(n - 1).at, total - amount})
}

// trim forgets the marks before first, and those that matter to no hit because more
// than limit follows them.
func (d *Draft) trim(first int, limit uint64) {
	first = d.fits(first, limit)
	// One mark may be many hits of one instant, so its total is bounded, too.
	d.base = d.total() - min(d.total()-d.before(first), MaxCounted)
	n := min(first, len(d.marks))
	d.marks = d.marks[n:]
	d.dropped += n
	copy(d.own[:], d.own[first-n:])
	d.owned -= first - n
}
