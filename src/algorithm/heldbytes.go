package algorithm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	heldHeadBytes = 14 * 8 // the size of the numbers in front of the encoded holds.
	holdRecord    = 32     // the size of an encoded hold: its id, its time and its units.
)

// MaxHeldBytes is the size of the longest encoding of a HeldState.
const MaxHeldBytes = heldHeadBytes + holdRecord*(MaxOpenHolds+MaxDoneHolds) + MaxLogBytes

// AppendBinary appends an encoding of s to b. It is an encoding.BinaryAppender, which never returns an error.
func (s *HeldState) AppendBinary(b []byte) ([]byte, error) {
	set := &s.Holds
	for _, n := range [...]uint64{
		uint64(s.WindowStart), s.Base.FixedWindow.Count,
		s.Base.FirstHit.Count, uint64(s.Base.FirstHit.WindowEnd),
		uint64(s.Base.SlidingCounter.WindowStart), s.Base.SlidingCounter.PreviousCount, s.Base.SlidingCounter.CurrentCount,
		uint64(s.Base.GCRA.TAT), uint64(s.Base.GCRA.LastHit),
		uint64(set.newest), uint64(set.lastOpened()), uint64(set.offset), uint64(set.opened.count), uint64(set.done.count),
	} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, r := range [...]*holdRing{&set.opened, &set.done} {
		for position := r.first; position != r.end; position++ {
			row := &set.block[r.rowIndex(position)]
			if row[rowUnits] == gapUnits {
				continue
			}
			for _, n := range row {
				b = binary.LittleEndian.AppendUint64(b, n)
			}
		}
	}
	return s.Base.SlidingLog.AppendBinary(b)
}

// UnmarshalBinary sets s to the state that AppendBinary encoded. It is an encoding.BinaryUnmarshaler.
func (s *HeldState) UnmarshalBinary(b []byte) error {
	if len(b) < heldHeadBytes || len(b) > MaxHeldBytes {
		return fmt.Errorf("algorithm: %d bytes are no counter with holds", len(b))
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	read := HeldState{
		WindowStart: int64(number(0)),
		Base: State{
			FixedWindow:    FixedState{Count: number(1)},
			FirstHit:       FirstHitState{number(2), int64(number(3))},
			SlidingCounter: SlidingCounterState{int64(number(4)), number(5), number(6)},
			GCRA:           GCRAState{int64(number(7)), int64(number(8))},
		},
	}
	set := &read.Holds
	set.newest, set.offset = int64(number(9)), int64(number(11))
	open, done := number(12), number(13)
	b = b[heldHeadBytes:]
	if open > MaxOpenHolds || done > MaxDoneHolds || uint64(len(b)) < holdRecord*(open+done) {
		return fmt.Errorf("algorithm: %d bytes have not %d open holds and %d that are done", len(b), open, done)
	}
	if open+done > 0 {
		set.allocate(ringSize(uint32(open)), ringSize(uint32(done)))
	}
	for i := range open + done {
		r := &set.opened
		if i >= open {
			r = &set.done
		}
		if err := set.addRecord(b[:holdRecord], r); err != nil {
			return err
		}
		b = b[holdRecord:]
	}
	if err := read.Base.SlidingLog.UnmarshalBinary(b); err != nil {
		return err
	}
	*s = read
	return nil
}

// addRecord adds an encoded hold to the end of r.
func (s *HoldSet) addRecord(b []byte, r *holdRing) error {
	id, since, units := HoldID(b), int64(binary.LittleEndian.Uint64(b[16:])), binary.LittleEndian.Uint64(b[24:])
	p := s.find(id)
	switch {
	case units > MaxAmount:
		return fmt.Errorf("algorithm: a hold has %d units, more than 2^48", units)
	case since > s.newest || r.count > 0 && int64(s.block[r.rowIndex(r.end-1)][rowTime]) > since:
		return errors.New("algorithm: the holds are not in the order of time")
	case p.row != 0:
		return fmt.Errorf("algorithm: the hold %x is there twice", id)
	}
	if r == &s.opened {
		s.units += units
	}
	s.append(r, p, id, since, units)
	return nil
}
