package leased

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// What appendName writes, nextName reads.
func TestNames(t *testing.T) {
	var text []byte
	var want []name
	for i := range 200 {
		limit := &algorithm.Limit{Kind: algorithm.Kind(i % 5), Period: time.Second << (i % 30)}
		n := name{limit.Kind, i%3 == 0, limit.Period, bytes.Repeat([]byte{byte(i)}, i*7%maxKeyBytes)}
		text = appendName(text, n.key, limit, n.sharesKey)
		if want = append(want, n); i%10 == 0 {
			text, want = append(text, allCounters), append(want, name{kind: allCounters})
		}
	}
	for i, w := range want {
		n, rest, ok := nextName(text)
		if !ok || n.kind != w.kind || n.sharesKey != w.sharesKey || n.period != w.period || !bytes.Equal(n.key, w.key) {
			t.Fatalf("name %d: %+v, want %+v", i, n, w)
		}
		text = rest
	}
	if _, _, ok := nextName(text); ok {
		t.Error("there is a name behind the last one")
	}
}

// storeWithLeases returns a store with leases of the counters k0, k1, …
func storeWithLeases(keys int) *Store {
	at := epochOfTests
	s := newTestStore(newShared(&at), 2, &at)
	for i := range keys {
		h := hit(fmt.Sprint("k", i), minutely, algorithm.Charge, 1)
		b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
		if s.Take(context.Background(), &b) != nil {
			panic("misuse")
		}
	}
	return s
}

// contendedKeys returns which of the counters k0, k1, … are contended.
func contendedKeys(s *Store, keys int) (contended []string) {
	for i := range keys {
		if key := fmt.Sprint("k", i); leaseOf(s, key, minutely).isContended() {
			contended = append(contended, key)
		}
	}
	return contended
}

func TestHeard(t *testing.T) {
	nameOf := func(key string, l *algorithm.Limit) []byte { return appendName(nil, []byte(key), l, false) }
	hourly := &algorithm.Limit{Max: 100, Period: time.Hour}
	for _, c := range []struct {
		name  string
		texts [][]byte
		all   bool
		want  string
	}{
		{"nothing", nil, true, "[]"},
		{"something was missed", nil, false, "[k0 k1 k2 k3]"},
		{"all counters", [][]byte{{allCounters}}, true, "[k0 k1 k2 k3]"},
		{"one", [][]byte{nameOf("k1", minutely)}, true, "[k1]"},
		{"two in one text", [][]byte{append(nameOf("k1", minutely), nameOf("k3", minutely)...)}, true, "[k1 k3]"},
		{"two texts", [][]byte{nameOf("k0", minutely), nameOf("k2", minutely)}, true, "[k0 k2]"},
		{"unknown ones", [][]byte{nameOf("k9", minutely), nameOf("k1", hourly), {}}, true, "[]"},
		{"one behind garbage", [][]byte{{1, 0, 255}, nameOf("k2", minutely)}, true, "[k2]"},
	} {
		s := storeWithLeases(4)
		for range 2 { // A counter that is heard of twice gives back once.
			s.Heard(c.texts, c.all)
		}
		got := contendedKeys(s, 4)
		if fmt.Sprint(got) != c.want || len(s.contended.leases) != len(got) {
			t.Errorf("%s: %s are contended, want %s; %d give back", c.name, got, c.want, len(s.contended.leases))
		}
	}
}

// Whatever other replicas tell, no counter is contended but those that nextName finds, and no unit is lost.
func FuzzHeard(f *testing.F) {
	one := appendName(nil, []byte("k1"), minutely, false)
	f.Add(one, []byte{})
	f.Add(append(bytes.Clone(one), allCounters), one[:len(one)-1])
	f.Add([]byte{0, 1, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 1}, []byte{0, 0, 1, 255, 255, 255, 255, 15})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		s := storeWithLeases(3)
		held := s.Stats().UnitsHeld
		s.Heard([][]byte{a, b}, true)
		for _, key := range contendedKeys(s, 3) {
			named := func(text []byte) bool {
				return bytes.Contains(text, []byte(key)) || bytes.IndexByte(text, allCounters) >= 0
			}
			if !named(a) && !named(b) {
				t.Errorf("%s is contended after %q and %q", key, a, b)
			}
		}
		if got := s.Stats().UnitsHeld; got != held {
			t.Errorf("%d units are held, before %d", got, held)
		}
	})
}

