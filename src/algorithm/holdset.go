package algorithm

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"
)

// HoldSet has the holds of one counter: the open ones and those that are done, each in the order in which they became so. The zero
// value is empty. A hold takes 40 bytes, and 8 in the index of a set of more than 8. The memory of a set that has grown is up to
// twice what its holds need: 48 to 96 bytes for each, and 6.3 MB for 100,000.
//
// Its clock never goes back. If the caller's clock is set back, offset makes up for it, so that the holds that are open then live at
// most one more Limit.Hold.
type HoldSet struct {
	holds      []hold
	index      []uint32 // index has 1 + the index in holds of each hold with an id, from slot(id) on. It is nil for a small set.
	free       uint32   // free is 1 + the index of the first unused item of holds, which are linked by next; 0 for none.
	opened     holdList
	done       holdList
	units      uint64 // units are those of all open holds.
	newest     int64  // newest is the time of the last hold that was opened or became done.
	lastOpened int64  // lastOpened is the time of the last hold that was opened.
	offset     int64  // offset is added to the caller's clock.
}

// hold is one hold. It is in the list opened or done, or free.
type hold struct {
	id         HoldID
	since      int64  // since is when the hold was opened or became done.
	unitsState uint64 // unitsState has the units, and doneBit if the hold is done.
	prev, next uint32 // prev and next are 1 + the indexes of the neighbours in the list; 0 for none.
}

const doneBit = 1 << 63

// holdList is a list of holds, the oldest first.
type holdList struct{ first, last, count uint32 }

// maxSmallHolds is the size up to which a set needs no index.
const maxSmallHolds = 8

// holdBytes is the size of a hold in memory.
const holdBytes = 40

// Bytes returns the size of the memory that s has allocated.
func (s *HoldSet) Bytes() int64 { return int64(cap(s.holds))*holdBytes + int64(cap(s.index))*4 }

// OpenHolds returns the number of open holds, and their units. It includes holds that have expired since the last Take.
func (s *HoldSet) OpenHolds() (count int, units uint64) { return int(s.opened.count), s.units }

// IsEmpty reports whether s has no holds.
func (s *HoldSet) IsEmpty() bool { return s.opened.count+s.done.count == 0 }

// Clone returns a copy that shares no memory with s.
func (s *HoldSet) Clone() HoldSet {
	c := *s
	c.holds, c.index = slices.Clone(s.holds), slices.Clone(s.index)
	return c
}

// advance sets the clock to the caller's instant at, and returns the time of the set.
func (s *HoldSet) advance(at int64) (now int64) {
	s.offset += max(s.newest-(at+s.offset), 0)
	return at + s.offset
}

// view returns what a hit needs to know at the time now of the set. own is 1 + the index of its hold, or 0 if that is not known.
func (s *HoldSet) view(l *Limit, now int64, own uint32) (v HoldView) {
	v.OpenHolds, v.OpenUnits = s.OpenHolds()
	if i := s.opened.first; i != 0 {
		v.OldestEnd = time.Duration(s.holds[i-1].since-now) + l.Hold
		v.NewestEnd = time.Duration(s.lastOpened-now) + l.Hold
	}
	if own != 0 {
		h := &s.holds[own-1]
		v.IsDone = h.isDone()
		v.IsOpen, v.Units = !v.IsDone, h.unitsState&^doneBit
	}
	return v
}

func (h *hold) isDone() bool { return h.unitsState&doneBit != 0 }

// open adds an open hold. If id is zero, it ends only when it expires.
func (s *HoldSet) open(id HoldID, now int64, units uint64) {
	s.link(s.add(hold{id: id, since: now, unitsState: units}), &s.opened)
	s.units += units
	s.newest, s.lastOpened = now, now
}

// close makes the hold id done. i is what find returned for it, 0 if it is not known. credit are the units that were charged when it expired.
func (s *HoldSet) close(i uint32, id HoldID, since int64, credit uint64) {
	if i != 0 {
		s.unlink(i)
	} else {
		i = s.add(hold{id: id})
	}
	if last := s.done.last; last != 0 {
		since = max(since, s.holds[last-1].since) // A hold expires before an earlier one if the limit has a shorter Hold now.
	}
	s.holds[i-1].since, s.holds[i-1].unitsState = since, credit|doneBit
	s.link(i, &s.done)
	s.newest = max(s.newest, since)
	if s.done.count > MaxDoneHolds {
		s.forget(s.done.first)
	}
}

