package fallback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/split"
	"ratelimit/src/testbed/backendtest"
)

var (
	epoch   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	errDown = errors.New("down")
)

// flaky is a store that may be down, and then counts nothing; or deaf, so that
// nobody hears of what it counts.
type flaky struct {
	backend.Backend
	down, deaf    atomic.Bool
	asked, forced atomic.Int64 // hits, and those of them with Op Force
}

func (f *flaky) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	f.asked.Add(int64(len(b.Hits)))
	looks := true
	for _, h := range b.Hits {
		looks = looks && h.Op == algorithm.Look
		if h.Op == algorithm.Force {
			f.forced.Add(1)
		}
	}
	if !f.down.Load() {
		if err := f.Backend.Take(ctx, b); err != nil || !f.deaf.Load() || looks {
			return err
		}
	}
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: errDown}
	}
	return nil
}

func inMemory(t testing.TB) *flaky {
	t.Helper()
	m, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &flaky{Backend: m}
}

func open(t testing.TB, next backend.Backend, replicas int) *Store {
	t.Helper()
	s, err := New(next, Config{Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func take(t testing.TB, s backend.Backend, at time.Duration, hits ...backend.Hit) []backend.Verdict {
	t.Helper()
	b := backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits)), Now: epoch.Add(at)}
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Verdicts
}

func fixed(most uint64, period time.Duration) *algorithm.Limit {
	return &algorithm.Limit{Max: most, Period: period, CountBlocked: true}
}

func local(key string, l *algorithm.Limit, amount uint64) backend.Hit {
	return backend.Hit{Key: []byte(key), Limit: l, Amount: amount, Fallback: backend.FallbackLocal}
}

// count is what the store has of a counter.
func count(t testing.TB, s backend.Backend, at time.Duration, key string, l *algorithm.Limit) uint64 {
	t.Helper()
	return take(t, s, at, backend.Hit{Key: []byte(key), Limit: l, Op: algorithm.Look})[0].Before
}

// What a store answers goes through, and what it does not goes by each hit's word.
func TestModes(t *testing.T) {
	next := inMemory(t)
	s := open(t, next, 1)
	hits := func(amount uint64, op algorithm.Op) (hits []backend.Hit) {
		for i := range backend.Fallbacks() {
			f := backend.Fallback(i)
			hits = append(hits, backend.Hit{Key: []byte(f.String()), Limit: fixed(10, time.Minute), Amount: amount, Op: op, Fallback: f, Group: uint16(i)})
		}
		return hits
	}
	for _, v := range take(t, s, 0, hits(4, algorithm.Charge)...) {
		if v.Err != nil || v.Over || v.Remaining != 6 || v.Fallback != 0 {
			t.Errorf("up: %+v", v)
		}
	}
	next.down.Store(true)
	got := take(t, s, 0, hits(7, algorithm.Charge)...)
	for i, want := range []backend.Verdict{
		{Err: errDown},
		{Outcome: algorithm.Outcome{Remaining: 3}, Fallback: backend.FallbackAllow},
		{Outcome: algorithm.Outcome{Over: true, Before: 10, After: 10, RetryAfter: time.Second, ResetAfter: time.Second}, Fallback: backend.FallbackDeny},
		{Outcome: algorithm.Outcome{Charged: true, After: 7, Remaining: 3, ResetAfter: time.Minute}, Fallback: backend.FallbackLocal},
	} {
		if got[i] != want {
			t.Errorf("down, %v: got %+v, want %+v", backend.Fallback(i), got[i], want)
		}
	}
	got = take(t, s, 0, hits(7, algorithm.Charge)...)
	if v := got[3]; !v.Over || v.RetryAfter != time.Minute || !v.FullUntil.IsZero() {
		t.Errorf("a share is used up: %+v", v) // which no cache in front may take for the limit
	}
	for _, v := range take(t, s, 0, hits(1, algorithm.Refund)...)[1:] {
		if v.Over || v.Err != nil || v.Fallback == 0 {
			t.Errorf("a refund: %+v", v)
		}
	}
	st := s.Stats()
	if st.Fallback != [4]uint64{3, 3, 3, 3} || st.Last.IsZero() || st.Owed != 1 || st.Replicas != 1 {
		t.Errorf("%+v", st)
	}
}