// A replica tells others at most maxTold bytes at a time, of whole names, each once, and again nothing.
func TestTellInParts(t *testing.T) {
	at := epochOfTests
	s := newTestStore(newShared(&at), 2, &at)
	told, fails := make(map[string]int), false
	s.cfg.Tell = func(_ context.Context, text []byte) error {
		if len(text) > maxTold {
			t.Errorf("%d bytes are told", len(text))
		}
		for n, rest, ok := nextName(text); ok; n, rest, ok = nextName(text) {
			told[string(n.key)]++
			text = rest
		}
		if len(text) > 0 {
			t.Errorf("%q is no name", text)
		}
		if fails {
			return errors.New("cut off")
		}
		return nil
	}
	const keys = 5000
	for i := range keys {
		s.contended.tellLater(fmt.Appendf(nil, "key %08d", i), minutely, i%2 == 0)
	}
	ticks := 0
	for ; len(s.contended.untold) > 0 && ticks < 100; ticks++ {
		s.Tick(t.Context())
	}
	if len(told) != keys || ticks < 3 {
		t.Errorf("%d of %d counters are told of, at %d ticks", len(told), keys, ticks)
	}
	for key, n := range told {
		if n != 1 {
			t.Fatalf("%s is told %d times", key, n)
		}
	}
	fails = true
	s.contended.tellLater([]byte("k"), minutely, false)
	if s.Tick(t.Context()); s.Stats().TellErrors != 1 {
		t.Errorf("%d errors", s.Stats().TellErrors)
	}
	for i := range 2 * maxUntold / 20 {
		s.contended.tellLater(fmt.Appendf(nil, "key %08d", i), minutely, false)
	}
	if n := len(s.contended.untold); n > maxUntold+100 {
		t.Errorf("%d bytes wait to be told", n)
	}
}

// A contended counter keeps what was needed lately, gives back the rest, and stays contended until its window ends.
func TestContendedCounterGivesBack(t *testing.T) {
	at := epochOfTests
	shared := newShared(&at)
	s := newTestStore(shared, 2, &at)
	mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))
	mustTake(t, s, hit("k", minutely, algorithm.Charge, 3))
	l := leaseOf(s, "k", minutely)
	s.Heard([][]byte{appendName(nil, []byte("k"), minutely, false)}, true)
	for i, want := range []uint32{4, 4, 0, 0} {
		if s.Tick(t.Context()); l.held != want || countIn(t, shared, "k", minutely) != 4+uint64(want) {
			t.Errorf("tick %d: %d are held, want %d; the store has %d", i, l.held, want, countIn(t, shared, "k", minutely))
		}
		if s.Stats().UnitsHeld != uint64(want) || len(s.contended.leases) != 1 {
			t.Errorf("tick %d: %d are said to be held; %d counters", i, s.Stats().UnitsHeld, len(s.contended.leases))
		}
		at += int64(tick)
	}
	at += int64(time.Minute)
	if s.Tick(t.Context()); len(s.contended.leases) != 0 {
		t.Error("the counter is contended after its window")
	}
}

// Once a replica finishes, the store has what was used.
func TestFinish(t *testing.T) {
	for _, kind := range []algorithm.Kind{
		algorithm.FixedWindow, algorithm.FirstHitWindow, algorithm.SlidingWindowCounter, algorithm.GCRA,
	} {
		at := epochOfTests
		shared := newShared(&at)
		s := newTestStore(shared, 1, &at)
		limit := &algorithm.Limit{Kind: kind, Max: 100, Period: time.Minute, Burst: 99}
		mustTake(t, s, hit("k", limit, algorithm.Charge, 7))
		mustTake(t, s, hit("k", limit, algorithm.Charge, 2))
		if s.Stats().UnitsHeld != 41 || countIn(t, shared, "k", limit) != 50 {
			t.Errorf("%v: %d are held", kind, s.Stats().UnitsHeld)
		}
		s.Finish(t.Context())
		if n := countIn(t, shared, "k", limit); n != 9 || s.Stats().UnitsHeld != 0 || leaseOf(s, "k", limit).held != 0 {
			t.Errorf("%v: the store has %d, %d are held", kind, n, s.Stats().UnitsHeld)
		}
	}
}

// edits is a store that remembers how it was changed.
type edits struct {
	backend.Backend
	log   []string
	count func() uint64
	then  func() // what happens meanwhile
}

func (e *edits) SetCounts(_ context.Context, b *backend.Batch) error {
	e.log = append(e.log, fmt.Sprintf("set %s to %d when it is %d", b.Hits[0].Key, b.Hits[0].Amount, e.count()))
	e.then()
	return errors.New("no answer")
}

func (e *edits) ResetPrefixes(_ context.Context, _ []backend.KeyPrefix, dryRun bool, _ func([][]byte)) error {
	e.log = append(e.log, fmt.Sprint("reset, dry run ", dryRun, ", when it is ", e.count()))
	return nil
}

