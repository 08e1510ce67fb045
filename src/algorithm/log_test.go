package algorithm

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"
)

// A log that was encoded and decoded decides all further hits as the log itself.
func TestLogAsBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, limit := range []Limit{
		{Kind: SlidingWindow, Max: 20, Period: time.Second},
		{Kind: SlidingWindow, Max: 20, Period: time.Second, CountBlocked: true, MinInterval: 2 * time.Second},
	} {
		var log Log
		at := thursday.UnixNano()
		for range 2000 {
			at += rnd.Int64N(int64(100 * time.Millisecond))
			encoded, err := log.AppendBinary([]byte("prefix"))
			if err != nil {
				t.Fatal(err)
			}
			var decoded Log
			if err := decoded.UnmarshalBinary(encoded[len("prefix"):]); err != nil {
				t.Fatal(err)
			}
			op, amount := Op(rnd.IntN(4)), rnd.Uint64N(5)
			got, want := TakeSliding(&limit, &decoded, at, op, amount), TakeSliding(&limit, &log, at, op, amount)
			if got != want {
				t.Fatalf("%v of %d: %+v, want %+v", op, amount, got, want)
			}
			a, _ := decoded.AppendBinary(nil)
			if b, _ := log.AppendBinary(nil); !bytes.Equal(a, b) {
				t.Fatalf("%x, want %x", a, b)
			}
		}
	}
}

func TestLogsOfWrongBytes(t *testing.T) {
	var log Log
	limit := &Limit{Kind: SlidingWindow, Max: 20, Period: time.Second}
	for i := range int64(2) {
		TakeSliding(limit, &log, thursday.UnixNano()+i, Charge, 1)
	}
	good, _ := log.AppendBinary(nil)
	backwards := append(append(append([]byte(nil), good[:8]...), good[24:]...), good[8:24]...)
	for _, bad := range [][]byte{nil, good[:7], good[:len(good)-1], backwards, make([]byte, MaxLogBytes+16)} {
		before := log
		if err := log.UnmarshalBinary(bad); err == nil {
			t.Errorf("%d bytes: no error", len(bad))
		}
		if log.Len() != before.Len() {
			t.Error("a log that is refused changes the receiver")
		}
	}
}
