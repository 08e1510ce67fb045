package algorithm

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// A holdRow is a row of the block of a HoldSet. A row of a hold has the two halves of its id, its time and its units.
// The time is when it was opened or became done. A hold that moves elsewhere leaves a gap: a row without an id, whose
// units are gapUnits.
type holdRow [4]uint64

const (
	rowTime      = 2 // the index of the time in a row.
	rowUnits     = 3 // the index of the units in a row.
	gapUnits     = math.MaxUint64
	holdRowBytes = 32 // the size of a row.
)

// id returns the id of a hold. It is zero for a gap.
func (r *holdRow) id() (id HoldID) {
	binary.LittleEndian.PutUint64(id[:], r[0])
	binary.LittleEndian.PutUint64(id[8:], r[1])
	return id
}

func (id *HoldID) halves() (low, high uint64) {
	return binary.LittleEndian.Uint64(id[:]), binary.LittleEndian.Uint64(id[8:])
}

// holdRing is a ring of rows: forgotten holds, and then holds and gaps, the oldest first. A position counts the rows
// that were used before, so a hold keeps its position until gaps are closed. The counts may wrap around.
type holdRing struct {
	base   uint32 // the index of the ring in the block.
	size   uint32 // the number of rows: 0 or a power of two.
	start  uint32 // the position of the first forgotten hold, which the index still has.
	first  uint32 // the position of the oldest hold. It is end if there is none.
	end    uint32 // the position of the next hold.
	count  uint32 // the number of holds.
	oldest int64  // the time of the oldest hold. It has no meaning if there is none.
}

const (
	minRingSize    = 2  // the size of the smallest ring.
	maxTightSize   = 8  // the size up to which a ring does not shrink.
	maxLinearRows  = 8  // the number of holds up to which a set needs no index.
	forgottenBatch = 16 // how many forgotten holds are removed from the index at a time. That is cheaper than one by one.
)

func (r *holdRing) isFull() bool { return r.end-r.start == r.size }

// rowIndex returns the index in the block of a position.
func (r *holdRing) rowIndex(position uint32) uint32 { return r.base + position&(r.size-1) }

// smallerSize returns half the size if few holds are left, and else the size.
func (r *holdRing) smallerSize() uint32 {
	if r.size > maxTightSize && r.count < r.size/4 {
		return r.size / 2
	}
	return r.size
}

// ringSize returns the size of a ring for so many holds.
func ringSize(holds uint32) uint32 {
	return 1 << bits.Len32(max(holds, minRingSize)-1)
}

// append adds a hold to the end of r, which is not full. p is what find returned for id.
func (s *HoldSet) append(r *holdRing, p place, id HoldID, since int64, units uint64) {
	low, high := id.halves()
	i := r.rowIndex(r.end)
	s.block[i] = holdRow{low, high, uint64(since), units}
	if index := s.index(); len(index) > 0 && low|high != 0 {
		index.setItem(p.item, newItem(p.hash, i))
	}
	if r.count == 0 {
		r.oldest = since
	}
	r.end++
	r.count++
}

// leaveGap removes the hold at p from its ring. Its item in the index stays.
func (s *HoldSet) leaveGap(p place) {
	r, row := &s.opened, &s.block[p.row-1]
	if s.isDone(p) {
		r = &s.done
	} else {
		s.units -= row[rowUnits]
	}
	*row = holdRow{0, 0, 0, gapUnits}
	r.count--
	if p.row-1 == r.rowIndex(r.first) {
		s.skipGaps(r)
	}
	for r.end != r.first && s.block[r.rowIndex(r.end-1)][rowUnits] == gapUnits {
		r.end-- // The last row always has a hold.
	}
}

// forgetOldest removes the oldest hold of r. Its item in the index is removed later.
func (s *HoldSet) forgetOldest(r *holdRing) {
	if r == &s.opened {
		s.units -= s.block[r.rowIndex(r.first)][rowUnits]
	}
	r.count--
	r.first++
	s.skipGaps(r)
}

// skipGaps moves r.first to the oldest hold.
func (s *HoldSet) skipGaps(r *holdRing) {
	before := r.first
	for r.first != r.end {
		if row := &s.block[r.rowIndex(r.first)]; row[rowUnits] != gapUnits {
			r.oldest = int64(row[rowTime])
			break
		}
		r.first++
	}
	if r.start == before {
		r.start = r.first // No hold was forgotten.
	}
}

// removeForgotten removes the forgotten holds of r from the index.
func (s *HoldSet) removeForgotten(r *holdRing) {
	index := s.index()
	for ; r.start != r.first; r.start++ {
		i := r.rowIndex(r.start)
		if row := &s.block[i]; len(index) > 0 && row[0]|row[1] != 0 {
			index.removeItem(s.itemOf(i))
		}
	}
}

// makeRoom makes room for one more hold in r, which is full. It closes gaps if an eighth of the rows or more are gaps,
// so that a hold is moved at most seven times for each gap.
func (s *HoldSet) makeRoom(r *holdRing) {
	s.removeForgotten(r)
	switch {
	case !r.isFull():
	case r.count < r.size && r.count <= r.size/8*7:
		s.closeGaps(r)
	case r == &s.opened:
		s.resize(ringSize(2*r.size), max(s.done.size, minRingSize))
	default:
		s.resize(max(s.opened.size, minRingSize), ringSize(2*r.size))
	}
}

// closeGaps moves the holds of r together. It has no forgotten holds.
func (s *HoldSet) closeGaps(r *holdRing) {
	index, to := s.index(), r.first
	for from := r.first; from != r.end; from++ {
		row := s.block[r.rowIndex(from)]
		if row[rowUnits] == gapUnits {
			continue
		}
		if i := r.rowIndex(to); from != to {
			if len(index) > 0 && row[0]|row[1] != 0 {
				item := s.itemOf(r.rowIndex(from))
				index.setItem(item, newItem(index.item(item)>>itemRowBits, i))
			}
			s.block[i] = row
		}
		to++
	}
	r.end = to
}

// resize moves all holds to a new block, whose rings have these sizes.
func (s *HoldSet) resize(opened, done uint32) {
	old := *s
	s.allocate(opened, done)
	for _, rings := range [...][2]*holdRing{{&old.opened, &s.opened}, {&old.done, &s.done}} {
		from, to := rings[0], rings[1]
		for position := from.first; position != from.end; position++ {
			if row := &old.block[from.rowIndex(position)]; row[rowUnits] != gapUnits {
				id := row.id()
				s.append(to, s.find(id), id, int64(row[rowTime]), row[rowUnits])
			}
		}
	}
}

// allocate gives s a new block without holds, whose rings have these sizes.
func (s *HoldSet) allocate(opened, done uint32) {
	rows := opened + done
	if rows > maxLinearRows {
		rows += 1 << bits.Len32(rows*4/3) / itemsInRow
	}
	s.block = make([]holdRow, rows)
	s.opened, s.done = holdRing{size: opened}, holdRing{base: opened, size: done}
}
