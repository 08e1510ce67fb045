package memory

import (
	"encoding/binary"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// nameLog has the names of the counters of a shard, so that operators can find counters by the start of their keys.
// Every slot that is not empty has its name in the log. New counters append their names. Names of counters that are no
// longer in the table are removed when the log is full.
//
// An entry has the hash of the counter's id (8 bytes), its tag with the kind of its limit and isHeld in the low bits (4
// bytes), the period in microseconds (a varint), the length of the name (1 byte) and the name.
type nameLog struct {
	entries    []byte
	numEntries int
}

// maxNameBytes is how many bytes of a key are kept as the name.
const maxNameBytes = 255

// nameEntry is one entry of a nameLog.
type nameEntry struct {
	id     counterID
	kind   algorithm.Kind
	isHeld bool          // true if the limit has holds.
	period time.Duration // 0 for concurrency.
	name   []byte        // points into the log.
}

const (
	entryKindMask = 15       // says which bits of the tag of an entry hold the kind.
	entryIsHeld   = heldForm // the bit of the tag of an entry that holds isHeld.
)

// maxEntryHead is the size of the longest entry without its name.
const maxEntryHead = 8 + 4 + binary.MaxVarintLen64 + 1

// append appends an entry. The caller has made room.
func (l *nameLog) append(e *nameEntry) {
	b := binary.LittleEndian.AppendUint64(l.entries, e.id.hash)
	tag := e.id.tag | uint32(e.kind)
	if e.isHeld {
		tag |= entryIsHeld
	}
	b = binary.LittleEndian.AppendUint32(b, tag)
	b = binary.AppendUvarint(b, uint64(e.period/time.Microsecond))
	b = append(b, byte(len(e.name)))
	l.entries = append(b, e.name...)
	l.numEntries++
}

// firstEntry returns the first entry of b, and its size.
func firstEntry(b []byte) (e nameEntry, size int) {
	tag := binary.LittleEndian.Uint32(b[8:])
	micros, n := binary.Uvarint(b[12:])
	start := 12 + n + 1
	size = start + int(b[start-1])
	return nameEntry{
		id:   counterID{binary.LittleEndian.Uint64(b), tag &^ (formMask | rankMask)},
		kind: algorithm.Kind(tag & entryKindMask), isHeld: tag&entryIsHeld != 0,
		period: time.Duration(micros) * time.Microsecond, name: b[start:size],
	}, size
}

// parseEntry returns the entry that b holds. ok is false if b holds anything else.
func parseEntry(b []byte) (e nameEntry, ok bool) {
	if len(b) < maxEntryHead-binary.MaxVarintLen64+1 {
		return e, false
	}
	micros, n := binary.Uvarint(b[12:])
	if n <= 0 || micros > uint64(algorithm.MaxPeriod/time.Microsecond) || 12+n >= len(b) || len(b) != 12+n+1+int(b[12+n]) {
		return e, false
	}
	e, _ = firstEntry(b)
	return e, e.kind.Valid()
}

// slotSet is a set of slots of one table.
type slotSet [maxTableSlots / 64]uint64

// add adds slot i. It returns false if i was in the set.
func (s *slotSet) add(i int) bool {
	word, bit := &s[i/64], uint64(1)<<(i%64)
	isNew := *word&bit == 0
	*word |= bit
	return isNew
}

// slotIndex returns the index of the slot of id, live or expired, or -1.
func (sh *shard) slotIndex(id counterID) int {
	if len(sh.slots) == 0 {
		return -1
	}
	for i := sh.firstSlotIndex(id.hash); ; i++ {
		if i == len(sh.slots) {
			i = 0
		}
		if sh.slots[i].tagFormRank == 0 {
			return -1
		}
		if sh.slots[i].hasID(id) {
			return i
		}
	}
}

// nameOf returns the entry of a hit's counter.
func nameOf(h *backend.Hit, id counterID) nameEntry {
	w := h.Limit.Window()
	return nameEntry{id: id, kind: w.Kind, isHeld: w.IsHeld, period: w.Period, name: h.Key[:min(len(h.Key), maxNameBytes)]}
}

// compactNames removes the names of counters that are not in the table, and names that are there twice.
func (sh *shard) compactNames() {
	l := sh.names
	if l.numEntries == int(sh.takenSlots) {
		return // Each slot has a name, so there are no others.
	}
	var seen slotSet
	kept := l.entries[:0]
	l.numEntries = 0
	for rest := l.entries; len(rest) > 0; {
		e, size := firstEntry(rest)
		if i := sh.slotIndex(e.id); i >= 0 && seen.add(i) {
			kept = append(kept, rest[:size]...)
			l.numEntries++
		}
		rest = rest[size:]
	}
	l.entries = kept
}

// resizeNames moves the names to memory of at least size bytes, which is enough for them. With size 0 it removes them.
func (sh *shard) resizeNames(size int) {
	l := sh.names
	before := cap(l.entries)
	if size == 0 {
		*l = nameLog{}
	} else {
		l.entries = append(slices.Grow([]byte(nil), size), l.entries...)
	}
	sh.budget.usedBytes.Add(int64(cap(l.entries) - before))
}

// shrinkNames removes the names of counters that are not in the table, and frees memory that they leave.
func (sh *shard) shrinkNames() {
	if sh.names == nil {
		return
	}
	sh.compactNames()
	if n := len(sh.names.entries); cap(sh.names.entries) > n+n/4 {
		sh.resizeNames(n + n/8)
	}
}

// makeNameRoom makes room for an entry of so many bytes. It removes names that are not needed, or else uses more of the
// shard's share of the memory, or else evicts an eighth of the counters. It reports whether it moved counters in the
// table.
func (sh *shard) makeNameRoom(size int, now int64) (moved bool) {
	l := sh.names
	fits := func() bool { return len(l.entries)+size <= cap(l.entries)-cap(l.entries)/8 }
	sh.compactNames()
	if fits() {
		if n := len(l.entries) + size; cap(l.entries) > 8*n {
			sh.resizeNames(4 * n)
		}
		return false
	}
	most := largestBlock(sh.budget.bytesPerShard() - len(sh.slots)*slotBytes)
	if want := min(max((len(l.entries)+size)*3/2, minTableSlots*size), most); want > cap(l.entries)+cap(l.entries)/8 &&
		len(l.entries)+size <= want {
		sh.resizeNames(want)
		return false
	}
	for !fits() && len(l.entries) > 0 {
		live, _, _ := sh.dropExpired(now, 0)
		sh.evictCounters(now, (live+7)/8)
		sh.compactTable(now)
		sh.compactNames()
		moved = true
	}
	if len(l.entries)+size > cap(l.entries) {
		sh.resizeNames(size) // The share of the shard is too small for one name.
	}
	return moved
}

// averageNameBytes returns the average size of an entry, or 0 if there is none.
func (l *nameLog) averageNameBytes() int {
	if l == nil || l.numEntries == 0 {
		return 0
	}
	return len(l.entries) / l.numEntries
}
