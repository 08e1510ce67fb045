package algorithm

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
)

// holdID returns the id of hold n. A search for every 64th begins at the start of an index.
func holdID(n int) (id HoldID) {
	binary.LittleEndian.PutUint64(id[:], uint64(n)<<1|1)
	if n%64 == 0 {
		binary.LittleEndian.PutUint64(id[:], hashSeeds[0])
	}
	binary.LittleEndian.PutUint64(id[8:], uint64(n)<<7)
	return id
}

// plainHold is a hold in the simple copy of a HoldSet that checkSet compares with.
type plainHold struct {
	since  int64
	units  uint64
	isDone bool
}

func checkSet(t *testing.T, s *HoldSet, want map[HoldID]plainHold, ids int) {
	t.Helper()
	open, units := 0, uint64(0)
	for n := range ids {
		id := holdID(n)
		p := s.find(id)
		h, known := want[id]
		if known != (p.row != 0) {
			t.Fatalf("hold %d: found %t, want %t", n, p.row != 0, known)
		}
		if !known {
			continue
		}
		if row := s.block[p.row-1]; row.id() != id || int64(row[rowTime]) != h.since || s.isDone(p) != h.isDone ||
			row[rowUnits] != h.units {
			t.Fatalf("hold %d: %d, want %+v", n, row, h)
		}
		if !h.isDone {
			open++
			units += h.units
		}
	}
	if gotOpen, gotUnits := s.OpenHolds(); gotOpen != open || gotUnits != units ||
		int(s.opened.count+s.done.count) != len(want) {
		t.Fatalf("%d open holds of %d units and %d done, want %d of %d among %d", gotOpen, gotUnits, s.done.count, open,
			units, len(want))
	}
	for _, r := range []*holdRing{&s.opened, &s.done} {
		last, count := int64(0), uint32(0)
		for position := r.first; position != r.end; position++ {
			row := s.block[r.rowIndex(position)]
			if row[rowUnits] == gapUnits {
				continue
			}
			if since := int64(row[rowTime]); since < last || count == 0 && since != r.oldest {
				t.Fatalf("a hold of %d after one of %d, and the oldest of %d", since, last, r.oldest)
			}
			last = int64(row[rowTime])
			count++
		}
		if count != r.count || r.end-r.start > r.size {
			t.Fatalf("%d holds in %+v", count, r)
		}
	}
}

// TestHoldSet opens, closes and forgets holds at random and compares the set with a map. It grows to thousands and
// shrinks again.
func TestHoldSet(t *testing.T) {
	const ids = 9000
	rnd, want := rand.New(rand.NewPCG(1, 2)), make(map[HoldID]plainHold)
	var s HoldSet
	now, largest := int64(0), int64(0)
	forgetOldest := func(r *holdRing) {
		row := s.block[r.rowIndex(r.first)]
		delete(want, row.id())
		s.forgetOldest(r)
	}
	for round := range 40 {
		checkSet(t, &s, want, ids)
		for range 600 {
			now++
			id := holdID(rnd.IntN(ids))
			p, h := s.find(id), want[id]
			switch grows := round%20 < 12; {
			case !grows && s.opened.count > 0 && rnd.IntN(2) == 0:
				forgetOldest(&s.opened)
			case !grows && s.done.count > 0:
				forgetOldest(&s.done)
			case p.row == 0 && rnd.IntN(4) > 0:
				h.units = 1 + rnd.Uint64N(9)
				s.open(p, id, now, h.units)
				want[id] = plainHold{now, h.units, false}
			case s.opened.count > 0 && rnd.IntN(8) == 0:
				row := s.block[s.opened.rowIndex(s.opened.first)]
				s.expireOldest(now)
				want[row.id()] = plainHold{now, row[rowUnits], true}
			default:
				s.close(p, id, now)
				want[id] = plainHold{now, 0, true}
			}
			s.tidy()
		}
		largest = max(largest, s.Bytes())
	}
	for s.opened.count > 0 {
		forgetOldest(&s.opened)
	}
	for s.done.count > 0 {
		forgetOldest(&s.done)
	}
	for range 20 {
		s.tidy()
	}
	if s.opened.count+s.done.count > 0 || s.Bytes() > 1024 || largest < 100_000 || s.units != 0 {
		t.Errorf("the empty set has %d bytes, of %d at most, and %d units", s.Bytes(), largest, s.units)
	}
}

// Done holds are bounded: the oldest is forgotten first. Open holds are never forgotten for them.
func TestDoneHoldsAreBounded(t *testing.T) {
	l := &Limit{Kind: Concurrency, Max: 1, Period: time.Hour, Hold: time.Hour}
	var s HeldState
	s.Take(l, 1, Charge, 1, holdID(1<<20))
	for n := range MaxDoneHolds + 5 {
		s.Take(l, int64(2+n), Refund, 1, holdID(n))
	}
	if s.Holds.find(holdID(4)).row != 0 || s.Holds.find(holdID(5)).row == 0 || s.Holds.done.count != MaxDoneHolds {
		t.Errorf("%d done holds are remembered", s.Holds.done.count)
	}
	if v := s.Take(l, 1<<30, Charge, 1, holdID(1<<21)); !v.Over || v.Before != 1 {
		t.Errorf("beside the open hold: %+v", v)
	}
}

