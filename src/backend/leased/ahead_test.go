package leased

import (
	"context"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// windows are the counts of fixed windows in a store, by key and end.
type windows map[string]uint64

func nameOf(key string, end int64) string { return fmt.Sprint(key, " until ", time.Unix(0, end).UTC()) }

// newWindows returns a store of fixed windows whose callers' clock shows *at, and its counts.
func newWindows(at *int64) (backend.Backend, windows) {
	counts := make(windows)
	return storeFunc(func(b *backend.Batch) {
		if err := b.Validate(); err != nil {
			panic(err)
		}
		now := *at + int64(b.Ahead)
		for i := range b.Hits {
			h := &b.Hits[i]
			_, end := h.Limit.WindowBounds(now)
			amount := h.Amount
			if h.Window != 0 && h.Window != end {
				amount = 0
			}
			name := nameOf(string(h.Key), end)
			counts[name], b.Verdicts[i].Outcome = algorithm.TakeFixed(h.Limit, counts[name], now, h.Op, amount)
		}
	}), counts
}

// useAhead uses units of k in the window from epochOfTests, the last one just before that ends.
func useAhead(t *testing.T, s *Store, at *int64, limit *algorithm.Limit, units int) {
	t.Helper()
	*at = epochOfTests
	for n := range units {
		if n == units-1 {
			*at = epochOfTests + int64(limit.Period) - int64(min(limit.Period/5, mostAhead*9/10))
		}
		mustTake(t, s, hit("k", limit, algorithm.Charge, 1))
	}
	s.Refill(t.Context())
}

// A busy counter has units of the next window when that begins. They cannot be used before, and count in that window.
func TestUnitsOfNextWindow(t *testing.T) {
	secondly := &algorithm.Limit{Max: 100, Period: time.Second}
	hourly := &algorithm.Limit{Max: 100, Period: time.Hour}
	one := &algorithm.Limit{Max: 3, Period: time.Minute}
	for _, c := range []struct {
		name        string
		limit       *algorithm.Limit
		units       int
		ahead, sent uint64 // in the store, and hits of the next window that ask it
	}{
		{"busy", minutely, 5, 25, 0},
		{"a short window", secondly, 5, 25, 0},
		{"twice in a window", minutely, 2, 25, 0},
		{"not busy", minutely, 0, 0, 1},
		{"a long window", hourly, 5, 0, 1},
		{"one unit at a time", one, 3, 0, 1},
	} {
		var at int64
		shared, counts := newWindows(&at)
		s := newTestStore(shared, 2, &at)
		useAhead(t, s, &at, c.limit, c.units)
		begins := epochOfTests + int64(c.limit.Period)
		next := nameOf("k", begins+int64(c.limit.Period))
		if counts[next] != c.ahead {
			t.Errorf("%s: %d units are taken ahead, want %d", c.name, counts[next], c.ahead)
		}
		mustTake(t, s, hit("k", c.limit, algorithm.Charge, 1))
		if s.Refill(t.Context()); counts[next] != c.ahead {
			t.Errorf("%s: %d units are taken ahead at the second time, want %d", c.name, counts[next], c.ahead)
		}
		l, sent := leaseOf(s, "k", c.limit), s.Stats().Sent
		held := l.held
		if s.Tick(t.Context()); l.held != held || l.end != begins {
			t.Errorf("%s: %d are held before the window begins, want %d", c.name, l.held, held)
		}
		at = begins
		v := mustTake(t, s, hit("k", c.limit, algorithm.Charge, 1))[0]
		if n := s.Stats().Sent - sent; n != c.sent || v.Over || v.After != 1 {
			t.Errorf("%s: %d hits ask the store, want %d; %+v", c.name, n, c.sent, v)
		}
		if c.ahead > 0 && (uint64(l.held) != c.ahead-1 || s.Stats().UnitsHeld != c.ahead-1) {
			t.Errorf("%s: %d are held, %d are said to be", c.name, l.held, s.Stats().UnitsHeld)
		}
	}
}

// A replica that needed one unit of a window, which it had before, takes none of the window after that.
func TestQuietWindow(t *testing.T) {
	var at int64
	shared, counts := newWindows(&at)
	s := newTestStore(shared, 2, &at)
	useAhead(t, s, &at, minutely, 5)
	at = epochOfTests + 2*int64(minutely.Period) - int64(mostAhead/2)
	mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))
	s.Refill(t.Context())
	if n := counts[nameOf("k", epochOfTests+3*int64(minutely.Period))]; n != 0 || s.Stats().Sent != 1 {
		t.Errorf("%d units are taken ahead, want 0; %d hits asked the store, want 1", n, s.Stats().Sent)
	}
}

