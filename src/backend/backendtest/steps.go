package backendtest

import (
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

const (
	charge = algorithm.Charge
	look   = algorithm.Look
	refund = algorithm.Refund
	force  = algorithm.Force
)

// step is one hit on one key.
type step struct {
	at        time.Duration // after epoch
	op        algorithm.Op
	n         uint64
	over      bool
	after     uint64
	remaining uint64
	retry     time.Duration
}

func testSteps(t *testing.T, open func(*testing.T) limiter.Backend) {
	const s = time.Second
	tests := []struct {
		name  string
		limit *algorithm.Limit
		steps []step
	}{
		{"a window ends at its edge", fixed(2, 60*s), []step{
			{at: 10 * s, n: 1, after: 1, remaining: 1},
			{at: 59 * s, n: 1, after: 2, remaining: 0},
			{at: 59 * s, n: 1, over: true, after: 3, retry: 1 * s},
			{at: 60 * s, n: 1, after: 1, remaining: 1},
			{at: 119 * s, n: 1, after: 2, remaining: 0},
			{at: 125 * s, n: 2, after: 2, remaining: 0},
		}},
		{"refused hits count", fixed(10, 60*s), []step{
			{n: 8, after: 8, remaining: 2},
			{n: 3, over: true, after: 11, retry: 60 * s},
			{n: 1, over: true, after: 12, retry: 60 * s},
		}},
		{"refused hits do not count", uncounted(10, 60*s), []step{
			{n: 8, after: 8, remaining: 2},
			{n: 3, over: true, after: 8, retry: 60 * s},
			{n: 2, after: 10, remaining: 0},
			{n: 1, over: true, after: 10, retry: 60 * s},
		}},
		{"a hit of nothing reads", fixed(1, 60*s), []step{
			{n: 0, after: 0, remaining: 1},
			{n: 1, after: 1, remaining: 0},
			{n: 0, after: 1, remaining: 0},
			{n: 1, over: true, after: 2, retry: 60 * s},
			{n: 0, over: true, after: 2, retry: 60 * s},
		}},
		{"looks write nothing", fixed(3, 60*s), []step{
			{op: look, n: 3, after: 0, remaining: 3},
			{op: look, n: 4, over: true, after: 0, retry: algorithm.Never},
			{n: 2, after: 2, remaining: 1},
			{op: look, n: 1, after: 2, remaining: 1},
			{op: look, n: 2, over: true, after: 2, retry: 60 * s},
			{n: 1, after: 3, remaining: 0},
		}},
		{"refunds stop at empty", fixed(3, 60*s), []step{
			{op: refund, n: 5, after: 0, remaining: 3},
			{n: 3, after: 3, remaining: 0},
			{op: refund, n: 1, after: 2, remaining: 1},
			{n: 1, after: 3, remaining: 0},
			{n: 4, over: true, after: 7, retry: algorithm.Never},
			{op: refund, n: 1, after: 6, remaining: 0},
			{op: refund, n: 100, after: 0, remaining: 3},
		}},
		{"force asks nobody", uncounted(3, 60*s), []step{
			{op: force, n: 5, after: 5, remaining: 0},
			{n: 1, over: true, after: 5, retry: 60 * s},
		}},
		{"nothing passes a limit of 0", fixed(0, 60*s), []step{
			{n: 0, after: 0, remaining: 0},
			{n: 1, over: true, after: 1, retry: algorithm.Never},
		}},
		{"large amounts", fixed(algorithm.MaxAmount, 60*s), []step{
			{n: algorithm.MaxAmount, after: algorithm.MaxAmount, remaining: 0},
			{n: algorithm.MaxAmount, over: true, after: 2 * algorithm.MaxAmount, retry: 60 * s},
		}},
		{"a window of several units", fixed(1, 5*60*s), []step{
			{at: 299 * s, n: 1, after: 1, remaining: 0},
			{at: 299 * s, n: 1, over: true, after: 2, retry: 1 * s},
			{at: 300 * s, n: 1, after: 1, remaining: 0},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			store := open(t)
			for i, st := range tt.steps {
				v := take(t, store, epoch.Add(st.at), algorithm.Hit{Key: []byte("k"), Limit: tt.limit, Op: st.op, Amount: st.n})[0]
				got := step{st.at, st.op, st.n, v.Over, v.After, v.Remaining, v.RetryAfter}
				if got != st {
					t.Fatalf("step %d:\n got %+v\nwant %+v", i, got, st)
				}
			}
		})
	}
}

// testKeys shows that keys are told apart by every byte, and by window.
func testKeys(t *testing.T, open func(*testing.T) limiter.Backend) {
	store := open(t)
	long := make([]byte, 70_000)
	keys := []string{"", "a", "A", "ab", "a b", "a\x00", "a\x00b", "a\r\nb", "\xff\xfe", "a_1", "{a}", "ключ", string(long), string(long[1:])}
	for round := range uint64(2) {
		for i, k := range keys {
			want := uint64(i)*(round+1) + round + 1
			if v := take(t, store, epoch, algorithm.Hit{Key: []byte(k), Limit: fixed(100, time.Hour), Amount: uint64(i) + 1})[0]; v.After != want {
				t.Errorf("key %.20q: got %d, want %d", k, v.After, want)
			}
		}
	}
	minute, hour := fixed(5, time.Minute), fixed(5, time.Hour)
	take(t, store, epoch.Add(time.Minute), algorithm.Hit{Key: []byte("both"), Limit: hour, Amount: 3})
	v := take(t, store, epoch.Add(time.Minute), algorithm.Hit{Key: []byte("both"), Limit: minute, Amount: 1})[0]
	if v.Before != 0 {
		t.Errorf("the minute begins with the %d of the hour", v.Before)
	}
}
