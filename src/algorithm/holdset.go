package algorithm

import "slices"

// HoldSet has the holds of one counter: the open ones and those that are done, each in the order in which they became
// so. The zero value is empty.
//
// Each read of memory that is not in the processor's cache costs about as much as all arithmetic of a hit. So a set has
// one block of memory, and a hit reads few places of it: an item of the index, a hold, and sometimes the oldest holds
// that are done.
//
//	block | opened.size rows of holds | done.size rows of holds | the index, 8 items in a row |
//
// A row takes 32 bytes. The index has 4/3 to 8/3 items of 4 bytes for each row of a hold, or none if there are at most
// maxLinearRows. A ring that has just grown is at least 7/16 full. So a hold takes 37 to 97 bytes in a set that has
// grown, and 100,000 open ones take 5.3 MB.
//
// Its clock never goes back. If the caller's clock is set back, offset makes up for it, so that the holds that are open
// then live at most one more Limit.Hold.
type HoldSet struct {
	block  []holdRow
	opened holdRing
	done   holdRing
	units  uint64 // of all open holds.
	newest int64  // the time of the last hold that was opened or became done.
	offset int64  // added to the caller's clock.
}

// place is where a hold is. Making room for another hold changes places.
type place struct {
	row  uint32 // 1 + the index of the hold in the block, or 0 if there is no hold.
	item uint32 // where the index has the hold or, if there is none, where it would have it.
	hash uint32 // of the id.
}

// Bytes returns the size of the memory that s has allocated.
func (s *HoldSet) Bytes() int64 { return int64(cap(s.block)) * holdRowBytes }

// OpenHolds returns the number of open holds, and their units. It includes holds that have expired since the last Take.
func (s *HoldSet) OpenHolds() (count int, units uint64) { return int(s.opened.count), s.units }

// Clone returns a copy that shares no memory with s.
func (s *HoldSet) Clone() HoldSet {
	c := *s
	c.block = slices.Clone(s.block)
	return c
}

// advance sets the clock to the caller's instant at, and returns the time of the set, and whether the caller's clock
// was set back.
func (s *HoldSet) advance(at int64) (now int64, setBack bool) {
	behind := max(s.newest-(at+s.offset), 0)
	s.offset += behind
	return at + s.offset, behind > 0
}

// lastOpened returns the time of the newest open hold, or 0 if there is none.
func (s *HoldSet) lastOpened() int64 {
	if s.opened.count == 0 {
		return 0
	}
	return int64(s.block[s.opened.rowIndex(s.opened.end-1)][rowTime])
}

// oldestUnnamed returns the place of the oldest open hold without an id.
func (s *HoldSet) oldestUnnamed() place {
	for position := s.opened.first; position != s.opened.end && position-s.opened.first < maxUnnamedScan; position++ {
		i := s.opened.rowIndex(position)
		if row := &s.block[i]; row[0]|row[1] == 0 && row[rowUnits] != gapUnits {
			return place{row: i + 1}
		}
	}
	return place{}
}

// view returns what a hit needs to know. own is the place of its hold.
func (s *HoldSet) view(own place) (v HoldView) {
	v.OpenHolds, v.OpenUnits = s.OpenHolds()
	if own.row != 0 {
		v.IsDone = s.isDone(own)
		v.IsOpen, v.Units = !v.IsDone, s.block[own.row-1][rowUnits]
	}
	return v
}

func (s *HoldSet) isDone(p place) bool { return p.row > s.opened.size }

// open adds an open hold. p is what find returned for id. If id is zero, the hold ends only when it expires.
func (s *HoldSet) open(p place, id HoldID, now int64, units uint64) {
	if s.opened.isFull() {
		s.makeRoom(&s.opened)
		p = s.find(id)
	}
	s.append(&s.opened, p, id, now, units)
	s.units += units
	s.newest = now
}

// close makes the hold id done at the time now. p is what find returned for id.
func (s *HoldSet) close(p place, id HoldID, now int64) {
	if s.makeDoneRoom(!s.isDone(p)) {
		p = s.find(id)
	}
	s.finish(p, id, now, 0)
}

// expireOldest makes the oldest open hold done, which has expired at the time end. Its units were charged. A hold
// without an id is forgotten: no request can name it.
func (s *HoldSet) expireOldest(end int64) {
	row := &s.block[s.opened.rowIndex(s.opened.first)]
	if row[0]|row[1] == 0 {
		s.forgetOldest(&s.opened)
		return
	}
	id, units := row.id(), row[rowUnits]
	s.makeDoneRoom(true)
	s.finish(s.find(id), id, end, units)
}

// makeDoneRoom makes room for one more hold that is done. isNew says that it is not done yet. It reports whether places
// have changed.
func (s *HoldSet) makeDoneRoom(isNew bool) bool {
	if isNew && s.done.count == MaxDoneHolds {
		s.forgetOldest(&s.done)
	}
	if !s.done.isFull() {
		return false
	}
	s.makeRoom(&s.done)
	return true
}

// finish makes the hold at p done, or adds one that is done if there is none. credit are the units that were charged
// when it expired.
func (s *HoldSet) finish(p place, id HoldID, since int64, credit uint64) {
	if p.row != 0 {
		s.leaveGap(p)
	}
	if s.done.count > 0 { // A hold expires before an earlier one if the limit has a shorter Hold now.
		since = max(since, int64(s.block[s.done.rowIndex(s.done.end-1)][rowTime]))
	}
	s.append(&s.done, p, id, since, credit)
	s.newest = max(s.newest, since)
}

// tidy removes forgotten holds from the index, and frees memory if few holds are left. It changes places.
func (s *HoldSet) tidy() {
	if s.opened.first-s.opened.start >= forgottenBatch {
		s.removeForgotten(&s.opened)
	}
	if s.done.first-s.done.start >= forgottenBatch {
		s.removeForgotten(&s.done)
	}
	if opened, done := s.opened.smallerSize(), s.done.smallerSize(); opened < s.opened.size || done < s.done.size {
		s.resize(opened, done)
	}
}
