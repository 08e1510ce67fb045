package algorithm

import (
	"math/bits"
	"math/rand/v2"
)

// holdIndex is the index of a HoldSet, a hash table with linear probing. An item is 0, or 1 + the index of the row of a
// hold in the block, below itemHashBits bits of the hash of its id. A search starts at the item that the hash says.
// Each number of a row has two items.
type holdIndex []holdRow

// 18 bits are enough for a row: the rings have at most 2^17 and 2^15 rows, as MaxOpenHolds and MaxDoneHolds are less
// than 7/8 of these.
const (
	itemRowBits  = 18
	itemHashBits = 32 - itemRowBits
	itemsInRow   = 8
)

func newItem(hash, row uint32) uint32 { return hash<<itemRowBits | (row + 1) }

// rowOfItem returns 1 + the index of the row.
func rowOfItem(item uint32) uint32 { return item & (1<<itemRowBits - 1) }

// mask is the number of items less 1.
func (x holdIndex) mask() uint32 { return uint32(len(x))*itemsInRow - 1 }

func (x holdIndex) item(i uint32) uint32 {
	return uint32(x[i/itemsInRow][i/2%4] >> (i % 2 * 32))
}

func (x holdIndex) setItem(i, item uint32) {
	number, shift := &x[i/itemsInRow][i/2%4], i%2*32
	*number = *number&^(0xffffffff<<shift) | uint64(item)<<shift
}

// removeItem empties item i, and moves items behind it back to where a search finds them.
func (x holdIndex) removeItem(i uint32) {
	mask := x.mask()
	hashMask := min(mask, 1<<itemHashBits-1) // All items are closer than 2^itemHashBits to where their search starts.
	for next := (i + 1) & mask; ; next = (next + 1) & mask {
		item := x.item(next)
		if item == 0 {
			break
		}
		if distance := (next - item>>itemRowBits) & hashMask; distance >= (next-i)&mask {
			x.setItem(i, item)
			i = next
		}
	}
	x.setItem(i, 0)
}

// index returns the index. It is empty if the set is so small that it has none.
func (s *HoldSet) index() holdIndex { return holdIndex(s.block[s.opened.size+s.done.size:]) }

// hashSeeds are random and secret, so callers cannot choose ids whose searches are long.
var hashSeeds = [2]uint64{rand.Uint64(), rand.Uint64()}

func hashOfID(low, high uint64) uint32 {
	a, b := bits.Mul64(low^hashSeeds[0], high^hashSeeds[1])
	return uint32(a ^ b)
}

// find returns the place of the hold id. Forgotten holds are not found.
func (s *HoldSet) find(id HoldID) (p place) {
	low, high := id.halves()
	index := s.index()
	switch {
	case low|high == 0:
		return place{}
	case len(index) == 0:
		return place{row: s.scan(&s.opened, low, high) | s.scan(&s.done, low, high)}
	}
	mask := index.mask()
	p.hash = hashOfID(low, high)
	for p.item = p.hash & mask; ; p.item = (p.item + 1) & mask {
		item := index.item(p.item)
		if item == 0 {
			return p
		}
		if (item>>itemRowBits^p.hash)<<itemRowBits != 0 {
			continue // The hash of its id is another one.
		}
		row := rowOfItem(item)
		if r := &s.block[row-1]; r[0] == low && r[1] == high && !s.isForgotten(row-1) {
			p.row = row
			return p
		}
	}
}

// scan returns 1 + the index of the row of a hold in r, or 0.
func (s *HoldSet) scan(r *holdRing, low, high uint64) uint32 {
	for position := r.first; position != r.end; position++ {
		i := r.rowIndex(position)
		if row := &s.block[i]; row[0] == low && row[1] == high {
			return i + 1
		}
	}
	return 0
}

// isForgotten reports whether a row of a hold has one that was forgotten.
func (s *HoldSet) isForgotten(row uint32) bool {
	r := &s.opened
	if row >= s.done.base {
		r = &s.done
	}
	return (row-r.base-r.start)&(r.size-1) < r.first-r.start
}

// itemOf returns which item of the index has the hold in a row.
func (s *HoldSet) itemOf(row uint32) (i uint32) {
	index := s.index()
	mask := index.mask()
	for i = hashOfID(s.block[row][0], s.block[row][1]) & mask; rowOfItem(index.item(i)) != row+1; i = (i + 1) & mask {
	}
	return i
}
