package remote

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"ratelimit/src/backend"
)

// sendAll has w send what waits, and returns the keys in order.
func sendAll(t *testing.T, w *writer) []string {
	t.Helper()
	for w.receiveArrivedCalls(); w.waitingCalls() > 0; w.receiveArrivedCalls() {
		w.composeBatch()
		w.sendBatch(t.Context())
	}
	return w.exchange.(*fakeExchange).keys
}

// A call with few keys does not wait for all keys of one with many.
func TestSmallCallsOvertakeLargeOnes(t *testing.T) {
	t.Parallel()
	many := numbered("a", 1000)
	for _, tt := range []struct {
		name  string
		calls [][]string
		key   string
		want  int // the latest place at which key is sent
	}{
		{"alone", [][]string{{"k"}}, "k", 0},
		{"behind a large one", [][]string{many, {"k"}}, "k", 0},
		{"behind sixteen", append(slices.Repeat([][]string{many}, 16), []string{"k"}), "k", 0},
		{"on the last key of a large one", [][]string{many, {"a999"}}, "a999", 0},
		{"of ten keys, the last", [][]string{many, numbered("b", 10)}, "b9", 9},
		{"the large one in its own order", [][]string{many}, "a500", 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := fakeWriter(fakeStore(64))
			var calls []*Call
			for _, keys := range tt.calls {
				c := callOf(CommandCost, false, keys...)
				if err := w.enqueue(c); err != nil {
					t.Fatal(err)
				}
				calls = append(calls, c)
			}
			order := sendAll(t, w)
			if at := slices.Index(order, tt.key); at < 0 || at > tt.want {
				t.Errorf("place %d of %s, want at most %d; the first: %v", at, tt.key, tt.want,
					order[:min(5, len(order))])
			}
			for i, c := range calls {
				if c.nextUnsentHit != len(c.Hits) || len(c.resultsReady) != 1 || !c.removeHolder() {
					t.Errorf("call %d: %d hits are sent, or something still holds it", i, c.nextUnsentHit)
				}
			}
		})
	}
}

// A full queue refuses whole calls, and does not hold them.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	s := fakeStore(64)
	s.Config.MaxWaitingCalls = 1
	w := fakeWriter(s)
	if err := w.enqueue(callOf(CommandCost, false, "a", "b", "c")); err != nil {
		t.Fatal(err)
	}
	c := callOf(CommandCost, false, "d")
	if err := w.enqueue(c); !errors.Is(err, ErrTooManyCalls) || c.nextUnsentHit != 0 || !c.removeHolder() {
		t.Errorf("got %v", err)
	}
	if got := sendAll(t, w); len(got) != 3 {
		t.Errorf("sent %v", got)
	}
}

// A call that waits in the queue while the server answers others is an overload, not an
// outage.
func TestOverloadIsNoOutage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		queued  bool
		skipped bool
		replies []int // ms after the call came
		want    error
	}{
		{"nothing was answered", true, false, nil, ErrTimeout},
		{"it waits while others are answered", true, false, []int{10, 20, 40}, backend.ErrOverload},
		{"it was sent, and others are answered", false, false, []int{10, 20, 40}, ErrTimeout},
		{"it waits, and the server stands still soon", true, false, []int{1, 2, 3}, ErrTimeout},
		{"one answer may be to what was under way", true, false, []int{40}, ErrTimeout},
		{"one answer is enough if it was skipped", true, true, []int{40}, backend.ErrOverload},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := fakeWriter(fakeStore(64))
			c := callOf(CommandCost, false, "k")
			if err := w.enqueue(c); err != nil {
				t.Fatal(err)
			}
			c.delayedByFullBatch.Store(tt.queued)
			c.skippedAsLate.Store(tt.skipped)
			for _, ms := range tt.replies {
				w.progress.RecordAnswer(c.waitStart.Since.Add(time.Duration(ms) * time.Millisecond))
			}
			now := c.waitStart.Since.Add(50 * time.Millisecond)
			if got := c.lateError(ErrTimeout, now); !errors.Is(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if got := c.lateError(context.Canceled, now); !errors.Is(got, context.Canceled) {
				t.Errorf("a caller that left is told %v", got)
			}
		})
	}
}

// A large call that cannot be done in time makes room for those that can, before
// anything of it is sent. Alone it is always tried.
func TestHopelessCalls(t *testing.T) {
	t.Parallel()
	calls := func(left ...time.Duration) (w *writer, list []*Call) {
		w = fakeWriter(fakeStore(1 << 20))
		for _, l := range left {
			c := callOf(20*time.Microsecond, false, numbered("k", 1000)...)
			c.deadline = time.Now().Add(l)
			if err := w.enqueue(c); err != nil {
				t.Fatal(err)
			}
			list = append(list, c)
		}
		w.receiveArrivedCalls()
		w.composeBatch()
		return w, list
	}
	w, list := calls(time.Millisecond, time.Hour, time.Millisecond)
	if w.partlySentCall != list[1] || !list[0].skippedAsLate.Load() || list[1].skippedAsLate.Load() ||
		list[0].nextUnsentHit != 0 {
		t.Errorf("the first has sent %d hits, the second %d, the third %d", list[0].nextUnsentHit,
			list[1].nextUnsentHit, list[2].nextUnsentHit)
	}
	if w, list = calls(time.Millisecond); w.partlySentCall != list[0] || list[0].skippedAsLate.Load() {
		t.Error("the only one is not tried")
	}
}
