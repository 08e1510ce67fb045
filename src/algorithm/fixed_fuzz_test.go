package algorithm

import (
	"testing"
	"time"
)

// event is a hit that changed a counter, as the simulator remembers it.
type event struct {
	at       int64
	amount   uint64
	give     bool // back
	admitted bool // asked and passed
}

// simulator knows a fixed window the dumb way: it keeps all that ever
// happened, and adds up what lies in the window whenever it is asked.
type simulator struct {
	limit  Limit
	events []event
}

// window adds up the events in the window of the instant at: the count, and
// the units that were admitted and not given back.
func (s *simulator) window(at int64) (count, admitted uint64) {
	seconds := int64(s.limit.Period / time.Second)
	number := func(at int64) int64 { return at / int64(time.Second) / seconds } // at is not negative
	for _, e := range s.events {
		switch {
		case number(e.at) != number(at):
		case e.give:
			count -= min(count, e.amount)
			admitted -= min(admitted, e.amount)
		default:
			count += e.amount
			if e.admitted {
				admitted += e.amount
			}
		}
	}
	return count, admitted
}

// windowEnd counts seconds to the next one that begins a window.
func (s *simulator) windowEnd(at int64) int64 {
	second := at/int64(time.Second) + 1
	for second%int64(s.limit.Period/time.Second) != 0 {
		second++
	}
	return second * int64(time.Second)
}

// hit applies op and says whether it passes.
func (s *simulator) hit(at int64, op Op, amount uint64) (passes bool) {
	count, _ := s.window(at)
	passes = s.limit.Max > 0 && count+amount <= s.limit.Max
	switch op {
	case Look:
	case Charge:
		if passes || s.limit.CountBlocked {
			s.events = append(s.events, event{at, amount, false, passes})
		}
	case Refund:
		passes = true
		s.events = append(s.events, event{at, amount, true, false})
	case Force:
		passes = true
		s.events = append(s.events, event{at, amount, false, false})
	}
	return passes
}

// FuzzTakeFixed plays a script of hits against the simulator: three bytes each
// for the operation, the time that passes, and the amount.
func FuzzTakeFixed(f *testing.F) {
	f.Add(uint8(3), uint8(1), false, []byte{0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 9, 1})
	f.Add(uint8(10), uint8(5), true, []byte{0, 1, 8, 0, 1, 3, 1, 0, 2, 2, 0, 9, 0, 50, 10})
	f.Add(uint8(0), uint8(2), true, []byte{1, 0, 0, 0, 0, 1, 3, 3, 3, 2, 0, 200, 0, 255, 0})
	f.Add(uint8(255), uint8(60), false, []byte{3, 255, 255, 0, 0, 1, 2, 0, 1, 0, 0, 1, 1, 1, 255})
	f.Fuzz(func(t *testing.T, most, seconds uint8, countBlocked bool, script []byte) {
		if len(script) > 3*300 {
			return // the simulator is quadratic
		}
		limit := Limit{Max: uint64(most), Period: time.Duration(max(seconds, 1)) * time.Second, CountBlocked: countBlocked}
		if err := limit.Validate(); err != nil {
			t.Fatal(err)
		}
		sim := simulator{limit: limit}
		at := thursday.UnixNano()
		var count uint64
		for window := at; len(script) >= 3; script = script[3:] {
			op, amount := Op(script[0]%4), uint64(script[2])
			at += int64(script[1]) * int64(100*time.Millisecond)
			if start, _ := WindowBounds(at, limit.Period); start != window {
				window, count = start, 0
			}
			before := count
			var v Outcome
			count, v = TakeFixed(&limit, count, at, op, amount)
			checkFixed(t, &limit, before, at, op, amount, count, v)
			if passes := sim.hit(at, op, amount); passes == v.Over {
				t.Fatalf("%v of %d at %d with %d counted: over is %t", op, amount, at, before, v.Over)
			}
			want, admitted := sim.window(at)
			if count != want {
				t.Fatalf("%v of %d at %d: the count is %d, want %d", op, amount, at, count, want)
			}
			if end := sim.windowEnd(at); v.WindowEnd != end {
				t.Fatalf("the window of %d ends at %d, want %d", at, v.WindowEnd, end)
			}
			if admitted > limit.Max {
				t.Fatalf("%d admitted in one window, the limit is %d", admitted, limit.Max)
			}
			// What Remaining promises passes, and not a unit more.
			if v.Remaining > 0 {
				if _, more := TakeFixed(&limit, count, at, Look, v.Remaining); more.Over {
					t.Fatalf("%d remaining at %d, but they do not pass", v.Remaining, at)
				}
			}
			if _, more := TakeFixed(&limit, count, at, Look, v.Remaining+1); !more.Over && !v.Over {
				t.Fatalf("%d remaining at %d, but one more passes", v.Remaining, at)
			}
		}
	})
}
