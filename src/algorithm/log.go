package algorithm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
)

// Log is the state of a sliding window: its hits, oldest first. The zero value is empty. A
// copy shares its memory, so only one of the two may be changed; see Clone.
type Log struct {
	allRecords       []record // allRecords[:numRemoved] were removed.
	numRemoved       int
	totalBeforeFirst uint64 // the running total before the first live record.
}

// record is one hit, or several hits of one instant. Its amount is its total less the total
// before it, so any stretch of records is summed in one step. Totals may wrap around.
type record struct {
	instant      int64  // in Unix nanoseconds, and not before that of the previous record.
	runningTotal uint64 // the sum of the amounts up to and including this record.
}

// Bytes returns the size of the memory that g has allocated.
func (g *Log) Bytes() int64 { return recordBytes * int64(g.Cap()) }

// Clone returns a copy of g that shares no memory with it.
func (g Log) Clone() Log {
	g.reallocate()
	return g
}

// Newest returns the instant of the newest hit, or a negative one if there is none.
func (g *Log) Newest() int64 {
	d := g.NewDraft()
	return d.newestRecord().instant
}

// Len returns the number of records. Hits of one instant share a record.
func (g *Log) Len() int { return len(g.allRecords) - g.numRemoved }

// Cap returns how many records the log has memory for, 16 bytes each. It is at most 4 x Len + 8.
func (g *Log) Cap() int { return cap(g.allRecords) }

func (g *Log) liveRecords() []record { return g.allRecords[g.numRemoved:] }

// reallocate moves the records to new memory, which has room for half as many more.
func (g *Log) reallocate() {
	g.allRecords = append(make([]record, 0, g.Len()*3/2+2), g.liveRecords()...)
	g.numRemoved = 0
}

// MaxLogBytes is the size of the longest encoding of a log.
const MaxLogBytes = 8 + recordBytes*maxRecords

const (
	recordBytes = 16                // the size of a record, encoded and in memory.
	maxRecords  = MaxLoggedHits + 1 // the length of the longest log: one record for each of the newest Max+1 units.
)

// AppendBinary appends an encoding of g to b. It is an encoding.BinaryAppender, which never returns an error.
func (g *Log) AppendBinary(b []byte) ([]byte, error) {
	b = binary.LittleEndian.AppendUint64(b, g.totalBeforeFirst)
	for _, m := range g.liveRecords() {
		b = binary.LittleEndian.AppendUint64(b, uint64(m.instant))
		b = binary.LittleEndian.AppendUint64(b, m.runningTotal)
	}
	return b, nil
}

// UnmarshalBinary sets g to the log that AppendBinary encoded. It is an encoding.BinaryUnmarshaler.
func (g *Log) UnmarshalBinary(b []byte) error {
	if len(b) < 8 || (len(b)-8)%recordBytes != 0 || len(b) > MaxLogBytes {
		return fmt.Errorf("algorithm: %d bytes are no log", len(b))
	}
	read := Log{totalBeforeFirst: binary.LittleEndian.Uint64(b)}
	b = b[8:]
	read.allRecords = make([]record, 0, len(b)/recordBytes)
	for ; len(b) > 0; b = b[recordBytes:] {
		m := record{int64(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[8:])}
		if n := len(read.allRecords); n > 0 && read.allRecords[n-1].instant > m.instant {
			return errors.New("algorithm: the records of a log are not in the order of time")
		}
		read.allRecords = append(read.allRecords, m)
	}
	*g = read
	return nil
}

// commitDraft makes g equal to d, a draft of g. g must not have changed since NewDraft.
func (g *Log) commitDraft(d *LogDraft) {
	g.numRemoved += d.numDropped
	g.allRecords, g.totalBeforeFirst = g.allRecords[:g.numRemoved+len(d.keptRecords)], d.totalBeforeFirst
	for _, m := range d.addedRecords[:d.numAdded] {
		switch {
		case len(g.allRecords) < cap(g.allRecords):
		case g.numRemoved > g.Len()/2: // so rarely that each record moves about twice in its life
			g.allRecords, g.numRemoved = append(g.allRecords[:0], g.liveRecords()...), 0
		default:
			g.reallocate()
		}
		g.allRecords = append(g.allRecords, m)
	}
	if cap(g.allRecords) > 4*g.Len()+8 { // most records were removed
		g.reallocate()
	}
}

