package datafile

import (
	"encoding/binary"
	"math/rand/v2"
)

// builder collects the values of a Table.
type builder struct {
	chunks [][]byte // length, value, index of the limit and line of each value, in the order of the file
	len    int
	// lengths counts the values of each length up to maxCellValueBytes.
	lengths [maxCellValueBytes + 1]int
	record  []byte
}

// touchedBytes is the size of the part of a new table that the system clears at once. build touches each part before it
// uses them in any order, because a Step after each keeps the load from clearing many in one burst.
const touchedBytes = 2 << 20

// chunkBytes is the size of a chunk of a builder; the first ones are smaller. Chunks need not be copied to grow.
const chunkBytes = 1 << 20

// add adds a value, which is not empty.
func (b *builder) add(value []byte, limit, line int) {
	record := append(binary.AppendUvarint(b.record[:0], uint64(len(value))), value...)
	record = binary.AppendUvarint(binary.AppendUvarint(record, uint64(limit)), uint64(line))
	last := len(b.chunks) - 1
	if last < 0 || len(b.chunks[last])+len(record) > cap(b.chunks[last]) {
		b.chunks = append(b.chunks, make([]byte, 0, max(len(record), chunkBytes>>max(0, 10-len(b.chunks)))))
		last++
	}
	b.chunks[last] = append(b.chunks[last], record...)
	b.record = record
	b.len++
	if len(value) <= maxCellValueBytes {
		b.lengths[len(value)]++
	}
}

// all yields all values in the order of the file, with the index of their limit and their line, as fast as pacer
// allows. It frees each chunk that it has read.
func (b *builder) all(pacer *Pacer, yield func(value []byte, limit, line int) (goOn bool)) {
	steps := 0
	for i, chunk := range b.chunks {
		for len(chunk) > 0 {
			length, start := binary.Uvarint(chunk)
			end := start + int(length)
			limit, size := binary.Uvarint(chunk[end:])
			line, more := binary.Uvarint(chunk[end+size:])
			if !yield(chunk[start:end], int(limit), int(line)) {
				return
			}
			chunk = chunk[end+size+more:]
			if steps++; steps%linesPerStep == 0 {
				pacer.Step()
			}
		}
		b.chunks[i] = nil
	}
}

// build returns a table of the values, which it frees. limits are nil for a table of values, and maxLine is the last
// line that a value has. It calls twice with each value that is there twice, and with the lines of both, until twice
// returns false; the table is of no use then.
func (b *builder) build(pacer *Pacer, limits []Limit, maxLine int,
	twice func(value []byte, first, second int) (goOn bool),
) *Table {
	t := &Table{
		seed: rand.Uint64(), len: b.len, limits: limits, valueBytes: b.cellValueBytes(), lineBytes: numberBytes(maxLine),
		tags: make([]byte, b.len+b.len/2+1), // At most two thirds of the places are taken, so that searches are short.
	}
	if limits != nil {
		t.limitBytes = 2
	}
	t.cellBytes = 1 + t.valueBytes + t.limitBytes + t.lineBytes
	t.cells = make([]byte, len(t.tags)*t.cellBytes)
	useHugePages(t.cells)
	for i := 0; i < len(t.cells); i += touchedBytes {
		t.cells[i] = 0
		pacer.Step()
	}
	b.all(pacer, func(value []byte, limit, line int) bool {
		place, hash, found := t.find(value)
		if found {
			return twice(value, t.lineAt(place), line)
		}
		t.tags[place] = tagOf(hash)
		t.putCell(t.cell(place), value, hash)
		tail := t.cell(place)[1+t.valueBytes:]
		putNumber(tail[:t.limitBytes], limit)
		putNumber(tail[t.limitBytes:], line)
		return true
	})
	return t
}

// putCell puts a value with the hash into a cell.
func (t *Table) putCell(cell, value []byte, hash uint64) {
	if len(value) <= t.valueBytes {
		cell[0] = byte(len(value))
		copy(cell[1:], value)
		return
	}
	cell[0] = isLong
	binary.LittleEndian.PutUint32(cell[1:], uint32(len(t.longValues)))
	binary.LittleEndian.PutUint32(cell[5:], uint32(hash))
	t.longValues = append(binary.AppendUvarint(t.longValues, uint64(len(value))), value...)
}

// cellValueBytes returns the least length that all but one in 16 values have at most. If too many are longer than
// maxCellValueBytes, it returns longCellBytes.
func (b *builder) cellValueBytes() int {
	count := 0
	for length, n := range b.lengths {
		if count += n; count == b.len {
			return length
		} else if count >= b.len-b.len/longShare {
			return max(length, longCellBytes)
		}
	}
	return longCellBytes
}
