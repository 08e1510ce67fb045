package subjects

// A summary keeps the counters with most hits of one window, in fixed memory. It counts in cells, each for one counter
// at a time. A counter without a cell takes the cell with the fewest hits of its set: its hits are added there, and the
// cell becomes its own with the probability hits / (hits of the cell). So the expected count of each counter is its
// true one, and a counter with a share of the hits that is well above 1/cellCount keeps its cell.
//
// A summary also lists the counters with the highest counts, with their texts.
type summary struct {
	cells [cellCount]cell

	listed   int // how many counters the list has. They are the first elements of the arrays.
	lowest   int // the position of the lowest count, once the list is full.
	hashes   [listSize]uint64
	counts   [listSize]float64
	subjects [listSize][]byte // texts. Their memory is used again.
}

const (
	cellCount = 1024
	cellWays  = 8  // the number of cells of a set. The hash of a counter chooses its set.
	listSize  = 40 // how many counters of a window can be shown.
)

// cell counts the hits of the counter with a hash. The hash 0 marks an empty cell.
type cell struct {
	hash  uint64
	count float64
}

// add counts hits of the counter with a hash other than 0. fraction is random, at least 0 and less than 1. It returns
// the count of the counter, 0 if it has no cell.
func (s *summary) add(hash uint64, hits, fraction float64) (count float64) {
	set := s.set(hash)
	least := &set[0]
	for i := range set {
		c := &set[i]
		if c.hash == hash {
			c.count += hits
			return c.count
		}
		if c.count < least.count {
			least = c
		}
	}
	least.count += hits
	if fraction*least.count >= hits {
		return 0
	}
	least.hash = hash // An empty cell comes here, too, because its count is hits.
	return least.count
}

// set returns the cells that may count a hash.
func (s *summary) set(hash uint64) []cell {
	const sets = cellCount / cellWays
	return s.cells[hash%sets*cellWays:][:cellWays]
}

// rank enters the count of a counter in the list. It calls subject only if the counter is new there.
func (s *summary) rank(hash uint64, count float64, subject func() []byte) {
	if s.listed == listSize && count <= s.counts[s.lowest] {
		return
	}
	at := s.position(hash)
	switch {
	case at >= 0:
		s.counts[at] = count
	case s.listed < listSize:
		at = s.listed
		s.listed++
		s.enter(at, hash, count, subject())
	default:
		at = s.lowest
		s.enter(at, hash, count, subject())
	}
	if s.listed == listSize && (at == s.lowest || count < s.counts[s.lowest]) {
		s.findLowest()
	}
}

func (s *summary) enter(at int, hash uint64, count float64, subject []byte) {
	s.hashes[at], s.counts[at], s.subjects[at] = hash, count, append(s.subjects[at][:0], subject...)
}

func (s *summary) findLowest() {
	s.lowest = 0
	for i := range s.counts {
		if s.counts[i] < s.counts[s.lowest] {
			s.lowest = i
		}
	}
}

// clear forgets all counters, but keeps the memory of their texts.
func (s *summary) clear() {
	s.cells, s.listed, s.lowest = [cellCount]cell{}, 0, 0
}

// position returns where the list has a counter, -1 if it does not.
func (s *summary) position(hash uint64) int {
	for i := range s.listed {
		if s.hashes[i] == hash {
			return i
		}
	}
	return -1
}

// countOf returns the count of a counter, 0 if it is not known.
func (s *summary) countOf(hash uint64) float64 {
	if at := s.position(hash); at >= 0 {
		return s.counts[at]
	}
	for _, c := range s.set(hash) {
		if c.hash == hash {
			return c.count
		}
	}
	return 0
}

// window is a sliding window: a summary of the current period of the clock, and one of the period before it.
type window struct {
	current, previous *summary
	period            int64 // the number of the current period since 1970, 0 if it is not known yet.
}

// advance makes period the current one. It does nothing if the clock went back.
func (w *window) advance(period int64) {
	switch ahead := period - w.period; {
	case w.period == 0:
		w.period = period
		return
	case ahead <= 0:
		return
	case ahead == 1:
		w.previous, w.current = w.current, w.previous
	default:
		w.previous.clear()
	}
	w.current.clear()
	w.period = period
}

// forEach yields the listed counters. share is the part of the previous period that is still in the window, from 0 to
// 1: the hits of a counter are its hits in the current period, and this part of those in the previous one.
func (w *window) forEach(share float64, yield func(subject []byte, hits float64)) {
	c, p := w.current, w.previous
	for i := range c.listed {
		yield(c.subjects[i], c.counts[i]+share*p.countOf(c.hashes[i]))
	}
	for i := range p.listed {
		if c.position(p.hashes[i]) < 0 {
			yield(p.subjects[i], c.countOf(p.hashes[i])+share*p.counts[i])
		}
	}
}