// LogDraft is a Log as it would be after some hits of one instant. It shares the memory of the
// log but never writes to it, so it is cheap to make for a log of any length. The log must not
// change while the draft is in use. The zero value is a draft of an empty log.
type LogDraft struct {
	keptRecords      []record // the records of the log that the draft has not removed.
	numDropped       int      // how many records the draft removed at the start of the log.
	totalBeforeFirst uint64   // the running total before the first record.
	// addedRecords[:numAdded] are the newest records, behind keptRecords. Two are enough: one for the
	// instant of the hits, and one that replaces a record of which a refund took a part.
	addedRecords [2]record
	numAdded     int
}

// NewDraft returns a draft of g.
func (g *Log) NewDraft() LogDraft {
	return LogDraft{keptRecords: g.liveRecords(), totalBeforeFirst: g.totalBeforeFirst}
}

func (d *LogDraft) numRecords() int { return len(d.keptRecords) + d.numAdded }

// recordAt returns record i, oldest first. Record -1 stands for the hits before record 0, which
// decide nothing: its instant is at least MaxPeriod ago.
func (d *LogDraft) recordAt(i int) record {
	switch {
	case i < 0:
		return record{instant: -int64(MaxPeriod), runningTotal: d.totalBeforeFirst}
	case i < len(d.keptRecords):
		return d.keptRecords[i]
	}
	return d.addedRecords[i-len(d.keptRecords)]
}

func (d *LogDraft) newestRecord() record { return d.recordAt(d.numRecords() - 1) }

// unitsFrom returns the sum of the amounts of record i and of all newer records.
func (d *LogDraft) unitsFrom(i int) uint64 {
	return d.newestRecord().runningTotal - d.recordAt(i-1).runningTotal
}

// firstRecordAfter returns the index of the first record after the instant since.
func (d *LogDraft) firstRecordAfter(since int64) int {
	n := d.numRecords()
	if n == 0 || d.recordAt(0).instant > since {
		return 0
	}
	return sort.Search(n, func(i int) bool { return d.recordAt(i).instant > since })
}

// firstRecordFollowedByAtMost returns the index of the first record, from first on, behind which the amounts sum to at
// most room.
func (d *LogDraft) firstRecordFollowedByAtMost(first int, room uint64) int {
	total := d.newestRecord().runningTotal
	for range 2 { // usually the result is one of the first two
		if total-d.recordAt(first).runningTotal <= room {
			return first
		}
		first++
	}
	return first + sort.Search(d.numRecords()-first,
		func(i int) bool { return total-d.recordAt(first+i).runningTotal <= room })
}

// truncateRecords removes the records from i on.
func (d *LogDraft) truncateRecords(i int) {
	d.numAdded = max(0, i-len(d.keptRecords))
	d.keptRecords = d.keptRecords[:min(i, len(d.keptRecords))]
}

// replaceRecordsFrom removes the records from i on, and appends m.
func (d *LogDraft) replaceRecordsFrom(i int, m record) {
	d.truncateRecords(i)
	d.addedRecords[d.numAdded] = m
	d.numAdded++
}

// addUnits appends a hit at an instant that is not before the newest record.
func (d *LogDraft) addUnits(at int64, amount uint64) {
	n, newest := d.numRecords(), d.newestRecord()
	if newest.instant == at {
		n--
	}
	d.replaceRecordsFrom(n, record{at, newest.runningTotal + amount})
}

// removeUnits subtracts amount from the newest records.
func (d *LogDraft) removeUnits(amount uint64) {
	total, n := d.newestRecord().runningTotal, d.numRecords()
	for n > 0 && d.unitsFrom(n-1) <= amount {
		n--
	}
	d.truncateRecords(n)
	if n > 0 {
		d.replaceRecordsFrom(n-1, record{d.newestRecord().instant, total - amount})
	}
}

// moveFutureHitsTo makes one record at the instant at of all records that are later.
func (d *LogDraft) moveFutureHitsTo(at int64) {
	if newest := d.newestRecord(); newest.instant > at {
		d.truncateRecords(d.firstRecordAfter(at))
		d.addUnits(at, newest.runningTotal-d.newestRecord().runningTotal)
	}
}

// trimOldRecords removes the records before first, and those behind which the amounts exceed limit, because they decide
// no hit.
func (d *LogDraft) trimOldRecords(first int, limit uint64) {
	first = d.firstRecordFollowedByAtMost(first, limit)
	// One record may hold many hits of one instant, so the sum of all amounts is capped, too.
	d.totalBeforeFirst = d.newestRecord().runningTotal - min(d.unitsFrom(first), MaxScriptCount)
	n := min(first, len(d.keptRecords))
	d.keptRecords = d.keptRecords[n:]
	d.numDropped += n
	copy(d.addedRecords[:], d.addedRecords[first-n:])
	d.numAdded -= first - n
}
