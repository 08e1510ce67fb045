package remote

import "testing"

func TestRoom(t *testing.T) {
	r := Room{MaxCalls: 3, MaxBytes: 100}
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
		{"enter", 40, true, 2, 100},
		{"enter", 1, false, 2, 100},
		{"enter", 0, true, 3, 100},
		{"enter", 0, false, 3, 100},
		{"hold", 50, false, 3, 150}, // copies have to
		{"leave", 0, false, 2, 150},
		{"enter", 10, false, 2, 150},
		{"free", 110, false, 2, 40},
		{"enter", 10, true, 3, 50},
	} {
		in := false
		switch s.do {
		case "enter":
			in = r.Enter(s.n)
		case "leave":
			r.Leave()
		case "hold":
			r.Hold(s.n)
		case "free":
			r.Free(s.n)
		}
		if in != s.in || r.Calls() != s.calls || r.Bytes() != s.bytes {
			t.Fatalf("step %d, %s %d: %t, %d calls, %d bytes; want %+v", i, s.do, s.n, in, r.Calls(), r.Bytes(), s)
		}
	}
}
