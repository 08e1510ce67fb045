package h2

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestTakenBackCalls has many calls undecided at a time, as while a store stands still, and takes some back.
func TestTakenBackCalls(t *testing.T) {
	t.Parallel()
	const many = 10 * maxWaste
	for _, tt := range []struct {
		name    string
		timeout string
		waits   time.Duration // the time between the calls and the resets.
		resets  int
		isFlood bool
	}{
		{"no resets", "9S", 0, 0, false},
		{"resets at once", "9S", 0, many, true},
		{"few resets at once", "9S", 0, maxWaste/2 - 100, false},
		{"resets before the timeout", "9S", time.Second, many, true},
		{"resets after the timeout", "800m", time.Second, many, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := &slowStore{done: make(chan struct{})}
			s := startServer(t, Config{DecideWaits: true, Decide: store.decide})
			c := s.connect()
			c.must(c.WriteWindowUpdate(0, 1<<20))
			c.expectAlive()
			s.onlyConn().makeSlow()
			var ids []uint32
			for i := range many {
				timeout := tt.timeout
				if tt.timeout == "9S" && i%2 == 0 { // Another class of timeouts, so that batches are sorted by them.
					timeout = "5S"
				}
				ids = append(ids, c.call("slow", "grpc-timeout", timeout))
			}
			c.flush()
			time.Sleep(tt.waits)
			rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
			for _, id := range ids[:tt.resets] {
				c.reset(id)
				if c.tryFlush() != nil {
					break
				}
			}
			if tt.isFlood {
				c.expectGoAway(http2.ErrCodeEnhanceYourCalm)
				store.release()
				return
			}
			c.flush()
			store.release()
			for _, id := range ids[tt.resets:] {
				c.expectAnswer(id, "slow")
			}
			c.expectAlive()
		})
	}
}

// TestEarlyResets: a client may take back a call after its timeout, but not as many as it likes by tiny timeouts.
func TestEarlyResets(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		timeout, after time.Duration
		isEarly        bool
	}{
		{0, time.Hour, true},
		{time.Second, 0, true},
		{time.Second, 800 * time.Millisecond, true},
		{time.Second, 900 * time.Millisecond, false}, // The client's clock started before.
		{time.Second, time.Second, false},
		{5 * time.Millisecond, time.Second, true},
	} {
		received := time.Now()
		c := &conn{reader: reader{lastRead: received.Add(tt.after)}}
		if got := c.isEarly(received, tt.timeout); got != tt.isEarly {
			t.Errorf("a reset %v after a call with a timeout of %v: early %t", tt.after, tt.timeout, got)
		}
	}
}

// TestFindInBatch compares find with a search of all calls.
func TestFindInBatch(t *testing.T) {
	t.Parallel()
	for range 2000 {
		var b Batch
		ids := rand.Perm(30)[:rand.IntN(20)]
		if rand.IntN(2) == 0 {
			slices.Sort(ids)
		}
		for _, id := range ids {
			b.all = append(b.all, Call{streamID: uint32(2*id + 1), Timeout: time.Duration(rand.IntN(3)) * time.Second})
		}
		if rand.IntN(2) == 0 {
			b.sort()
		}
		for id := range 40 {
			call := b.find(uint32(2*id + 1))
			if (call != nil) != slices.Contains(ids, id) || call != nil && call.streamID != uint32(2*id+1) {
				t.Fatalf("stream %d among %+v: %+v", 2*id+1, b.all, call)
			}
		}
	}
}