// overloaded is a store that works and has no time for any request.
type overloaded struct{}

func (overloaded) Take(_ context.Context, b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: backend.ErrOverload}
	}
	return nil
}

// A request that is too much for the store goes by on_store_failure too, but the
// store is not taken for one that does not answer.
func TestOverload(t *testing.T) {
	s := open(t, overloaded{}, 1)
	deny := local("b", fixed(10, time.Minute), 1)
	deny.Fallback, deny.Group = backend.FallbackDeny, 1
	got := take(t, s, 0, local("a", fixed(10, time.Minute), 7), deny)
	if got[0].Fallback != backend.FallbackLocal || got[0].Remaining != 3 || !got[1].Over {
		t.Errorf("got %+v", got)
	}
	if st := s.Stats(); !st.Last.IsZero() || st.Fallback[backend.FallbackLocal] != 1 {
		t.Errorf("%+v", st)
	}
}

// What no state of the store would let pass does not pass without it, either, nor
// is it told to try again; what only a share has no room for is.
func TestNever(t *testing.T) {
	banned, ten := fixed(0, time.Minute), fixed(10, time.Minute)
	for _, tt := range []struct {
		limit  *algorithm.Limit
		how    backend.Fallback
		op     algorithm.Op
		amount uint64
		over   bool
		retry  time.Duration
	}{
		{limit: banned, how: backend.FallbackAllow, amount: 1, over: true, retry: algorithm.Never},
		{limit: banned, how: backend.FallbackAllow, op: algorithm.Look, amount: 1, over: true, retry: algorithm.Never},
		{limit: banned, how: backend.FallbackAllow, op: algorithm.Refund, amount: 1},
		{limit: banned, how: backend.FallbackAllow, op: algorithm.Look},
		{limit: banned, how: backend.FallbackDeny, amount: 1, over: true, retry: algorithm.Never},
		{limit: banned, how: backend.FallbackLocal, amount: 1, over: true, retry: algorithm.Never},
		{limit: ten, how: backend.FallbackAllow, amount: 10},
		{limit: ten, how: backend.FallbackAllow, amount: 11, over: true, retry: algorithm.Never},
		{limit: ten, how: backend.FallbackDeny, amount: 10, over: true, retry: denyFor},
		{limit: ten, how: backend.FallbackDeny, amount: 11, over: true, retry: algorithm.Never},
		{limit: ten, how: backend.FallbackLocal, amount: 3},
		{limit: ten, how: backend.FallbackLocal, amount: 4, over: true, retry: denyFor},
		{limit: ten, how: backend.FallbackLocal, amount: 10, over: true, retry: denyFor},
		{limit: ten, how: backend.FallbackLocal, amount: 11, over: true, retry: algorithm.Never},
	} {
		next := inMemory(t)
		next.down.Store(true)
		v := take(t, open(t, next, 4), 0, backend.Hit{Key: []byte("k"), Limit: tt.limit, Op: tt.op, Amount: tt.amount, Fallback: tt.how})[0]
		if v.Over != tt.over || v.RetryAfter != tt.retry || v.Fallback != tt.how {
			t.Errorf("%v of %d of %d, %v: %+v", tt.op, tt.amount, tt.limit.Max, tt.how, v)
		}
	}
}