// Operators find a counter without the units that replicas hold, and afterwards no replica has some.
func TestEdits(t *testing.T) {
	at := epochOfTests
	shared := newShared(&at)
	e := &edits{Backend: shared, count: func() uint64 { return countIn(t, shared, "k", minutely) }}
	s := newTestStore(e, 1, &at)
	var told []byte
	s.cfg.Tell = func(_ context.Context, text []byte) error { told = append(told, text...); return nil }
	use := func() lease {
		mustTake(t, s, hit("k", minutely, algorithm.Charge, 1))
		return leaseOf(s, "k", minutely)
	}
	check := func(l lease, log string, text []byte) {
		t.Helper()
		if l.held != 0 || l.used != 0 || l.taken != 0 || l.end != 0 || s.Stats().UnitsHeld != 0 {
			t.Errorf("%s: afterwards the lease is %+v, %d are held", log, l.state, s.Stats().UnitsHeld)
		}
		if fmt.Sprint(e.log) != "["+log+"]" || !bytes.Equal(told, text) {
			t.Errorf("%v, want %s; %q is told", e.log, log, told)
		}
		e.log, told = nil, nil
	}
	l := use()
	e.then = func() { use() }
	five := hit("k", minutely, algorithm.Charge, 5)
	set := backend.Batch{Hits: []backend.Hit{five}, Verdicts: make([]backend.Verdict, 1)}
	if s.SetCounts(t.Context(), &set) == nil {
		t.Error("no error")
	}
	check(l, "set k to 5 when it is 1", appendName(nil, []byte("k"), minutely, false))
	use()
	if err := s.ResetPrefixes(t.Context(), nil, true, nil); err != nil || l.held == 0 {
		t.Errorf("%v; a dry run gives back units", err)
	}
	if n := len(e.log); n != 1 {
		t.Errorf("the store is reset %d times", n)
	}
	e.log = nil
	if err := s.ResetPrefixes(t.Context(), nil, false, nil); err != nil {
		t.Error(err)
	}
	// The store was not changed, so it has the units of the second hit, too, which the lease forgot.
	check(l, "reset, dry run false, when it is 27", []byte{allCounters})
}

// What cannot wait to be given back is lost, and so is what the store does not confirm.
func TestReturns(t *testing.T) {
	at := epochOfTests
	var batches, units int
	fails := false
	s := newTestStore(storeFunc(func(b *backend.Batch) {
		batches++
		for i, h := range b.Hits {
			if units += int(h.Amount); h.Op != algorithm.Refund || h.Window != 60 {
				t.Errorf("%v of the window %d", h.Op, h.Window)
			}
			if fails {
				b.Verdicts[i].Err = errors.New("no answer")
			}
		}
	}), 1, &at)
	key := []byte("k")
	for range maxReturns + 3 {
		s.returns.add(backend.Hit{Key: key, TagLength: 1, Limit: minutely, Amount: 2, Window: 60}, 0)
		key[0]++ // It is copied.
	}
	s.flushReturns(t.Context())
	st := s.Stats()
	if units != 2*maxReturns || batches != maxReturns/returnsPerBatch || st.UnitsReturned != 2*maxReturns ||
		st.UnitsLost != 6 {
		t.Errorf("%d units in %d batches, %+v", units, batches, st)
	}
	fails = true
	for range maxReturnBytes/1000 + 1 {
		s.returns.add(backend.Hit{Key: make([]byte, 1000), TagLength: 1, Limit: minutely, Amount: 1, Window: 60}, 0)
	}
	s.flushReturns(t.Context())
	s.flushReturns(t.Context())
	if got := s.Stats(); units != 2*maxReturns+maxReturnBytes/1000 || got.UnitsLost != 7+maxReturnBytes/1000 {
		t.Errorf("%d units, %+v", units, got)
	}
}

// Units of a bucket that come back late bring less: what others got meanwhile. So no more than the burst and 1, and 1.2
// times the limit, pass in a period.
func TestLateReturnsOfGCRA(t *testing.T) {
	limit := &algorithm.Limit{Kind: algorithm.GCRA, Max: 100, Burst: 99, Period: 10 * time.Second}
	for _, c := range []struct {
		idle time.Duration // of the units, before they go back
		back uint64
	}{{500 * time.Millisecond, 49}, {time.Second, 49}, {2 * time.Second, 39}, {5 * time.Second, 9}, {time.Minute, 0}} {
		at := epochOfTests
		shared := newShared(&at)
		s := newTestStore(shared, 1, &at)
		mustTake(t, s, hit("k", limit, algorithm.Charge, 1)) // It takes 50.
		at += int64(c.idle)
		mustTake(t, shared, hit("k", limit, algorithm.Force, 1000)) // Nothing comes back unless it is given back.
		before := countIn(t, shared, "k", limit)
		s.Finish(t.Context())
		if back := before - countIn(t, shared, "k", limit); back != c.back || s.Stats().UnitsReturned != c.back {
			t.Errorf("after %v, %d units come back, want %d; %+v", c.idle, back, c.back, s.Stats())
		}
	}
}
