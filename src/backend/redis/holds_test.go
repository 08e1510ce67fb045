package redis

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/redistest"
)

// Hundreds of holds that are opened, settled, released and expire in random order agree with algorithm.HeldState, and
// leave nothing behind when they are forgotten.
func TestManyHoldsAgainstArithmetic(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	store := open(t, Config{Addr: server.Addr})
	gcra := algorithm.Limit{
		Kind: algorithm.GCRA, Max: 999_983, Period: algorithm.MaxPeriod, Burst: 700,
		Hold: 24 * time.Hour,
	}
	fixed := algorithm.Limit{Max: 400, Period: time.Hour, Hold: 10 * time.Minute}
	for n, l := range []algorithm.Limit{
		{Kind: algorithm.Concurrency, Max: 300, Period: time.Minute, Hold: time.Minute},
		gcra, fixed,
		{Kind: algorithm.SlidingWindow, Max: 400, Period: time.Hour, Hold: 10 * time.Minute, ReleaseUnsettled: true},
	} {
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		rnd := rand.New(rand.NewPCG(uint64(n), 1))
		var state algorithm.HeldState
		now := epoch
		for step := range 1200 {
			switch rnd.IntN(100) {
			case 0:
				now = now.Add(l.Hold / 2).Truncate(time.Microsecond)
			default:
				now = now.Add(time.Duration(rnd.Int64N(int64(l.Hold) / 150))).Truncate(time.Microsecond)
			}
			h := backend.Hit{
				Key: fmt.Appendf(nil, "k%d_", n), Limit: &l, Amount: 1 + rnd.Uint64N(2),
				HoldID: backend.NewHoldID([]byte{'a', byte(rnd.IntN(250))}),
			}
			if op := rnd.IntN(5); op < 2 {
				h.Op = []algorithm.Op{algorithm.Refund, algorithm.Force}[op]
			}
			if step == 1199 {
				now, h = now.Add(2*l.Hold), backend.Hit{Key: h.Key, Limit: &l, Op: algorithm.Look}
			}
			want := state.Take(&l, now.UnixNano(), h.Op, h.Amount, h.HoldID)
			b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: now}
			if err := store.Take(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
			if got := b.Verdicts[0]; got != (backend.Verdict{Outcome: want}) {
				t.Fatalf("%v, step %d at %v, %v of %d:\n got %+v\nwant %+v", l.Kind, step, now, h.Op, h.Amount, got,
					want)
			}
		}
		key := string(remote.AppendHoldsKey(nil, &backend.Hit{Key: fmt.Appendf(nil, "k%d_", n), Limit: &l}))
		if l.Kind == algorithm.Concurrency {
			key = "{k0_}|co"
		}
		// The sums, and perhaps a place that the next hold overwrites.
		if fields := server.Do(t, "HLEN", key); fields != int64(1) && fields != int64(2) {
			t.Errorf("%v: %v fields are left without holds", l.Kind, fields)
		}
	}
}

// With the clock of Redis holds that are done are forgotten some at a time, but each is unknown as soon as its time has
// passed.
func TestDoneHoldsAreForgotten(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	store := open(t, Config{Addr: server.Addr})
	l := &algorithm.Limit{
		Kind: algorithm.Concurrency, Max: 10, Period: 20 * time.Millisecond,
		Hold: 20 * time.Millisecond,
	}
	take := func(id string, op algorithm.Op) backend.Verdict {
		b := backend.Batch{Hits: []backend.Hit{{
			Key: []byte("k_"), Limit: l, Amount: 1, Op: op,
			HoldID: backend.NewHoldID([]byte(id)),
		}}, Verdicts: make([]backend.Verdict, 1)}
		if err := store.Take(t.Context(), &b); err != nil || b.FirstErr() != nil {
			t.Fatal(err, b.FirstErr())
		}
		return b.Verdicts[0]
	}
	opened, most := 0, int64(0)
	deadline := time.Now().Add(30 * time.Second)
	for n := 0; opened < 5; n++ {
		if time.Now().After(deadline) {
			t.Fatalf("the same hold was opened %d times in 30 s, though it is forgotten after %v", opened, l.Hold)
		}
		if take("same", algorithm.Charge).HoldOpened {
			opened++
			take("same", algorithm.Refund)
		}
		id := fmt.Sprint(n)
		if take(id, algorithm.Charge).HoldOpened {
			take(id, algorithm.Refund)
		}
		if fields, _ := server.Do(t, "HLEN", "{k_}|co").(int64); fields > most {
			most = fields
		}
	}
	if most > 20_000 {
		t.Errorf("the hash had up to %d fields", most)
	}
}