// Nobody waits for what a caller who has left asked for.
func TestCallerLeft(t *testing.T) {
	next := inMemory(t)
	next.down.Store(true)
	s := open(t, next, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := backend.Batch{Hits: []backend.Hit{local("k", fixed(10, time.Minute), 1)}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
	if err := s.Take(ctx, &b); err != nil {
		t.Fatal(err)
	}
	if b.Verdicts[0].Err == nil || s.Stats().Owed != 0 || s.Stats().Local.Keys != 0 {
		t.Errorf("%+v %+v", b.Verdicts[0], s.Stats())
	}
}

func TestMisuse(t *testing.T) {
	s := open(t, inMemory(t), 1)
	if err := s.Take(t.Context(), &backend.Batch{Hits: make([]backend.Hit, 1)}); err == nil {
		t.Error("a batch without verdicts is taken")
	}
	for _, cfg := range []Config{{Replicas: -1}, {MaxBytes: MinBytes - 1}} {
		if _, err := New(inMemory(t), cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	if _, err := New(inMemory(t), Config{MaxBytes: MinBytes}); err != nil {
		t.Error(err)
	}
}

// What is decided here passes the suite of all stores.
func TestSuite(t *testing.T) {
	t.Run("up", func(t *testing.T) {
		backendtest.Run(t, func(t *testing.T) backend.Backend { return open(t, inMemory(t), 1) })
	})
	t.Run("down", func(t *testing.T) {
		backendtest.Suite{Unsure: true}.Run(t, func(t *testing.T) backend.Backend {
			next := inMemory(t)
			next.down.Store(true)
			return asLocal{open(t, next, 1)}
		})
	})
}

// asLocal has all hits counted here, and takes out of verdicts who decided.
type asLocal struct{ backend.Backend }

func (s asLocal) Take(ctx context.Context, b *backend.Batch) error {
	c := *b
	c.Hits = append([]backend.Hit(nil), b.Hits...)
	for i := range c.Hits {
		c.Hits[i].Fallback = backend.FallbackLocal
	}
	err := s.Backend.Take(ctx, &c)
	for i := range b.Verdicts {
		b.Verdicts[i].Fallback = 0
	}
	return err
}

// Of one counter: what passes while the store is up, down and up again, and what
// the store has in the end.
func TestAfterwards(t *testing.T) {
	const (
		up = iota
		down
		settle
	)
	type step struct {
		at     time.Duration
		do     int
		amount uint64
		op     algorithm.Op
		over   bool
	}
	for _, tt := range []struct {
		name     string
		limit    *algorithm.Limit
		replicas int
		steps    []step
		at       time.Duration
		want     uint64 // in the store
		owed     int64
	}{
		{"a fixed window", fixed(10, time.Minute), 2, []step{
			{at: 0, do: up, amount: 4},
			{at: 1 * time.Second, do: down, amount: 5},
			{at: 2 * time.Second, do: down, amount: 1, over: true}, // a half of 10
			{at: 3 * time.Second, do: settle},
			{at: 4 * time.Second, do: up, amount: 1, over: true}, // 4 + 6, and this one
			{at: 5 * time.Second, do: down, amount: 1, over: true},
		}, 6 * time.Second, 11, 1},
		{"what is not counted when refused", &algorithm.Limit{Max: 10, Period: time.Minute}, 2, []step{
			{at: 0, do: up, amount: 4},
			{at: 1 * time.Second, do: down, amount: 5},
			{at: 2 * time.Second, do: down, amount: 1, over: true},
			{at: 3 * time.Second, do: settle},
			{at: 4 * time.Second, do: up, amount: 1},
		}, 6 * time.Second, 10, 0},
		{"the window ends before the outage", fixed(10, time.Minute), 2, []step{
			{at: 50 * time.Second, do: down, amount: 5},
			{at: 61 * time.Second, do: settle},
		}, 62 * time.Second, 0, 0},
		{"two windows", fixed(10, time.Minute), 2, []step{
			{at: 50 * time.Second, do: down, amount: 5},
			{at: 61 * time.Second, do: down, amount: 3},
			{at: 62 * time.Second, do: settle},
		}, 63 * time.Second, 3, 0},
		{"a store that does not come back", fixed(10, time.Minute), 2, []step{
			{at: 0, do: down, amount: 1},
		}, 0, 0, 1},
		{"a refund of what the store has", fixed(10, time.Minute), 1, []step{
			{at: 0, do: up, amount: 8},
			{at: 1 * time.Second, do: down, amount: 3, op: algorithm.Refund},
			{at: 2 * time.Second, do: down, amount: 2},
			{at: 3 * time.Second, do: settle},
		}, 4 * time.Second, 7, 0},
		{"a refund of what is owed", fixed(10, time.Minute), 1, []step{
			{at: 0, do: up, amount: 1},
			{at: 1 * time.Second, do: down, amount: 8},
			{at: 2 * time.Second, do: down, amount: 3, op: algorithm.Refund},
			{at: 3 * time.Second, do: settle},
		}, 4 * time.Second, 6, 0},
		{"a refund of more than is owed", fixed(10, time.Minute), 1, []step{
			{at: 0, do: up, amount: 5},
			{at: 1 * time.Second, do: down, amount: 2},
			{at: 2 * time.Second, do: down, amount: 3, op: algorithm.Refund},
			{at: 3 * time.Second, do: settle},
		}, 4 * time.Second, 4, 0},
		{"a refund for a window that is over", fixed(10, time.Minute), 1, []step{
			{at: 59 * time.Second, do: down, amount: 2, op: algorithm.Refund},
			{at: 60 * time.Second, do: up, amount: 5},
			{at: 61 * time.Second, do: settle},
		}, 62 * time.Second, 5, 0},
		{"a bucket fills meanwhile", &algorithm.Limit{Kind: algorithm.GCRA, Max: 60, Burst: 9, Period: time.Minute}, 1, []step{
			{at: 0, do: down, amount: 10},
			{at: 1 * time.Second, do: down, amount: 2, over: true},
			{at: 4 * time.Second, do: settle},
		}, 4 * time.Second, 6, 0},
		{"a bucket is full again", &algorithm.Limit{Kind: algorithm.GCRA, Max: 60, Burst: 9, Period: time.Minute}, 1, []step{
			{at: 0, do: down, amount: 10},
			{at: 10 * time.Second, do: settle},
		}, 10 * time.Second, 0, 0},
		{"what a bucket is owed", &algorithm.Limit{Kind: algorithm.GCRA, Max: 60, Burst: 9, Period: time.Minute, CountBlocked: true}, 1, []step{
			{at: 0, do: down, amount: 30, over: true}, // tokens, charged when they are used
			{at: 4 * time.Second, do: settle},
			{at: 4 * time.Second, do: up, amount: 0, over: true},
		}, 4 * time.Second, 26, 0},
		{"a log forgets", &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 10, Period: time.Minute}, 1, []step{
			{at: 0, do: down, amount: 6},
			{at: 30 * time.Second, do: down, amount: 4},
			{at: 61 * time.Second, do: settle},
		}, 62 * time.Second, 4, 0},
		{"a first-hit window", &algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 10, Period: time.Minute}, 1, []step{
			{at: 0, do: up, amount: 2},
			{at: 30 * time.Second, do: down, amount: 4},
			{at: 40 * time.Second, do: settle},
		}, 45 * time.Second, 6, 0},
		{"two buckets of time", &algorithm.Limit{Kind: algorithm.SlidingWindowCounter, Max: 10, Period: time.Minute}, 1, []step{
			{at: 0, do: down, amount: 8},
			{at: 90 * time.Second, do: settle}, // half of it counts
		}, 90 * time.Second, 4, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := inMemory(t)
			s := open(t, next, tt.replicas)
			for i, step := range tt.steps {
				next.down.Store(step.do == down)
				if step.do == settle {
					s.Settle(t.Context(), epoch.Add(step.at))
					continue
				}
				h := local("k", tt.limit, step.amount)
				h.Op = step.op
				v := take(t, s, step.at, h)[0]
				if v.Over != step.over || v.Err != nil || (v.Fallback == backend.FallbackLocal) != (step.do == down) {
					t.Fatalf("step %d: %+v", i, v)
				}
			}
			next.down.Store(false)
			if got := count(t, next, tt.at, "k", tt.limit); got != tt.want {
				t.Errorf("the store has %d, want %d", got, tt.want)
			}
			if got := s.Stats().Owed; got != tt.owed {
				t.Errorf("%d counters are owed to, want %d", got, tt.owed)
			}
		})
	}
}

// A store that is not heard, but answers looks, as one does whose disk is slow, is
// not sent the same again and again: what it has is seen in the next look. A hit
// that was not heard counts twice all the same, and what was given back is not given
// again.
func TestLostReplies(t *testing.T) {
	for _, kind := range []algorithm.Limit{
		{Max: 100, Period: time.Hour},
		{Kind: algorithm.FirstHitWindow, Max: 100, Period: time.Hour},
		{Kind: algorithm.SlidingWindow, Max: 100, Period: time.Hour},
		{Kind: algorithm.SlidingWindowCounter, Max: 100, Period: time.Hour},
		{Kind: algorithm.GCRA, Max: 100, Burst: 99, Period: time.Hour},
	} {
		t.Run(kind.Kind.String(), func(t *testing.T) {
			next, limit := inMemory(t), &kind
			s := open(t, next, 1)
			take(t, s, 0, local("given back", limit, 50))
			next.deaf.Store(true)
			take(t, s, 0, local("k", limit, 5))
			for i := range 10 {
				s.Settle(t.Context(), epoch.Add(time.Duration(i)*time.Second))
			}
			next.down.Store(true)
			back := local("given back", limit, 3)
			back.Op = algorithm.Refund
			take(t, s, 10*time.Second, back)
			next.down.Store(false)
			for i := range 10 {
				s.Settle(t.Context(), epoch.Add(time.Duration(10+i)*time.Second))
			}
			next.deaf.Store(false)
			s.Settle(t.Context(), epoch.Add(20*time.Second))
			if got := count(t, next, 20*time.Second, "k", limit); got != 10 {
				t.Errorf("the store has %d, want 10", got)
			}
			if got := count(t, next, 20*time.Second, "given back", limit); got != 47 {
				t.Errorf("the store has %d where 3 of 50 were given back", got)
			}
			if st := s.Stats(); st.Owed != 0 || st.Forgotten != 1 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A store that answers looks and refuses to write, as one without memory does, gets
// what it is owed when it writes again.
func TestRefusedWrites(t *testing.T) {
	next, limit := inMemory(t), fixed(100, time.Hour)
	full := &readOnly{Backend: next}
	s := open(t, full, 1)
	full.yes.Store(true)
	take(t, s, 0, local("k", limit, 5))
	for i := range 10 {
		s.Settle(t.Context(), epoch.Add(time.Duration(i)*time.Second))
	}
	full.yes.Store(false)
	if !s.Settle(t.Context(), epoch.Add(10*time.Second)) || count(t, next, 10*time.Second, "k", limit) != 5 {
		t.Errorf("the store has %d, want 5", count(t, next, 10*time.Second, "k", limit))
	}
}

// readOnly is a store that may answer looks only.
type readOnly struct {
	backend.Backend
	yes atomic.Bool
}

func (r *readOnly) Take(ctx context.Context, b *backend.Batch) error {
	if !r.yes.Load() || b.Hits[0].Op == algorithm.Look {
		return r.Backend.Take(ctx, b)
	}
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: errDown}
	}
	return nil
}

// A group of which a part has no answer stands or falls together all the same.
func TestGroups(t *testing.T) {
	second, minute := fixed(3, time.Second), fixed(5, time.Minute)
	for _, tt := range []struct {
		name                     string
		shortDown, longDown      bool
		shortSays, longSays      backend.Fallback
		shortBefore, longBefore  uint64
		passes                   bool
		shortCounted, longCounts uint64 // in the stores
	}{
		{"both answer", false, false, 0, 0, 0, 0, true, 1, 1},
		{"both are counted here", true, true, backend.FallbackLocal, backend.FallbackLocal, 0, 0, true, 0, 0},
		{"the short one is counted here", true, false, backend.FallbackLocal, 0, 0, 0, true, 0, 1},
		{"the long one is counted here", false, true, 0, backend.FallbackLocal, 0, 0, true, 1, 0},
		{"the long one refuses", true, false, backend.FallbackLocal, 0, 0, 5, false, 0, 5},
		{"the short one refuses", false, true, 0, backend.FallbackLocal, 3, 0, false, 3, 0},
		{"the short one is denied", true, false, backend.FallbackDeny, 0, 0, 0, false, 0, 0},
		{"the long one is let pass", false, true, 0, backend.FallbackAllow, 0, 0, true, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			short, long := inMemory(t), inMemory(t)
			s := open(t, split.New(short, long), 1)
			if tt.shortBefore > 0 {
				take(t, short, 0, local("k", second, tt.shortBefore))
			}
			if tt.longBefore > 0 {
				take(t, long, 0, local("k", minute, tt.longBefore))
			}
			short.down.Store(tt.shortDown)
			long.down.Store(tt.longDown)
			hits := []backend.Hit{local("k", second, 1), local("k", minute, 1)}
			hits[0].Atomic, hits[1].Atomic = true, true
			hits[0].Fallback, hits[1].Fallback = tt.shortSays, tt.longSays
			v := take(t, s, 0, hits...)
			if passes := !v[0].Over && !v[1].Over; passes != tt.passes || v[0].Err != nil || v[1].Err != nil {
				t.Errorf("%+v", v)
			}
			short.down.Store(false)
			long.down.Store(false)
			if a, b := count(t, short, 0, "k", second), count(t, long, 0, "k", minute); a != tt.shortCounted || b != tt.longCounts {
				t.Errorf("the stores have %d and %d, want %d and %d", a, b, tt.shortCounted, tt.longCounts)
			}
			s.Settle(t.Context(), epoch)
			charged := uint64(0)
			if tt.passes {
				charged = 1
			}
			if tt.shortSays == backend.FallbackLocal {
				if got := count(t, short, 0, "k", second); got != tt.shortBefore+charged {
					t.Errorf("settled, the short store has %d", got)
				}
			}
			if tt.longSays == backend.FallbackLocal {
				if got := count(t, long, 0, "k", minute); got != tt.longBefore+charged {
					t.Errorf("settled, the long store has %d", got)
				}
			}
		})
	}
}

// The bound of the package's documentation: by any schedule of outages, seen by each
// replica alone, at most what the limit allows passes by the store and the sum of
// the shares here, in any stretch of time.
func TestBound(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		limit := &algorithm.Limit{Kind: algorithm.Kind(rnd.IntN(len(algorithm.Kinds()))), Max: 1 + rnd.Uint64N(12), Period: 10 * time.Second}
		limit.CountBlocked = limit.Kind == algorithm.FixedWindow && rnd.IntN(2) == 0
		if limit.Kind == algorithm.GCRA {
			limit.Burst = rnd.Uint64N(6)
		}
		n := 1 + rnd.IntN(4)
		stores := make([]*Store, n)
		ways := make([]*flaky, n)
		shared := inMemory(t)
		for i := range stores {
			ways[i] = &flaky{Backend: shared}
			stores[i] = open(t, ways[i], n)
		}
		var passed []time.Duration // the instant of each unit
		var byStore, here []time.Duration
		at := time.Duration(0)
		for range 200 {
			at += time.Duration(rnd.Int64N(int64(700 * time.Millisecond))).Truncate(time.Microsecond)
			i := rnd.IntN(n)
			switch rnd.IntN(6) {
			case 0:
				ways[i].down.Store(rnd.IntN(2) == 0)
			case 1:
				stores[i].Settle(t.Context(), epoch.Add(at))
			default:
				amount := 1 + rnd.Uint64N(2)
				if v := take(t, stores[i], at, local("k", limit, amount))[0]; !v.Over {
					for range amount {
						passed = append(passed, at)
						if v.Fallback == 0 {
							byStore = append(byStore, at)
						} else {
							here = append(here, at)
						}
					}
				}
			}
		}
		share := limit.Share(uint64(n))
		own, shares := bound(limit), uint64(n)*bound(&share)
		for _, check := range []struct {
			name  string
			times []time.Duration
			most  uint64
		}{{"all", passed, own + shares}, {"by the store", byStore, own}, {"here", here, shares}} {
			if got := busiest(check.times, limit); got > check.most {
				t.Fatalf("round %d, %d replicas, %+v: %d passed %s, at most %d may", round, n, *limit, got, check.name, check.most)
			}
		}
	}
}

// bound is how much passes in a stretch as long as the period: for windows with
// edges, in a window.
func bound(l *algorithm.Limit) uint64 {
	switch l.Kind {
	case algorithm.GCRA:
		return l.Burst + 1 + l.Max
	case algorithm.SlidingWindowCounter:
		return 2*l.Max - 1
	case algorithm.FirstHitWindow:
		return 2 * l.Max
	}
	return l.Max
}

// busiest is how many of the times are in one stretch.
func busiest(times []time.Duration, l *algorithm.Limit) (most uint64) {
	for i := range times {
		n := uint64(0)
		for _, other := range times[i:] {
			same := other-times[i] < l.Period
			if l.Kind == algorithm.FixedWindow {
				same = other/l.Period == times[i]/l.Period
			}
			if same {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Many calls, outages and settlements at once: nothing is lost, and nothing twice.
func TestConcurrent(t *testing.T) {
	next := inMemory(t)
	s := open(t, next, 1)
	limit := fixed(1<<40, time.Hour)
	stop := make(chan struct{})
	var others, callers sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				next.down.Store(!next.down.Load())
				s.Settle(t.Context(), epoch)
			}
		}
	})
	for c := range 8 {
		callers.Go(func() {
			for i := range 2000 {
				take(t, s, 0, local(fmt.Sprint("k", (c+i)%7), limit, 1))
			}
		})
	}
	callers.Wait()
	close(stop)
	others.Wait()
	next.down.Store(false)
	s.Settle(t.Context(), epoch)
	total := uint64(0)
	for i := range 7 {
		total += count(t, next, 0, fmt.Sprint("k", i), limit)
	}
	if total != 16_000 || s.Stats().Owed != 0 {
		t.Errorf("%d of 16000 are counted, %+v", total, s.Stats())
	}
}

// There is room for so many counters, and for others when those owe nothing more.
func TestRoomIsBounded(t *testing.T) {
	next := inMemory(t)
	next.down.Store(true)
	s, err := New(next, Config{MaxBytes: MinBytes})
	if err != nil {
		t.Fatal(err)
	}
	limit, keys := fixed(10, time.Minute), 0
	for ; s.Stats().Forgotten == 0; keys++ {
		take(t, s, 0, local(fmt.Sprintf("key %040d", keys), limit, 1))
	}
	if owed := s.Stats().Owed; owed != int64(keys-1) || owed*entryBytes > MinBytes || owed*entryBytes < MinBytes/8 {
		t.Errorf("room for %d counters", owed)
	}
	take(t, s, 0, local(fmt.Sprintf("key %040d", 0), limit, 1)) // it is known
	if got := s.Stats().Forgotten; got != 1 {
		t.Errorf("%d are forgotten", got)
	}
	take(t, s, 2*time.Minute, local("another", limit, 1))
	if st := s.Stats(); st.Forgotten != 1 || st.Owed != 1 {
		t.Errorf("%+v", st)
	}
}
