package memory

import (
	"encoding/binary"
	"math"
	"slices"
	"time"
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// nameLog has the names of the counters of a shard, so that operators can find counters by the start of their keys.
// New counters append their names. Names of counters that are no longer in the table are removed when the log is full.
//
// Most names start like others of the same rule, so a name is stored as what differs from another name, its base:
//
//	whole entry  0, the kind of the limit with isHeld in its bits, the period in microseconds (a varint), the length of
//	             the name, the name
//	other entry  the number of its base, how many bytes it shares with the start of the base's name, the length of the
//	             rest, the rest. It has the kind, isHeld and period of the base
//
// Numbers and lengths take a byte. An entry with an odd size has a byte more, so that a nameRef reaches all of the
// largest log. "api_user_1_" and "api_user_25_" take 20 and 6 bytes.
type nameLog struct {
	entries    []byte
	refs       []nameRef         // the names of shard.slots. Empty slots have none.
	bases      [maxBases]nameRef // the whole entries that are bases, from number 1.
	numEntries uint16
}

// nameRef is 0 for no name, or else 1 + half of where the entry starts in nameLog.entries.
type nameRef uint16

// start returns where the entry starts.
func (ref nameRef) start() int { return 2 * (int(ref) - 1) }

// refAt returns the reference to the entry that starts at an even offset.
func refAt(start int) nameRef { return nameRef(1 + start/2) }

const (
	maxNameBytes = 255 // how many bytes of a key are kept as the name.
	nameRefBytes = 2
	maxBases     = 15
	// minSharedBytes is how many bytes a name shares with its base at least, while there is room for another base.
	minSharedBytes = 8
	// maxEntryBytes is the size of the longest entry.
	maxEntryBytes = 1 + 1 + binary.MaxVarintLen64 + 1 + maxNameBytes + 1
)

// nameEntry is one entry of a nameLog.
type nameEntry struct {
	kind   algorithm.Kind
	isHeld bool          // true if the limit has holds.
	period time.Duration // 0 for concurrency.
	name   []byte
}

// kindByte and kindOf encode the kind and isHeld of an entry. A snapshot has these bits in the tag of a counter's id.
func (e *nameEntry) kindByte() byte {
	if e.isHeld {
		return byte(e.kind) | entryIsHeld
	}
	return byte(e.kind)
}

func kindOf(b byte) (kind algorithm.Kind, isHeld bool) {
	return algorithm.Kind(b & entryKindMask), b&entryIsHeld != 0
}

const (
	entryKindMask = 15
	entryIsHeld   = heldForm
)

// append appends an entry and returns where it is. The caller has made room.
func (l *nameLog) append(e *nameEntry) nameRef {
	ref := refAt(len(l.entries))
	l.numEntries++
	if base, shared := l.findBase(e); base > 0 {
		l.entries = append(l.entries, byte(base), byte(shared), byte(len(e.name)-shared))
		l.entries = padEntry(append(l.entries, e.name[shared:]...))
		return ref
	}
	if i := slices.Index(l.bases[:], 0); i >= 0 {
		l.bases[i] = ref
	}
	b := binary.AppendUvarint(append(l.entries, 0, e.kindByte()), uint64(e.period/time.Microsecond))
	l.entries = padEntry(append(append(b, byte(len(e.name))), e.name...))
	return ref
}

// padEntry adds a byte to entries if the last one has an odd size.
func padEntry(entries []byte) []byte {
	if len(entries)%2 == 0 {
		return entries
	}
	return append(entries, 0)
}

// findBase returns the number of the best base for e, and how many bytes they share. It returns 0 if e is better stored
// as a whole entry.
func (l *nameLog) findBase(e *nameEntry) (base, shared int) {
	best, isFull := -1, true
	for i, ref := range l.bases {
		if ref == 0 {
			isFull = false
			continue
		}
		b, _ := l.wholeEntry(ref)
		if b.kind != e.kind || b.isHeld != e.isHeld || b.period != e.period {
			continue
		}
		if n := sharedBytes(b.name, e.name); n > best {
			base, best = i+1, n
		}
	}
	if best < minSharedBytes && !isFull {
		return 0, 0
	}
	return base, best
}

// sharedBytes returns how many bytes a and b have in common at the start.
func sharedBytes(a, b []byte) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// wholeEntry returns the whole entry at ref, and its size without the byte of padEntry. Its name is in the log.
func (l *nameLog) wholeEntry(ref nameRef) (e nameEntry, size int) {
	b := l.entries[ref.start():]
	micros, n := binary.Uvarint(b[2:])
	start := 2 + n + 1
	size = start + int(b[start-1])
	e.kind, e.isHeld = kindOf(b[1])
	e.period, e.name = time.Duration(micros)*time.Microsecond, b[start:size]
	return e, size
}

// entry returns the entry at ref. Its name is in the log or in buffer.
func (l *nameLog) entry(ref nameRef, buffer *[maxNameBytes]byte) (e nameEntry) {
	b := l.entries[ref.start():]
	if b[0] == 0 {
		e, _ = l.wholeEntry(ref)
		return e
	}
	e, _ = l.wholeEntry(l.bases[b[0]-1])
	e.name = append(append(buffer[:0], e.name[:b[1]]...), b[3:3+int(b[2])]...)
	return e
}

// entrySize returns the size of the entry at ref.
func (l *nameLog) entrySize(ref nameRef) (size int) {
	if b := l.entries[ref.start():]; b[0] != 0 {
		size = 3 + int(b[2])
	} else {
		_, size = l.wholeEntry(ref)
	}
	return (size + 1) &^ 1
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
func nameOf(h *backend.Hit) nameEntry {
	w := h.Limit.Window()
	return nameEntry{w.Kind, w.IsHeld, w.Period, h.Key[:min(len(h.Key), maxNameBytes)]}
}

// slotRef returns the reference of sl, a slot of the table, to its name.
func (sh *shard) slotRef(sl *slot) *nameRef {
	return &sh.names.refs[(uintptr(unsafe.Pointer(sl))-uintptr(unsafe.Pointer(&sh.slots[0])))/slotBytes]
}

// compactNames removes the names of counters that are not in the table. A base stays while an entry needs it. Entries
// stay in order, so each moves towards the start.
func (sh *shard) compactNames() {
	l := sh.names
	if int(l.numEntries) == int(sh.takenSlots) {
		return // Each slot has a name, so there are no others.
	}
	// The references in their order, and in the low bits which slot or base has each.
	order := sh.budget.nameOrders.Get().(*nameOrder)
	defer sh.budget.nameOrders.Put(order)
	var isNeeded [1 + maxBases]bool
	n := 0
	for i, ref := range l.refs {
		if ref != 0 {
			order[n] = uint32(ref)<<16 | uint32(i)
			n++
			isNeeded[l.entries[ref.start()]] = true
		}
	}
	for i, ref := range l.bases {
		if !isNeeded[1+i] {
			l.bases[i] = 0
			continue
		}
		order[n] = uint32(ref)<<16 | uint32(maxTableSlots+i)
		n++
	}
	slices.Sort(order[:n])
	var from, to nameRef
	size := 0
	l.numEntries = 0
	for _, o := range order[:n] {
		if ref := nameRef(o >> 16); ref != from {
			from, to = ref, refAt(size)
			size += copy(l.entries[size:], l.entries[ref.start():][:l.entrySize(ref)])
			l.numEntries++
		}
		if i := int(o & math.MaxUint16); i < maxTableSlots {
			l.refs[i] = to
		} else {
			l.bases[i-maxTableSlots] = to
		}
	}
	l.entries = l.entries[:size]
}

// nameOrder has the references of a shard in the order of the names. It is too large for the stack.
type nameOrder [maxTableSlots + maxBases]uint32

// resizeRefs makes room for the names of so many slots, which have none yet.
func (sh *shard) resizeRefs(slots int) {
	l := sh.names
	before := cap(l.refs)
	l.refs = slices.Grow([]nameRef(nil), slots)[:slots]
	sh.budget.usedBytes.Add(int64(cap(l.refs)-before) * nameRefBytes)
}

// resizeNames moves the names to memory of at least size bytes, which is enough for them. With size 0 it removes them.
func (sh *shard) resizeNames(size int) {
	l := sh.names
	before := cap(l.entries)
	if size == 0 {
		*l = nameLog{}
	} else {
		l.entries = append(slices.Grow([]byte(nil), roundToBlock(size)), l.entries...)
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
	most := largestBlock(sh.budget.bytesPerShard() - len(sh.slots)*slotBytes - cap(l.refs)*nameRefBytes)
	if want := min(max((len(l.entries)+size)*4/3, minTableSlots*size), most); want > cap(l.entries)+cap(l.entries)/8 &&
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

// averageNameBytes returns the average memory of a name without what is free, or 0 if the store keeps no names.
func (l *nameLog) averageNameBytes() int {
	switch {
	case l == nil:
		return 0
	case l.numEntries == 0:
		return nameRefBytes
	}
	return nameRefBytes + len(l.entries)/int(l.numEntries)
}