// add adds h, which is in no list yet, and returns 1 + its index.
func (s *HoldSet) add(h hold) (i uint32) {
	if s.free == 0 {
		s.resize(max(4, 2*len(s.holds)))
	}
	i = s.free
	s.free = s.holds[i-1].next
	s.holds[i-1] = h
	s.addToIndex(i)
	return i
}

// link adds hold i, an index + 1, to the end of a list.
func (s *HoldSet) link(i uint32, list *holdList) {
	h := &s.holds[i-1]
	h.prev, h.next = list.last, 0
	if list.last != 0 {
		s.holds[list.last-1].next = i
	} else {
		list.first = i
	}
	list.last = i
	list.count++
}

// unlink removes hold i, an index + 1, from its list.
func (s *HoldSet) unlink(i uint32) {
	h := &s.holds[i-1]
	list := &s.opened
	if h.isDone() {
		list = &s.done
	} else {
		s.units -= h.unitsState
	}
	if h.prev != 0 {
		s.holds[h.prev-1].next = h.next
	} else {
		list.first = h.next
	}
	if h.next != 0 {
		s.holds[h.next-1].prev = h.prev
	} else {
		list.last = h.prev
	}
	list.count--
}

// forget removes hold i, an index + 1. It frees memory if few holds are left.
func (s *HoldSet) forget(i uint32) {
	s.unlink(i)
	s.removeFromIndex(i)
	s.holds[i-1] = hold{next: s.free}
	s.free = i
	if n := int(s.opened.count + s.done.count); len(s.holds) > maxSmallHolds && n < len(s.holds)/4 {
		s.resize(len(s.holds) / 2)
	}
}

// resize moves all holds to memory for size holds.
func (s *HoldSet) resize(size int) {
	old, lists := s.holds, [2]holdList{s.opened, s.done}
	s.holds, s.index = make([]hold, size), nil
	if size > maxSmallHolds {
		s.index = make([]uint32, 2<<bits.Len(uint(size-1)))
	}
	s.free = 0
	for i := size; i > 0; i-- {
		s.holds[i-1].next, s.free = s.free, uint32(i)
	}
	s.opened, s.done = holdList{}, holdList{}
	for k, list := range []*holdList{&s.opened, &s.done} {
		for i := lists[k].first; i != 0; i = old[i-1].next {
			s.link(s.add(old[i-1]), list)
		}
	}
}

// slot returns the place in the index where the search for id begins. indexSeed is secret, so callers cannot choose ids that all begin
// at one place and make each search long.
func (s *HoldSet) slot(id *HoldID) int {
	hash, _ := bits.Mul64(binary.LittleEndian.Uint64(id[:])*indexSeed, uint64(len(s.index)))
	return int(hash)
}

// indexSeed is odd and random.
var indexSeed = rand.Uint64() | 1

// find returns 1 + the index of the hold id, or 0 if there is none.
func (s *HoldSet) find(id HoldID) uint32 {
	if id == (HoldID{}) || len(s.holds) == 0 {
		return 0
	}
	if s.index == nil {
		return uint32(slices.IndexFunc(s.holds, func(h hold) bool { return h.id == id }) + 1)
	}
	for at := s.slot(&id); ; at = (at + 1) & (len(s.index) - 1) {
		if i := s.index[at]; i == 0 || s.holds[i-1].id == id {
			return i
		}
	}
}

func (s *HoldSet) addToIndex(i uint32) {
	id := &s.holds[i-1].id
	if s.index == nil || *id == (HoldID{}) {
		return
	}
	at := s.slot(id)
	for s.index[at] != 0 {
		at = (at + 1) & (len(s.index) - 1)
	}
	s.index[at] = i
}

// removeFromIndex removes hold i, and moves the holds behind it back to where a search finds them.
func (s *HoldSet) removeFromIndex(i uint32) {
	id := &s.holds[i-1].id
	if s.index == nil || *id == (HoldID{}) {
		return
	}
	mask := len(s.index) - 1
	at := s.slot(id)
	for s.index[at] != i {
		at = (at + 1) & mask
	}
	for next := (at + 1) & mask; s.index[next] != 0; next = (next + 1) & mask {
		if distance := (next - s.slot(&s.holds[s.index[next]-1].id)) & mask; distance >= (next-at)&mask {
			s.index[at], at = s.index[next], next
		}
	}
	s.index[at] = 0
}