// Units of the next window that are not needed go back once it is contended, though no hit comes, and all of them if
// the replica ends or operators reset counters before it begins. They are of no use after its end.
func TestUnneededUnitsOfNextWindow(t *testing.T) {
	const begins = 60 * second
	for _, c := range []struct {
		name string
		do   func(s *Store, at *int64)
		left uint64
	}{
		{"contended", func(s *Store, at *int64) {
			*at += begins / 60
			s.Tick(context.Background())
			s.Heard([][]byte{appendName(nil, []byte("k"), minutely, false)}, true)
			*at += 2 * int64(tick)
			s.Tick(context.Background())
		}, 0},
		{"the replica ends", func(s *Store, _ *int64) { s.Finish(context.Background()) }, 0},
		{"the replica ends in the window", func(s *Store, at *int64) {
			*at += begins / 60
			s.Finish(context.Background())
		}, 0},
		{"a reset", func(s *Store, _ *int64) { _ = s.ResetPrefixes(context.Background(), nil, false, nil) }, 0},
		{"the counter is set", func(s *Store, at *int64) {
			*at += begins / 60
			_ = s.SetCounts(context.Background(), &backend.Batch{
				Hits: []backend.Hit{hit("k", minutely, algorithm.Charge, 0)}, Verdicts: make([]backend.Verdict, 1),
			})
		}, 0},
		{"the lease was evicted", func(s *Store, at *int64) {
			*at += begins / 60
			l := leaseOf(s, "k", minutely)
			for i := range s.shards {
				if slot := uint32(1); s.shards[i].leases > 0 {
					s.takeBack(&s.shards[i], l, s.now())
					s.remove(&s.shards[i], l, slot)
				}
			}
			s.Tick(context.Background())
		}, 0},
		{"another limit", func(s *Store, at *int64) {
			*at += begins / 60
			lower := &algorithm.Limit{Max: 50, Period: time.Minute}
			_ = s.Take(context.Background(), &backend.Batch{
				Hits: []backend.Hit{hit("k", lower, algorithm.Charge, 1)}, Verdicts: make([]backend.Verdict, 1),
			})
			s.Tick(context.Background())
		}, 1},
		{"the window has ended", func(s *Store, at *int64) {
			*at += 2 * begins
			s.Tick(context.Background())
		}, 25},
	} {
		var at int64
		shared, counts := newWindows(&at)
		s := newTestStore(&edits{Backend: shared, count: func() uint64 { return 0 }, then: func() {}}, 2, &at)
		useAhead(t, s, &at, minutely, 5)
		next := nameOf("k", epochOfTests+2*begins)
		if counts[next] != 25 {
			t.Fatalf("%d units are taken ahead", counts[next])
		}
		c.do(s, &at)
		if counts[next] != c.left || s.ahead.count.Load() != 0 {
			t.Errorf("%s: the store has %d, want %d; %d replies wait", c.name, counts[next], c.left, s.ahead.count.Load())
		}
		if s.Stats().UnitsHeld > 25 {
			t.Errorf("%s: %d are held", c.name, s.Stats().UnitsHeld)
		}
	}
}

// A next window that is used up already gets nothing back.
func TestNextWindowIsUsedUp(t *testing.T) {
	var at int64
	shared, counts := newWindows(&at)
	s := newTestStore(shared, 2, &at)
	next := nameOf("k", epochOfTests+120*second)
	counts[next] = 100 // by a replica whose clock is ahead
	useAhead(t, s, &at, minutely, 5)
	if s.Finish(t.Context()); counts[next] != 100 {
		t.Errorf("the store has %d, want 100", counts[next])
	}
}

// While units of a window are under way, which were asked for ahead, a hit asks for its own only: nothing is left too
// early. A hit that the store refuses uses units that came meanwhile.
func TestUnitsUnderWay(t *testing.T) {
	var at int64
	var late func()
	shared, counts := newWindows(&at)
	s := newTestStore(storeFunc(func(b *backend.Batch) {
		_ = shared.Take(t.Context(), b)
		if then := late; then != nil {
			late = nil
			then()
		}
	}), 1, &at)
	next := nameOf("k", epochOfTests+120*second)
	at = epochOfTests
	for range 5 {
		mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))
	}
	at = epochOfTests + 60*second - 1
	mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))
	late = func() {
		at = epochOfTests + 60*second
		if v := mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))[0]; v.Over || counts[next] != 51 {
			t.Errorf("%+v; the store has %d, want 50 and 1", v, counts[next])
		}
	}
	if s.Refill(t.Context()); leaseOf(s, "k", minutely).held != 50 {
		t.Errorf("%d are held, want 50", leaseOf(s, "k", minutely).held)
	}

	l := leaseOf(s, "k", minutely)
	held := l.held
	l.held, counts[next] = 0, 100
	late = func() { l.held = held }
	if v := mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))[0]; v.Over || l.held != held-1 || counts[next] != 100 {
		t.Errorf("%+v; %d are held, want %d", v, l.held, held-1)
	}
}

// Replies that wait for their windows are bounded.
func TestAheadRepliesAreBounded(t *testing.T) {
	var a aheadReplies
	sh := new(shard)
	for slot := range uint32(maxAheadReplies + 10) {
		a.add(ref{shard: sh, slot: slot}, aheadReply{hit: hit("k", minutely, algorithm.Charge, 1)})
	}
	if n := len(a.all); n != maxAheadReplies || len(a.takeAll()) != n || a.count.Load() != 0 {
		t.Errorf("%d replies wait, want %d", n, maxAheadReplies)
	}
}
