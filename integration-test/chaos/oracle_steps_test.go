package chaos

import (
	"testing"
	"time"
)

// midnight is where a window begins.
var midnight = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// burst is n calls in a row, one in each step, that took so long each.
func burst(from time.Duration, n int, step, took time.Duration) (list []span) {
	for i := range n {
		at := midnight.Add(from + time.Duration(i)*step)
		list = append(list, span{at, at.Add(took)})
	}
	return list
}

func TestFullest(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name     string
		kind     kind
		allowed  allowance
		admitted [][]span
		want     fullness
	}{
		{"nothing", window, 1, nil, fullness{0, 20}},
		{"as many as may", window, 1, [][]span{burst(0, 20, ms, ms)}, fullness{20, 20}},
		{"one more", window, 1, [][]span{burst(0, 21, ms, ms)}, fullness{21, 20}},
		{
			"the windows before and after", window, 1,
			[][]span{burst(1900*ms, 20, ms, ms), burst(2000*ms, 20, ms, ms)},
			fullness{20, 20},
		},
		{
			"at the edge, in whichever", window, 1,
			[][]span{burst(1000*ms, 20, ms, ms), burst(1999*ms, 5, 0, 10*ms), burst(2100*ms, 20, ms, ms)},
			fullness{20, 20},
		},
		{
			"the second window too full", window, 1,
			[][]span{burst(0, 20, ms, ms), burst(2100*ms, 22, ms, ms)},
			fullness{22, 20},
		},
		{"once more", window, 2, [][]span{burst(0, 40, ms, ms)}, fullness{40, 40}},

		{"a log, over the edge", log, 1, [][]span{burst(1900*ms, 11, ms, ms), burst(2000*ms, 10, ms, ms)}, fullness{21, 20}},
		{"a log, a period apart", log, 1, [][]span{burst(0, 20, 0, ms), burst(2000*ms, 20, 0, ms)}, fullness{20, 20}},
		{
			"a log, answered too late to say", log, 1,
			[][]span{burst(0, 20, 0, ms), burst(1990*ms, 20, 0, 20*ms)},
			fullness{20, 20},
		},

		{"a bucket at once", bucket, 1, [][]span{burst(0, 20, 0, ms)}, fullness{20, 20}},
		{"a bucket at once, and one more", bucket, 1, [][]span{burst(0, 21, 0, ms)}, fullness{21, 20}},
		{
			"a bucket, and its drops", bucket, 1,
			[][]span{burst(0, 20, 0, ms), burst(100*ms, 10, 100*ms, ms)},
			fullness{20, 20},
		},
		{"drops too soon", bucket, 1, [][]span{burst(0, 20, 0, ms), burst(50*ms, 10, 50*ms, ms)}, fullness{29, 24}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all []span
			for _, list := range tt.admitted {
				all = append(all, list...)
			}
			got := fullest(tt.kind, tt.allowed, all)
			if got != tt.want || got.exceeded() != (tt.want.admitted > tt.want.most) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestIdeal(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name string
		kind kind
		sent [][]span
		want int
	}{
		{"a window", window, [][]span{burst(0, 30, ms, 0)}, 20},
		{"two windows", window, [][]span{burst(1990*ms, 30, ms, 0)}, 10 + 20},
		{"a log over the edge", log, [][]span{burst(1990*ms, 30, ms, 0)}, 20},
		{"a log a period later", log, [][]span{burst(0, 30, ms, 0), burst(2005*ms, 30, 0, 0)}, 20 + 6},
		{"a bucket", bucket, [][]span{burst(0, 30, 0, 0)}, 20},
		{"a bucket at twice its pace", bucket, [][]span{burst(0, 40, 50*ms, 0)}, 20 + 19},
		{"a bucket, rested", bucket, [][]span{burst(0, 30, 0, 0), burst(time.Hour, 30, 0, 0)}, 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var sent []time.Time
			for _, list := range tt.sent {
				for _, s := range list {
					sent = append(sent, s.sent)
				}
			}
			if got := ideal(tt.kind, sent); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// The oracle finds nothing wrong with what the model admits, and something as soon
// as it is all at once.
func TestOraclesAgree(t *testing.T) {
	for _, k := range []kind{window, log, bucket} {
		var sent []time.Time
		var admitted []span
		at, before := midnight, 0
		for i := range 400 {
			at = at.Add(time.Duration(i*7919%101) * time.Millisecond) // 50 ms on average, in no order
			sent = append(sent, at)
			if n := ideal(k, sent); n > before {
				before = n
				admitted = append(admitted, span{at, at})
			}
		}
		if f := fullest(k, 1, admitted); f.exceeded() || f.admitted < limit {
			t.Errorf("%v: the fullest is %+v", k, f)
		}
		for i := range admitted {
			admitted[i] = span{at, at}
		}
		if f := fullest(k, 1, admitted); !f.exceeded() {
			t.Errorf("%v: all at once is %+v", k, f)
		}
	}
}
