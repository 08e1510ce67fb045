package algorithm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// HoldID names a hold: a hash of the name that the caller gave it. The zero value stands for no hold.
type HoldID [16]byte

// Unnamed is the id of a hold that a counter takes for a caller that cannot name one. A Charge with it opens a hold
// without an id. A Force settles the oldest open hold without an id, and a Refund releases it; if there is none, they
// only charge and do nothing.
var Unnamed = HoldID{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// maxUnnamedScan is how many open holds are searched for one without an id. In a counter whose holds all have none, the
// first one is it.
const maxUnnamedScan = 1000

// A counter keeps at most MaxOpenHolds open holds, and remembers at most MaxDoneHolds holds that were settled or
// released.
const (
	MaxOpenHolds = 100_000
	MaxDoneHolds = 1 << 14
)

// MaxHold is the longest Limit.Hold.
const MaxHold = 24 * time.Hour

// HeldState is the state of a counter whose limit has a Hold. The zero value is a counter without hits and holds.
//
// A hold is open from the Charge that names it until it is settled (Force), released (Refund), or expires. Its units
// count against the limit while it is open, and Base is charged only when it is settled. So for every kind, what was
// settled in a window and what is open exceed Max by at most what settlements exceed their reservations:
//
//	10 a minute:  Charge 6 (a) passes    open 6, charged 0
//	              Charge 6 (b) is over   open 6, charged 0
//	              Force 2 (a)            open 0, charged 2: a reserved 6 and used 2
//	              Charge 6 (b) passes    open 6, charged 2
//	              Force 9 (b)            open 0, charged 11: b used 3 more than it reserved
//
// A settled or released hold is remembered for Limit.Hold, so that a repeated or late Charge, Force or Refund of it
// changes nothing.
type HeldState struct {
	Base        State
	WindowStart int64 // the start of the fixed window that Base counts, in Unix nanoseconds.
	Holds       HoldSet
}

// Clone returns a copy that shares no memory with s.
func (s *HeldState) Clone() HeldState {
	c := *s
	c.Base.SlidingLog, c.Holds = s.Base.SlidingLog.Clone(), s.Holds.Clone()
	return c
}

// Bytes returns the size of the memory that s refers to.
func (s *HeldState) Bytes() int64 {
	return s.Holds.Bytes() + s.Base.SlidingLog.Bytes()
}

// EmptyAt returns an instant from which s decides all hits as the zero value does, if no hit comes before. v is the
// outcome of the last Take, which was at the instant at.
func (s *HeldState) EmptyAt(l *Limit, at int64, v *Outcome) int64 {
	wait := v.ResetAfter // the base is empty then, and no hold is open
	if s.Holds.opened.count+s.Holds.done.count > 0 {
		forgotten := time.Duration(s.Holds.newest-at-s.Holds.offset) + l.Hold
		if s.Holds.opened.count > 0 && l.Kind != Concurrency && !l.ReleaseUnsettled {
			// When the holds expire, their units are charged, and their ids are remembered.
			forgotten += max(l.Hold, 2*l.Period, time.Duration(l.BurstTolerance()))
		}
		wait = max(wait, forgotten)
	}
	return at + int64(min(wait, time.Duration(math.MaxInt64-at)))
}

// Take applies op to the counter. id names the hold, or is zero for a hit that is none. Holds that have expired at the
// instant at are removed first, by a Look, too.
func (s *HeldState) Take(l *Limit, at int64, op Op, amount uint64, id HoldID) Outcome {
	if l.Kind == FixedWindow {
		start, _ := l.WindowBounds(at)
		if start > s.WindowStart {
			s.Base.FixedWindow.Count = 0
		}
		s.WindowStart = start // A clock that was set back finds the count in its own window.
	}
	now, expired, expiredUnits := s.expireHolds(l, at)
	var own place
	switch {
	case id != Unnamed:
		own = s.Holds.find(id)
	case !op.CanBeRefused():
		own = s.Holds.oldestUnnamed()
	}
	view := s.Holds.view(own)
	view.Expired, view.ExpiredUnits = expired, expiredUnits
	base := func(op Op, amount uint64) Outcome { return s.Base.Take(l, at, op, amount) }
	v, change := HeldOutcome(l, view, op, amount, id != HoldID{}, base)
	switch {
	case change == OpenHold && id == Unnamed:
		s.Holds.open(place{}, HoldID{}, now, amount)
	case change == OpenHold:
		s.Holds.open(own, id, now, amount)
	case change == CloseHold && id != Unnamed:
		s.Holds.close(own, id, now)
	case change == CloseHold && own.row != 0:
		s.Holds.leaveGap(own)
	}
	if count, units := s.Holds.OpenHolds(); count > 0 {
		f := Forecast{
			At: at, Base: s.Base, OpenUnits: units, NewestEnd: time.Duration(s.Holds.lastOpened()-now) + l.Hold,
			set: &s.Holds, position: s.Holds.opened.first, setAhead: now - at,
		}
		f.SetWaits(&v, l, amount, base)
	}
	return v
}

// expireHolds removes the holds that have expired. It charges their units at the time when they expired, unless the
// limit says that they are released. It returns the time of the set, see HoldSet.advance, the number of open holds that
// have expired, and the units charged.
func (s *HeldState) expireHolds(l *Limit, at int64) (now int64, expired uint32, charged uint64) {
	set := &s.Holds
	now, setBack := set.advance(at)
	for set.opened.count > 0 {
		end := set.opened.oldest + int64(l.Hold)
		if end > now {
			break
		}
		expired++
		if l.ReleasesExpired() {
			set.forgetOldest(&set.opened)
			continue
		}
		units := set.block[set.opened.rowIndex(set.opened.first)][rowUnits]
		charged += units
		chargedAt := at
		if !setBack {
			chargedAt -= now - end
		}
		if l.Kind != FixedWindow || chargedAt >= s.WindowStart {
			s.Base.Take(l, chargedAt, Force, units)
		}
		set.expireOldest(end)
	}
	for set.done.count > 0 && set.done.oldest+int64(l.Hold) <= now {
		set.forgetOldest(&set.done)
	}
	set.tidy()
	return now, expired, charged
}

// ReleasesExpired reports whether holds of l that expire are given back.
func (l *Limit) ReleasesExpired() bool { return l.Kind == Concurrency || l.ReleaseUnsettled }

// HoldView is what the holds of a counter mean for one hit, after expired holds were removed.
type HoldView struct {
	OpenUnits uint64 // the units of all open holds.
	OpenHolds int
	// IsOpen and IsDone say what became of the hit's own hold. Both are false for a hold that is not known.
	IsOpen, IsDone bool
	// Units are those of the hit's own hold if it is open. If it is done they are the units that were charged when it
	// expired.
	Units uint64
	// Expired is how many open holds expired just before this hit.
	Expired uint32
	// ExpiredUnits are the units that these were charged.
	ExpiredUnits uint64
}

// HoldChange is what a hit does to its own hold.
type HoldChange uint8

const (
	KeepHolds HoldChange = iota // changes nothing.
	OpenHold                    // OpenHold adds an open hold with the amount of the hit.
	CloseHold                   // CloseHold makes the hold done, without units.
)

// HeldOutcome decides a hit on a counter with holds. isHeld says that the hit names a hold. base applies an operation
// to the state that the counter has without its holds. HeldOutcome calls it with Looks, and at most once with another
// operation.
func HeldOutcome(l *Limit, h HoldView, op Op, amount uint64, isHeld bool,
	base func(op Op, amount uint64) Outcome,
) (v Outcome, change HoldChange) {
	over, excess := false, uint64(0)
	baseOp, baseAmount, asksBase := Look, uint64(0), true
	switch {
	case op.CanBeRefused() && (h.IsOpen || h.IsDone):
	case op.CanBeRefused():
		v = base(Look, h.OpenUnits+amount)
		opens := amount > 0 && (isHeld || l.Kind == Concurrency)
		over = v.Over || opens && h.OpenHolds >= MaxOpenHolds
		switch {
		case over:
		case op == Charge && !opens && !isHeld:
			baseOp, baseAmount = op, amount
		default:
			asksBase = false // A look that passes has the same figures for each amount.
			if op == Charge && opens {
				change = OpenHold
			}
		}
	case !isHeld && l.Kind == Concurrency:
		if op == Force && amount > 0 && h.OpenHolds < MaxOpenHolds {
			change = OpenHold
		}
	case !isHeld:
		baseOp, baseAmount = op, amount
	case h.IsDone && (op == Refund || h.Units == 0):
	default:
		change = CloseHold
		if op == Force && l.Kind != Concurrency {
			baseOp, baseAmount, excess = op, amount, amount-min(h.Units, amount)
			if h.IsDone {
				baseAmount = excess
			}
		}
	}
	if asksBase {
		v = base(baseOp, baseAmount)
	}
	v.Over, v.RetryAfter, v.FullUntil, v.WindowEnd = over, 0, 0, 0
	if over {
		v.RetryAfter = base(Look, amount).RetryAfter // without open holds
	}
	v.HoldOpened, v.HoldClosed, v.HoldsExpired, v.HoldExcess = change == OpenHold, change == CloseHold && h.IsOpen,
		h.Expired, excess
	v.ExpiredUnits = h.ExpiredUnits
	v.Charged = v.Charged || change != KeepHolds
	v.Before += h.OpenUnits
	switch {
	case v.HoldOpened:
		h.OpenUnits += amount
	case v.HoldClosed:
		h.OpenUnits -= h.Units
	}
	v.After += h.OpenUnits
	v.Remaining -= min(v.Remaining, h.OpenUnits)
	return v, change
}

const (
	heldHeadBytes = 14 * 8 // the size of the numbers in front of the encoded holds.
	holdRecord    = 32     // the size of an encoded hold: its id, its time and its units.
)

// MaxHeldBytes is the size of the longest encoding of a HeldState.
const MaxHeldBytes = heldHeadBytes + holdRecord*(MaxOpenHolds+MaxDoneHolds) + MaxLogBytes

// AppendBinary appends an encoding of s to b. It is an encoding.BinaryAppender, which never returns an error.
func (s *HeldState) AppendBinary(b []byte) ([]byte, error) {
	set := &s.Holds
	b, _ = binary.Append(b, binary.LittleEndian, []uint64{ // Numbers never fail.
		uint64(s.WindowStart), s.Base.FixedWindow.Count,
		s.Base.FirstHit.Count, uint64(s.Base.FirstHit.WindowEnd),
		uint64(s.Base.SlidingCounter.WindowStart), s.Base.SlidingCounter.PreviousCount, s.Base.SlidingCounter.CurrentCount,
		uint64(s.Base.GCRA.TAT), uint64(s.Base.GCRA.LastHit),
		uint64(set.newest), uint64(set.lastOpened()), uint64(set.offset), uint64(set.opened.count), uint64(set.done.count),
	})
	for _, r := range [...]*holdRing{&set.opened, &set.done} {
		for position := r.first; position != r.end; position++ {
			row := &set.block[r.rowIndex(position)]
			if row[rowUnits] != gapUnits {
				b, _ = binary.Append(b, binary.LittleEndian, row[:])
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
