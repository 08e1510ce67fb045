package datafile

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// Table is an immutable set of values. In a table of limits each value has a limit. It is safe for concurrent use.
//
// It is a hash table with a tag and a cell for each place. Tags are few bytes, so they are mostly in a cache of the
// CPU, and they tell which cells to compare. All cells have one size, in which most values fit, so a search waits for
// main memory once. A search has so few instructions that the CPU starts the next ones while it waits; that is why find
// is one long function:
//
//	tag    0 for a free place, else 8 bits of the hash
//	cell   length (1 byte), value, index of the limit, line in the file
//	       isLong, place in longValues, hash, index of the limit, line      a value that is longer than most
type Table struct {
	tags       []byte
	cells      []byte
	cellBytes  int
	valueBytes int // the longest value in a cell, and at least longCellBytes if there are longer ones
	limitBytes int // the length of the index of a limit: 2, and 0 in a table of values
	lineBytes  int
	longValues []byte // the length and the text of each value that is in no cell
	seed       uint64 // random, so that callers cannot choose values that share a place
	len        int
	limits     []Limit // each limit of the file once; nil in a table of values
}

const (
	// maxCellValueBytes is the most bytes that a value takes in each cell.
	maxCellValueBytes = 48
	// longShare is the share of values that need not fit into a cell: one in 16.
	longShare = 16
	// isLong is the length in the cell of a long value.
	isLong = 255
	// longCellBytes is the size of what the cell of a long value has instead: its place and 32 bits of its hash.
	longCellBytes = 8
)

// Len returns the number of values.
func (t *Table) Len() int { return t.len }

// Limits returns the different limits of the file, in the order in which they come first. Callers must not change it.
func (t *Table) Limits() []Limit { return t.limits }

// Sample returns a value of the table, which must not be empty. Callers must not change it.
func (t *Table) Sample() []byte {
	for value := range t.All() {
		return value
	}
	return nil
}

// All yields all values in any order, each with the index of its limit in Limits. Callers must not change them.
func (t *Table) All() iter.Seq2[[]byte, int] {
	return func(yield func([]byte, int) bool) {
		for place, tag := range t.tags {
			if tag == 0 {
				continue
			}
			cell := t.cell(place)
			value := cell[1 : 1+min(int(cell[0]), t.valueBytes)]
			if cell[0] == isLong {
				value = t.longValue(cell)
			}
			if !yield(value, t.limitAt(place)) {
				return
			}
		}
	}
}

// Find reports whether the table has a value. In a table of limits it also returns the index of the value's limit in
// Limits.
func (t *Table) Find(value []byte) (limit int, found bool) {
	place, _, found := t.find(value)
	if !found {
		return 0, false
	}
	return t.limitAt(place), true
}

func (t *Table) limitAt(place int) int {
	if t.limitBytes == 0 {
		return 0
	}
	return int(binary.LittleEndian.Uint16(t.cells[place*t.cellBytes+1+t.valueBytes:]))
}

// Line returns the line of a value in its file, from 1; 0 if the table does not have the value.
func (t *Table) Line(value []byte) int {
	place, _, found := t.find(value)
	if !found {
		return 0
	}
	return t.lineAt(place)
}

func (t *Table) lineAt(place int) int {
	start := 1 + t.valueBytes + t.limitBytes
	return readNumber(t.cell(place)[start : start+t.lineBytes])
}

func (t *Table) cell(place int) []byte { return t.cells[place*t.cellBytes : (place+1)*t.cellBytes] }

// find returns the place of a value, and its hash. If the table does not have the value, it returns the free place for
// it.
func (t *Table) find(value []byte) (place int, hash uint64, found bool) {
	n := len(value)
	hash = t.seed ^ uint64(n)
	// The first and the last eight bytes, which are all bytes of most values. Of fewer than eight bytes last has all.
	var first, last uint64
	if n >= 8 {
		first, last = binary.LittleEndian.Uint64(value), binary.LittleEndian.Uint64(value[n-8:])
		for rest := value; len(rest) > 8; rest = rest[8:] {
			hash = fold(hash^binary.LittleEndian.Uint64(rest), 0x9e3779b97f4a7c15)
		}
	} else {
		for _, c := range value {
			last = last<<8 | uint64(c)
		}
	}
	hash = fold(hash^last, 0xd6e8feb86659fd93)
	// The first place depends on the upper bits of the hash, and the tag on the lowest ones.
	upper, _ := bits.Mul64(hash, uint64(len(t.tags)))
	wanted := tagOf(hash)
	for place = int(upper); ; {
		tag := t.tags[place]
		if tag == wanted {
			cell := t.cells[place*t.cellBytes:]
			if 8 <= n && n <= 16 && len(cell) > 16 && int(cell[0]) == n &&
				binary.LittleEndian.Uint64(cell[1:]) == first && binary.LittleEndian.Uint64(cell[n-7:]) == last ||
				t.hasValue(cell, value, hash) {
				return place, hash, true
			}
		} else if tag == 0 {
			return place, hash, false
		}
		if place++; place == len(t.tags) {
			place = 0
		}
	}
}

// fold mixes the bits of a and b: it returns the upper half of their product XOR the lower one.
func fold(a, b uint64) uint64 {
	upper, lower := bits.Mul64(a, b)
	return upper ^ lower
}

// hasValue reports whether the cell at the start of cell has a value with the hash.
func (t *Table) hasValue(cell, value []byte, hash uint64) bool {
	if cell[0] != isLong {
		return int(cell[0]) == len(value) && string(cell[1:1+len(value)]) == string(value)
	}
	if binary.LittleEndian.Uint32(cell[5:]) != uint32(hash) {
		return false
	}
	return string(t.longValue(cell)) == string(value)
}

// longValue returns the long value of a cell.
func (t *Table) longValue(cell []byte) []byte {
	long := t.longValues[binary.LittleEndian.Uint32(cell[1:]):]
	length, size := binary.Uvarint(long)
	return long[size : size+int(length)]
}

// tagOf returns the tag of a hash, 1 to 255.
func tagOf(hash uint64) byte { return max(byte(hash), 1) }

// readNumber returns the number that b is, the lowest byte first.
func readNumber(b []byte) (n int) {
	for i, c := range b {
		n |= int(c) << (8 * i)
	}
	return n
}

// putNumber makes b the number n.
func putNumber(b []byte, n int) {
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
}

// numberBytes returns how many bytes a number up to most takes.
func numberBytes(most int) int { return (bits.Len(uint(most)) + 7) / 8 }
