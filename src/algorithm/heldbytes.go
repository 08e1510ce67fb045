package algorithm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	heldHeadBytes = 14 * 8 // heldHeadBytes is the size of the numbers in front of the encoded holds.
	holdRecord    = 32     // holdRecord is the size of an encoded hold: its id, its time and its units.
)

// MaxHeldBytes is the size of the longest encoding of a HeldState.
const MaxHeldBytes = heldHeadBytes + holdRecord*(MaxOpenHolds+MaxDoneHolds) + MaxLogBytes

// AppendBinary appends an encoding of s to b. It is an encoding.BinaryAppender, which never returns an error.
func (s *HeldState) AppendBinary(b []byte) ([]byte, error) {
	set := &s.Holds
	for _, n := range [...]uint64{
		uint64(s.WindowStart), s.Base.FixedWindowCount,
		s.Base.FirstHit.Count, uint64(s.Base.FirstHit.WindowEnd),
		uint64(s.Base.SlidingCounter.WindowStart), s.Base.SlidingCounter.PreviousCount, s.Base.SlidingCounter.CurrentCount,
		uint64(s.Base.GCRA.TAT), uint64(s.Base.GCRA.LastHit),
		uint64(set.newest), uint64(set.lastOpened), uint64(set.offset), uint64(set.opened.count), uint64(set.done.count),
	} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, first := range [...]uint32{set.opened.first, set.done.first} {
		for i := first; i != 0; i = set.holds[i-1].next {
			h := &set.holds[i-1]
			b = append(b, h.id[:]...)
			b = binary.LittleEndian.AppendUint64(b, uint64(h.since))
			b = binary.LittleEndian.AppendUint64(b, h.unitsState&^doneBit)
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
			FixedWindowCount: number(1),
			FirstHit:         FirstHitState{number(2), int64(number(3))},
			SlidingCounter:   SlidingCounterState{int64(number(4)), number(5), number(6)},
			GCRA:             GCRAState{int64(number(7)), int64(number(8))},
		},
	}
	set := &read.Holds
	set.newest, set.lastOpened, set.offset = int64(number(9)), int64(number(10)), int64(number(11))
	open, done := number(12), number(13)
	b = b[heldHeadBytes:]
	if open > MaxOpenHolds || done > MaxDoneHolds || uint64(len(b)) < holdRecord*(open+done) {
		return fmt.Errorf("algorithm: %d bytes have not %d open holds and %d that are done", len(b), open, done)
	}
	if open+done > 0 {
		set.resize(int(open + done))
	}
	for i := range open + done {
		if err := set.addRecord(b[:holdRecord], i >= open); err != nil {
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

// addRecord adds an encoded hold to the end of its list.
func (s *HoldSet) addRecord(b []byte, done bool) error {
	h := hold{id: HoldID(b), since: int64(binary.LittleEndian.Uint64(b[16:])), unitsState: binary.LittleEndian.Uint64(b[24:])}
	list := &s.opened
	if done {
		list = &s.done
	}
	switch {
	case h.unitsState > MaxAmount:
		return fmt.Errorf("algorithm: a hold has %d units, more than 2^48", h.unitsState)
	case h.since > s.newest || list.last != 0 && s.holds[list.last-1].since > h.since:
		return errors.New("algorithm: the holds are not in the order of time")
	case s.find(h.id) != 0:
		return fmt.Errorf("algorithm: the hold %x is there twice", h.id)
	}
	if done {
		h.unitsState |= doneBit
	} else {
		s.units += h.unitsState
	}
	s.link(s.add(h), list)
	return nil
}
