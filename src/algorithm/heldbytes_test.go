package algorithm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// heldLimits are limits with holds of each kind.
func heldLimits() (limits []Limit) {
	for kind := range numKinds {
		l := Limit{Kind: kind, Max: 20, Period: time.Minute, Hold: 10 * time.Second}
		switch kind {
		case GCRA:
			l.Burst = 9
		case Concurrency:
			l.Period = l.Hold
		}
		limits = append(limits, l)
	}
	return limits
}

// A state that was encoded and decoded decides all further hits as the state itself.
func TestHeldStateAsBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, limit := range heldLimits() {
		t.Run(limit.Kind.String(), func(t *testing.T) {
			var state HeldState
			at := thursday.UnixNano()
			for range 2000 {
				at += rnd.Int64N(int64(time.Second)) - int64(100*time.Millisecond)
				encoded, err := state.AppendBinary([]byte("prefix"))
				if err != nil {
					t.Fatal(err)
				}
				var decoded HeldState
				if err := decoded.UnmarshalBinary(encoded[len("prefix"):]); err != nil {
					t.Fatal(err)
				}
				op, amount, id := Op(rnd.IntN(4)), rnd.Uint64N(5), holdID(rnd.IntN(30))
				if rnd.IntN(10) == 0 {
					id = HoldID{}
				}
				got, want := decoded.Take(&limit, at, op, amount, id), state.Take(&limit, at, op, amount, id)
				if got != want {
					t.Fatalf("%v of %d: %+v, want %+v", op, amount, got, want)
				}
				a, _ := decoded.AppendBinary(nil)
				if b, _ := state.AppendBinary(nil); !bytes.Equal(a, b) {
					t.Fatalf("%x, want %x", a, b)
				}
			}
		})
	}
}

func TestHeldStatesOfWrongBytes(t *testing.T) {
	limit := &Limit{Kind: Concurrency, Max: 20, Period: time.Minute, Hold: time.Minute}
	var state HeldState
	for i := range 3 {
		state.Take(limit, thursday.UnixNano()+int64(i), Charge, 1, holdID(i))
	}
	good, _ := state.AppendBinary(nil)
	with := func(offset int, number uint64) []byte {
		bad := bytes.Clone(good)
		binary.LittleEndian.PutUint64(bad[offset:], number)
		return bad
	}
	first, second := heldHeadBytes, heldHeadBytes+holdRecord
	for name, bad := range map[string][]byte{
		"nothing":              nil,
		"a part of the head":   good[:heldHeadBytes-1],
		"a part of a hold":     good[:second+8],
		"no log":               good[:len(good)-8],
		"a part of a log":      good[:len(good)-1],
		"too long":             make([]byte, MaxHeldBytes+1),
		"too many open holds":  with(12*8, MaxOpenHolds+1),
		"too many done holds":  with(13*8, MaxDoneHolds+1),
		"more holds than sent": with(12*8, 4),
		"too many units":       with(first+24, MaxAmount+1),
		"not in order":         with(first+16, uint64(thursday.UnixNano()+5)),
		"of the future":        with(first+2*holdRecord+16, uint64(thursday.UnixNano()+5)),
		"the same hold twice": append(append(bytes.Clone(good[:second]), good[first:second]...),
			good[second+holdRecord:]...),
	} {
		before := state.Holds.opened
		if err := state.UnmarshalBinary(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
		if state.Holds.opened != before {
			t.Errorf("%s: a state that is refused changes the receiver", name)
		}
	}
}

// FuzzHeldStateBytes decodes anything. What is decoded has a bounded size, is encoded as it was, and decides hits.
func FuzzHeldStateBytes(f *testing.F) {
	limits := heldLimits()
	for i := range limits {
		var state HeldState
		for n := range 12 {
			state.Take(&limits[i], thursday.UnixNano()+int64(n)*int64(time.Second), []Op{Charge, Charge, Refund, Force}[n%4], 2,
				holdID(n%7))
		}
		encoded, _ := state.AppendBinary(nil)
		f.Add(encoded, uint8(i))
	}
	f.Fuzz(func(t *testing.T, encoded []byte, kind uint8) {
		var state HeldState
		if state.UnmarshalBinary(encoded) != nil {
			return
		}
		if again, _ := state.AppendBinary(nil); !bytes.Equal(again, encoded) {
			t.Fatalf("%x, want %x", again, encoded)
		}
		if size := state.Bytes(); size > 4*int64(len(encoded)) {
			t.Errorf("%d bytes of memory for an encoding of %d", size, len(encoded))
		}
		l := &limits[int(kind)%len(limits)]
		for n := range 20 {
			at := thursday.UnixNano() + int64(n)*int64(5*time.Second)
			v := state.Take(l, at, Op(n%4), 1, holdID(n%5))
			if empty := state.EmptyAt(l, at, &v); empty < at {
				t.Errorf("empty %v ago, after %+v", time.Duration(at-empty), v)
			}
		}
	})
}

// A state that is forgotten at EmptyAt decides all hits from then on as the state itself would.
func TestEmptyAt(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, limit := range heldLimits() {
		for _, limit.ReleaseUnsettled = range []bool{false, true} {
			t.Run(fmt.Sprint(limit.Kind, limit.ReleaseUnsettled), func(t *testing.T) {
				for range 500 {
					var state HeldState
					at, empty := thursday.UnixNano()+rnd.Int64N(int64(time.Minute)), int64(0)
					for range 1 + rnd.IntN(6) {
						at += rnd.Int64N(int64(8 * time.Second))
						v := state.Take(&limit, at, Op(rnd.IntN(4)), rnd.Uint64N(7), holdID(rnd.IntN(5)))
						if v.Charged || v.HoldsExpired > 0 {
							empty = state.EmptyAt(&limit, at, &v)
						}
					}
					at = max(at, empty)
					state.Take(&limit, at, Look, 0, HoldID{}) // Only the state itself reports the holds that have expired.
					var forgotten HeldState
					for range 6 {
						op, amount, id := Op(rnd.IntN(4)), rnd.Uint64N(7), holdID(rnd.IntN(5))
						got, want := forgotten.Take(&limit, at, op, amount, id), state.Take(&limit, at, op, amount, id)
						if got != want {
							t.Fatalf("%v of %d: %+v, want %+v", op, amount, got, want)
						}
						at += rnd.Int64N(int64(8 * time.Second))
					}
				}
			})
		}
	}
}