// A hold that is opened again after its name was free, but not forgotten yet, stays open when what was done before is
// forgotten.
func TestReopenedHoldStaysOpen(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	store := open(t, Config{Addr: server.Addr})
	l := &algorithm.Limit{Kind: algorithm.Concurrency, Max: 10, Period: time.Hour, Hold: time.Hour}
	start := time.Now()
	for i, step := range []struct {
		at     time.Duration // 0: the clock of Redis, which forgets a quarter of a hold late
		id     string
		op     algorithm.Op
		opened bool
		after  uint64
	}{
		{at: -70 * time.Minute, id: "a", opened: true, after: 1},
		{at: -69 * time.Minute, id: "a", op: algorithm.Refund},
		{at: -68 * time.Minute, id: "b", op: algorithm.Refund},
		{at: -67 * time.Minute, id: "c", op: algorithm.Refund},
		{id: "a", opened: true, after: 1},
		{id: "b", op: algorithm.Refund, after: 1},
		{at: 30 * time.Minute, id: "a", after: 1},
		{at: 30 * time.Minute, id: "b", after: 1},
		{at: 30 * time.Minute, id: "c", opened: true, after: 2},
		{at: 31 * time.Minute, id: "a", op: algorithm.Refund, after: 1},
	} {
		h := backend.Hit{
			Key: []byte("k_"), Limit: l, Amount: 1, Op: step.op,
			HoldID: backend.NewHoldID([]byte(step.id)),
		}
		b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
		if step.at != 0 {
			b.Now = start.Add(step.at)
		}
		if err := store.Take(t.Context(), &b); err != nil || b.FirstErr() != nil {
			t.Fatal(err, b.FirstErr())
		}
		if v := b.Verdicts[0]; v.HoldOpened != step.opened || v.After != step.after {
			t.Errorf("step %d, %v of %s: opened %v and %d after, want %v and %d", i, step.op, step.id, v.HoldOpened,
				v.After, step.opened, step.after)
		}
	}
}

// The script keeps as many holds as package algorithm.
func TestHoldBounds(t *testing.T) {
	t.Parallel()
	if want := fmt.Sprintf("most_open, most_done = %d, %d\n", algorithm.MaxOpenHolds,
		algorithm.MaxDoneHolds); !strings.Contains(takeScript, want) {
		t.Errorf("holds.lua lacks %q", want)
	}
	server := redistest.Start(t, redistest.Options{})
	// for scripts of thousands of hits
	store := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: time.Minute}})
	l := &algorithm.Limit{Kind: algorithm.GCRA, Max: 1, Period: time.Hour, Hold: time.Hour}
	b := backend.Batch{Now: epoch}
	for n := range algorithm.MaxDoneHolds + 1000 {
		b.Hits = append(b.Hits, backend.Hit{
			Key: []byte("k_"), Limit: l, Op: algorithm.Refund, GroupID: uint16(n % 2),
			HoldID: backend.NewHoldID(fmt.Append(nil, n)),
		})
	}
	b.Verdicts = make([]backend.Verdict, len(b.Hits))
	if err := store.Take(t.Context(), &b); err != nil || b.FirstErr() != nil {
		t.Fatal(err, b.FirstErr())
	}
	const chunk = 8 // so many ids of holds that are done share a field
	if n, _ := server.Do(t, "HLEN", "{k_}|gc:3600|holds").(int64); n > (chunk+1)*algorithm.MaxDoneHolds/chunk+chunk ||
		n < algorithm.MaxDoneHolds-100 {
		t.Errorf("%d fields for at most %d holds", n, algorithm.MaxDoneHolds)
	}
}

// A group with the same counter twice that is refused changes no hold.
func TestRefusedGroupKeepsHolds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	store := open(t, Config{Addr: server.Addr})
	l := &algorithm.Limit{Kind: algorithm.Concurrency, Max: 2, Period: time.Minute, Hold: time.Minute}
	hit := func(id string) backend.Hit {
		return backend.Hit{Key: []byte("k_"), Limit: l, Amount: 1, Atomic: true, HoldID: backend.NewHoldID([]byte(id))}
	}
	send(t, store, hit("a"))
	before := fmt.Sprint(server.Do(t, "HGETALL", "{k_}|co"))
	b := backend.Batch{Hits: []backend.Hit{hit("b"), hit("c")}, Verdicts: make([]backend.Verdict, 2), Now: epoch}
	if err := store.Take(t.Context(), &b); err != nil || b.FirstErr() != nil {
		t.Fatal(err, b.FirstErr())
	}
	if v := b.Verdicts; v[0].Over || !v[1].Over || v[0].HoldOpened || v[0].After != 1 {
		t.Errorf("%+v", v)
	}
	if after := fmt.Sprint(server.Do(t, "HGETALL", "{k_}|co")); after != before {
		t.Errorf("the refused group changed the holds from %q to %q", before, after)
	}
}
