package algorithm

import (
	"slices"
	"sort"
	"time"
)

// Log is the state of a sliding window: its hits, oldest first. The zero value is empty. A
// copy shares its memory, so only one of the two may be changed; see Clone.
type Log struct {
	marks []mark // only marks[head:] are in use
	head  int
	base  uint64 // the total before marks[head]
}

// mark is one hit, or several hits of one instant. The amount of a mark is its total less the
// total before it, so that any stretch of marks is summed in one step. Totals may wrap around.
type mark struct {
	at    int64  // nanoseconds since the Unix epoch; not before the previous mark
	total uint64 // of the amounts up to and including this mark
}

// Clone returns a copy of g that shares no memory with it.
func (g *Log) Clone() Log { return Log{marks: slices.Clone(g.used()), base: g.base} }

// Len returns the number of marks. Hits of one instant share a mark.
func (g *Log) Len() int { return len(g.marks) - g.head }

// Cap returns how many marks the log has memory for, 16 bytes each. It is at most 4 x Len + 8.
func (g *Log) Cap() int { return cap(g.marks) }

func (g *Log) used() []mark { return g.marks[g.head:] }

// resize moves the marks to new memory for half as many again.
func (g *Log) resize() {
	g.marks = append(make([]mark, 0, g.Len()*3/2+2), g.used()...)
	g.head = 0
}

// commit makes g equal to d, a draft of g. g must not have changed since Draft.
func (g *Log) commit(d *Draft) {
	g.head += d.dropped
	g.marks, g.base = g.marks[:g.head+len(d.marks)], d.base
	for _, m := range d.added[:d.adds] {
		switch {
		case len(g.marks) < cap(g.marks):
		case g.head > g.Len()/2: // rarely enough that each mark moves about twice in all
			g.marks, g.head = append(g.marks[:0], g.used()...), 0
		default:
			g.resize()
		}
		g.marks = append(g.marks, m)
	}
	if cap(g.marks) > 4*g.Len()+8 { // most marks were removed
		g.resize()
	}
}

// Draft is a Log as it would be after some hits of one instant. It shares the memory of the
// log but never writes to it, so it is cheap to make for a log of any length. The log must not
// change while the draft is in use. The zero value is a draft of an empty log.
type Draft struct {
	marks   []mark // the marks of the log that the draft still has
	dropped int    // how many marks of the log before these it removed
	base    uint64 // the total before the first mark
	// added[:adds] are the newest marks, behind marks. Two are enough: one for the instant
	// of the hits, and one that replaces a mark of which a refund took a part.
	added [2]mark
	adds  int
}

// Draft returns a draft of g; nil is an empty log.
func (g *Log) Draft() Draft {
	if g == nil {
		return Draft{}
	}
	return Draft{marks: g.used(), base: g.base}
}

func (d *Draft) size() int { return len(d.marks) + d.adds }

func (d *Draft) mark(i int) mark {
	if i < len(d.marks) {
		return d.marks[i]
	}
	return d.added[i-len(d.marks)]
}

// age returns the time from the newest mark to now, or -1 if there is no mark.
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

// firstFollowedBy returns the index of the first mark, from first on, behind which the amounts
// sum to at most room.
func (d *Draft) firstFollowedBy(first int, room uint64) int {
	total := d.total()
	for range 2 { // usually it is one of the first two
		if total-d.mark(first).total <= room {
			return first
		}
		first++
	}
	return first + sort.Search(d.size()-first, func(i int) bool { return total-d.mark(first+i).total <= room })
}

// cut removes the marks from i on.
func (d *Draft) cut(i int) {
	d.adds = max(0, i-len(d.marks))
	d.marks = d.marks[:min(i, len(d.marks))]
}

// replace removes the marks from i on and appends m.
func (d *Draft) replace(i int, m mark) {
	d.cut(i)
	d.added[d.adds] = m
	d.adds++
}

func (d *Draft) add(at int64, amount uint64) {
	n, total := d.size(), d.total()+amount
	if n > 0 && d.mark(n-1).at == at {
		n--
	}
	d.replace(n, mark{at, total})
}

// remove subtracts amount from the newest marks.
func (d *Draft) remove(amount uint64) {
	total, n := d.total(), d.size()
	for n > 0 && total-d.before(n-1) <= amount {
		n--
	}
	d.cut(n)
	if n > 0 {
		d.replace(n-1, mark{d.mark(n - 1).at, total - amount})
	}
}

// trim removes the marks before first, and those behind which the amounts exceed limit: they
// decide no hit.
func (d *Draft) trim(first int, limit uint64) {
	first = d.firstFollowedBy(first, limit)
	// One mark may be many hits of one instant, so the sum of all amounts is capped, too.
	d.base = d.total() - min(d.total()-d.before(first), MaxScriptCount)
	n := min(first, len(d.marks))
	d.marks = d.marks[n:]
	d.dropped += n
	copy(d.added[:], d.added[first-n:])
	d.adds -= first - n
}
