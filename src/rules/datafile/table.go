package datafile

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math/bits"
	"slices"
)

// Table is an immutable set of values. In a table of limits each value has a limit. It is safe for concurrent use.
//
// It is a hash table of cells of one size, in which most values fit. A group of cells fills a line of the CPU's cache or two, and begins
// with a tag for each cell, which tells the cell to compare. So most searches wait for main memory once, and the CPU guesses their branches:
//
//	group  8 tags, cell, cell, ..., padding; cells are taken from the left, and the next group has what does not fit
//	tag    0 for a free cell, else 8 bits of the hash
//	cell   length (1 byte), value, index of the limit, line in the file
//	       isLong, place in longValues, hash, index of the limit, line      a value that is longer than most
type Table struct {
	data       []byte // data has the groups.
	groups     int
	groupBytes int
	inGroup    int    // inGroup is the number of cells, and of tags, in a group; at most maxInGroup.
	tagBits    uint64 // tagBits has the highest bit of each tag in a group.
	cellBytes  int
	valueBytes int // valueBytes is the longest value in a cell, and at least longCellBytes if there are longer ones.
	limitBytes int // limitBytes is the length of the index of a limit; 0 in a table of values.
	lineBytes  int
	longValues []byte // longValues has the length and the text of each value that is in no cell.
	seed       maphash.Seed
	len        int
	limits     []Limit // limits has each limit of the file once; nil in a table of values.
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
	// maxInGroup is the most cells of a group, so that their tags are one number.
	maxInGroup = 8
	// cellsPerTwoValues says that two of five cells are taken, so that one in 30 values is in another group than its first.
	cellsPerTwoValues = 5
	// maxBytesPerValue bounds the memory of a value, at the expense of free cells.
	maxBytesPerValue = 96
	// cacheLineBytes is the size of a line of the cache in most CPUs.
	cacheLineBytes = 64
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
		for group := range slices.Chunk(t.data, t.groupBytes) {
			for i := 0; i < t.inGroup && group[i] != 0; i++ {
				cell := group[t.inGroup+i*t.cellBytes:]
				value := cell[1 : 1+min(int(cell[0]), t.valueBytes)]
				if cell[0] == isLong {
					value = t.longValue(cell)
				}
				if !yield(value, t.limit(cell)) {
					return
				}
			}
		}
	}
}

// SizeBytes returns the memory that the values take.
func (t *Table) SizeBytes() int { return cap(t.data) + cap(t.longValues) }

// Find reports whether the table has a value. In a table of limits it also returns the index of the value's limit in Limits.
func (t *Table) Find(value []byte) (limit int, found bool) {
	cell, _, found := t.find(value, maphash.Bytes(t.seed, value))
	if !found {
		return 0, false
	}
	return t.limit(t.data[cell:]), true
}

// Line returns the line of a value in its file, from 1; 0 if the table does not have the value.
func (t *Table) Line(value []byte) int {
	cell, _, found := t.find(value, maphash.Bytes(t.seed, value))
	if !found {
		return 0
	}
	return t.line(t.data[cell:])
}

// limit returns the index of the limit of a cell's value. More may follow the cell.
func (t *Table) limit(cell []byte) int {
	start := 1 + t.valueBytes
	return readNumber(cell[start : start+t.limitBytes])
}

// line returns the line of a cell's value. More may follow the cell.
func (t *Table) line(cell []byte) int {
	start := 1 + t.valueBytes + t.limitBytes
	return readNumber(cell[start : start+t.lineBytes])
}

// find returns where the cell of a value with the hash begins in data. If the table does not have the value, it is a free cell for it. tag is where
// the cell's tag is.
func (t *Table) find(value []byte, hash uint64) (cell, tag int, found bool) {
	// The first group depends on the upper bits of the hash, and the tag on the lowest ones.
	first, _ := bits.Mul64(hash, uint64(t.groups))
	sought := everyByte * uint64(tagOf(hash))
	for group := int(first) * t.groupBytes; ; {
		tags := binary.LittleEndian.Uint64(t.data[group:])
		// Each byte of same has its highest bit set if the tag is the one sought, or, rarely, if a lower tag is and this one differs in one bit.
		different := tags ^ sought
		for same := (different - everyByte) &^ different & t.tagBits; same != 0; same &= same - 1 {
			tag := group + bits.TrailingZeros64(same)/8
			if cell := t.cellOf(group, tag); t.hasValue(t.data[cell:], value, hash) {
				return cell, tag, true
			}
		}
		if t.data[group+t.inGroup-1] == 0 {
			tag := group + bytes.IndexByte(t.data[group:group+t.inGroup], 0)
			return t.cellOf(group, tag), tag, false
		}
		if group += t.groupBytes; group == len(t.data) {
			group = 0
		}
	}
}

// cellOf returns where the cell of a tag in a group begins.
func (t *Table) cellOf(group, tag int) int { return group + t.inGroup + (tag-group)*t.cellBytes }

const everyByte = 0x0101010101010101

// tagOf returns the tag of a hash, 1 to 255.
func tagOf(hash uint64) byte { return max(byte(hash), 1) }

// hasValue reports whether a cell has a value with the hash.
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
