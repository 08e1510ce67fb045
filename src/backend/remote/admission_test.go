package remote

import "testing"

func TestAdmission(t *testing.T) {
	r := Admission{MaxCalls: 3, MaxKeyBytes: 100}
	for i, s := range []struct {
		do           string
		n            int
		in           bool
		calls, bytes int64
	}{
		{"enter", 150, true, 1, 150}, // alone it may be larger
		{"enter", 1, false, 1, 150},
		{"leave", 0, false, 0, 150}, // it still stands in a queue
		{"enter", 1, false, 0, 150},
		{"free", 150, false, 0, 0},
		{"enter", 60, true, 1, 60},
		{"enter", 20, false, 1, 60}, // room is left for smaller ones
		{"enter", 10, true, 2, 70},
		{"enter", 8, false, 2, 70},
		{"enter", 7, true, 3, 77},
		{"enter", 0, false, 3, 77},
		{"hold", 50, false, 3, 127}, // copies have to
		{"leave", 0, false, 2, 127},
		{"enter", 1, false, 2, 127},
		{"free", 87, false, 2, 40},
		{"enter", 10, true, 3, 50},
	} {
		in := false
		switch s.do {
		case "enter":
			in = r.TryEnter(s.n)
		case "leave":
			r.waitingCalls.Add(-1)
		case "hold":
			r.heldBytes.Add(int64(s.n))
		case "free":
			r.heldBytes.Add(-int64(s.n))
		}
		if in != s.in || r.WaitingCalls() != s.calls || r.HeldBytes() != s.bytes {
			t.Fatalf("step %d, %s %d: %t, %d calls, %d bytes; want %+v", i, s.do, s.n, in, r.WaitingCalls(),
				r.HeldBytes(), s)
		}
	}
}