func TestOpenHoldsAreBounded(t *testing.T) {
	l := &Limit{Kind: FirstHitWindow, Max: 1 << 40, Period: time.Hour, Hold: time.Minute}
	var s HeldState
	for n := range MaxOpenHolds {
		if v := s.Take(l, int64(n), Charge, 1, holdID(n)); v.Over {
			t.Fatalf("hold %d: %+v", n, v)
		}
	}
	v := s.Take(l, MaxOpenHolds, Charge, 1, holdID(MaxOpenHolds))
	if want := time.Minute - MaxOpenHolds; !v.Over || v.RetryAfter != want {
		t.Errorf("one more: %+v, want a wait of %v", v, want)
	}
	if v := s.Take(l, MaxOpenHolds, Charge, 1, HoldID{}); v.Over {
		t.Errorf("a hit without a hold: %+v", v)
	}
}

// A full set stays in its memory while holds are closed in any order and others are opened.
func TestFullSetDoesNotGrow(t *testing.T) {
	t.Parallel()
	l := &Limit{Kind: Concurrency, Max: MaxOpenHolds, Period: time.Hour, Hold: time.Hour}
	var s HeldState
	rnd, open := rand.New(rand.NewPCG(1, 2)), []int(nil)
	for n := range 2 * MaxOpenHolds {
		if len(open) == MaxOpenHolds {
			i := rnd.IntN(len(open))
			s.Take(l, int64(n), Refund, 1, holdID(2*open[i]+1))
			open[i], open = open[len(open)-1], open[:len(open)-1]
		}
		if v := s.Take(l, int64(n), Charge, 1, holdID(2*n+1)); !v.HoldOpened {
			t.Fatalf("hold %d: %+v", n, v)
		}
		open = append(open, n)
	}
	for _, n := range open {
		if s.Holds.find(holdID(2*n+1)).row == 0 {
			t.Fatalf("hold %d is lost", n)
		}
	}
	if s.Holds.opened.size > 1<<17 || s.Holds.done.size > 1<<15 || s.Bytes() > 6<<20 {
		t.Errorf("%d and %d rows, %d bytes", s.Holds.opened.size, s.Holds.done.size, s.Bytes())
	}
}

// FuzzHolds plays random schedules of parallel callers, with repeats, late and missing messages in any order. Whatever
// happens, what is settled in a window and what is open exceed the limit by at most what settlements exceed their
// reservations.
func FuzzHolds(f *testing.F) {
	f.Add(uint64(1), uint8(0), []byte("acquire release settle"))
	f.Add(uint64(2), uint8(5), []byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, seed uint64, kind uint8, script []byte) {
		l := &Limit{
			Kind: Kind(kind) % numKinds, Max: 1 + seed%20, Period: time.Minute, Hold: time.Duration(1+seed%50) * time.Second,
			ReleaseUnsettled: seed%2 == 0,
		}
		switch l.Kind {
		case Concurrency:
			l.Period, l.ReleaseUnsettled = l.Hold, false
		case GCRA:
			l.Burst = seed % 7
		}
		checkGuarantee(t, l, script)
	})
}

// checkGuarantee plays a schedule of which each byte is one message, and checks the bound after each.
func checkGuarantee(t *testing.T, l *Limit, script []byte) {
	t.Helper()
	var s HeldState
	at := int64(1_800_000_000_000_000_000)
	excess := uint64(0)
	for _, c := range script {
		at += int64(c>>4) * int64(time.Second)
		op, amount := []Op{Charge, Refund, Force, Charge}[c&3], uint64(c>>2)%7
		v := s.Take(l, at, op, amount, holdID(int(c>>1)%11))
		excess += v.HoldExcess
		if !op.CanBeRefused() && v.Over {
			t.Fatalf("%v of %d is refused: %+v", op, amount, v)
		}
		open, units := s.Holds.OpenHolds()
		if l.Kind == Concurrency && (units > l.Max || open > int(l.Max)) {
			t.Fatalf("%d holds of %d units are open, of %d", open, units, l.Max)
		}
		if base := s.Base.Take(l, at, Look, 0); base.Before+units > l.Capacity()+excess {
			t.Fatalf("%d are charged and %d open, of %d and an excess of %d", base.Before, units, l.Capacity(), excess)
		}
		if added := v.After - v.Before; op == Charge && added != 0 && (added != amount || !v.HoldOpened) {
			t.Fatalf("a charge of %d added %d", amount, added)
		}
	}
}

// An open hold counts in each window, so no outcome of a limit with holds names one.
func TestHoldsHaveNoWindowEnd(t *testing.T) {
	t.Parallel()
	for kind := range numKinds {
		l := Limit{Kind: kind, Max: 3, Period: time.Minute, Hold: time.Minute}
		if l.HasWindowEnd() {
			t.Errorf("%v has a WindowEnd", kind)
		}
		var s HeldState
		for _, op := range []Op{Charge, Look, Refund, Force} {
			for _, id := range []HoldID{{}, {1}} {
				if v := s.Take(&l, thursday.UnixNano(), op, 2, id); v.WindowEnd != 0 {
					t.Errorf("%v, %v: %+v", kind, op, v)
				}
			}
		}
	}
}
