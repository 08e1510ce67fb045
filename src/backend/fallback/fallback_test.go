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
	"ratelimit/testbed/backendtest"
	"ratelimit/testbed/limitertest"
)

var (
	epoch   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	errDown = errors.New("down")
)

// flaky is a store that counts nothing and answers no hit while it is down.
type flaky struct {
	backend.Backend
	down  atomic.Bool
	asked atomic.Int64 // hits
}

func (f *flaky) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	f.asked.Add(int64(len(b.Hits)))
	if !f.down.Load() {
		return f.Backend.Take(ctx, b)
	}
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: errDown}
	}
	return nil
}

func (f *flaky) SetCounts(ctx context.Context, b *backend.Batch) error {
	if f.down.Load() {
		return nil
	}
	return backend.EditorOf(f.Backend).SetCounts(ctx, b)
}

func (f *flaky) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func([][]byte),
) error {
	if f.down.Load() {
		return backend.ErrNoNames
	}
	return backend.EditorOf(f.Backend).ResetPrefixes(ctx, prefixes, dryRun, found)
}

func inMemory(t testing.TB) *flaky {
	t.Helper()
	return &flaky{Backend: limitertest.Store(t, memory.Config{})}
}

func open(t testing.TB, next backend.Backend, replicas int) *Store {
	t.Helper()
	s, err := New(next, Config{Replicas: func() int { return replicas }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func send(t testing.TB, s backend.Backend, at time.Duration, hits ...backend.Hit) []backend.Verdict {
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
	return send(t, s, at, backend.Hit{Key: []byte(key), Limit: l, Op: algorithm.Look})[0].Before
}

// Verdicts of the store are returned. Other hits are decided by their fallback.
func TestModes(t *testing.T) {
	next := inMemory(t)
	s := open(t, next, 1)
	hits := func(amount uint64, op algorithm.Op) (hits []backend.Hit) {
		for i := range backend.Fallbacks.Names() {
			f := backend.Fallback(i)
			hits = append(hits, backend.Hit{
				Key: []byte(f.String()), Limit: fixed(10, time.Minute), Amount: amount,
				Op: op, Fallback: f, GroupID: uint16(i),
			})
		}
		return hits
	}
	for _, v := range send(t, s, 0, hits(4, algorithm.Charge)...) {
		if v.Err != nil || v.Over || v.Remaining != 6 || v.Fallback != 0 {
			t.Errorf("up: %+v", v)
		}
	}
	next.down.Store(true)
	got := send(t, s, 0, hits(7, algorithm.Charge)...)
	for i, want := range []backend.Verdict{
		{Err: errDown},
		{Outcome: algorithm.Outcome{Remaining: 3}, Fallback: backend.FallbackAllow},
		{Outcome: algorithm.Outcome{
			Over: true, Before: 10, After: 10, RetryAfter: time.Second,
			ResetAfter: time.Second,
		}, Fallback: backend.FallbackDeny},
		{
			Outcome: algorithm.Outcome{
				Charged: true, After: 7, Remaining: 3, ResetAfter: time.Minute,
				WindowEnd: epoch.Add(time.Minute).UnixNano(),
			},
			Fallback: backend.FallbackLocal, Share: 10,
		},
	} {
		if got[i] != want {
			t.Errorf("down, %v: got %+v, want %+v", backend.Fallback(i), got[i], want)
		}
	}
	got = send(t, s, 0, hits(7, algorithm.Charge)...)
	if v := got[3]; !v.Over || v.RetryAfter != time.Minute || v.FullUntil != 0 {
		t.Errorf("a share is used up: %+v", v) // which no cache in front may take for the limit
	}
	for _, v := range send(t, s, 0, hits(1, algorithm.Refund)...)[1:] {
		if v.Over || v.Err != nil || v.Fallback == 0 {
			t.Errorf("a refund: %+v", v)
		}
	}
	st := s.Stats()
	if st.UnansweredHits != [4]uint64{3, 3, 3, 3} || st.LastFailure.IsZero() {
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
	deny.Fallback, deny.GroupID = backend.FallbackDeny, 1
	got := send(t, s, 0, local("a", fixed(10, time.Minute), 7), deny)
	if got[0].Fallback != backend.FallbackLocal || got[0].Remaining != 3 || !got[1].Over {
		t.Errorf("got %+v", got)
	}
	if st := s.Stats(); !st.LastFailure.IsZero() || st.UnansweredHits[backend.FallbackLocal] != 1 {
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
		{limit: banned, how: backend.FallbackAllow, op: algorithm.Look, over: true, retry: algorithm.Never},
		{limit: banned, how: backend.FallbackDeny, over: true, retry: algorithm.Never},
		{limit: banned, how: backend.FallbackLocal, over: true, retry: algorithm.Never},
		{limit: banned, how: backend.FallbackDeny, amount: 1, over: true, retry: algorithm.Never},
		{limit: banned, how: backend.FallbackLocal, amount: 1, over: true, retry: algorithm.Never},
		{limit: ten, how: backend.FallbackAllow, amount: 10},
		{limit: ten, how: backend.FallbackAllow, amount: 11, over: true, retry: algorithm.Never},
		{limit: ten, how: backend.FallbackDeny, amount: 10, over: true, retry: denyRetryAfter},
		{limit: ten, how: backend.FallbackDeny, amount: 11, over: true, retry: algorithm.Never},
		{limit: ten, how: backend.FallbackLocal, amount: 3},
		{limit: ten, how: backend.FallbackLocal, amount: 4, over: true, retry: denyRetryAfter},
		{limit: ten, how: backend.FallbackLocal, amount: 10, over: true, retry: denyRetryAfter},
		{limit: ten, how: backend.FallbackLocal, amount: 11, over: true, retry: algorithm.Never},
	} {
		next := inMemory(t)
		next.down.Store(true)
		v := send(t, open(t, next, 4), 0, backend.Hit{
			Key: []byte("k"), Limit: tt.limit, Op: tt.op, Amount: tt.amount,
			Fallback: tt.how,
		})[0]
		if v.Over != tt.over || v.RetryAfter != tt.retry || v.Fallback != tt.how {
			t.Errorf("%v of %d of %d, %v: %+v", tt.op, tt.amount, tt.limit.Max, tt.how, v)
		}
	}
}

// If the context has ended, the errors stay, and nothing is counted.
func TestCallerLeft(t *testing.T) {
	next := inMemory(t)
	next.down.Store(true)
	s := open(t, next, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := backend.Batch{
		Hits:     []backend.Hit{local("k", fixed(10, time.Minute), 1)},
		Verdicts: make([]backend.Verdict, 1), Now: epoch,
	}
	if err := s.Take(ctx, &b); err != nil {
		t.Fatal(err)
	}
	if b.Verdicts[0].Err == nil || s.Stats().LocalCounters.Keys != 0 {
		t.Errorf("%+v %+v", b.Verdicts[0], s.Stats())
	}
}

// leaving is a store whose calls end because their callers leave.
type leaving struct{}

func (leaving) Take(_ context.Context, b *backend.Batch) error {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: fmt.Errorf("redis: %w", context.Canceled)}
	}
	return nil
}

// A caller that leaves before the answer is no failure of the store.
func TestCanceledHits(t *testing.T) {
	t.Parallel()
	s := open(t, leaving{}, 1)
	send(t, s, 0, backend.Hit{Key: []byte("k"), Limit: fixed(10, time.Minute), Amount: 1})
	if st := s.Stats(); !st.LastFailure.IsZero() || st.UnansweredHits != [4]uint64{} {
		t.Errorf("%+v", st)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(inMemory(t), Config{MaxBytes: memory.MinBytes - 1}); err == nil {
		t.Error("a cap of too few bytes is taken")
	}
	if _, err := New(inMemory(t), Config{MaxBytes: memory.MinBytes}); err != nil {
		t.Error(err)
	}
}

// What is decided here passes the suite of all stores.
func TestSuite(t *testing.T) {
	t.Run("up", func(t *testing.T) {
		backendtest.Suite{Brief: true}.Run(t, func(t *testing.T) backend.Backend { return open(t, inMemory(t), 1) })
	})
	t.Run("down", func(t *testing.T) {
		backendtest.Suite{NoFullUntil: true, Brief: true}.Run(t, func(t *testing.T) backend.Backend {
			next := inMemory(t)
			next.down.Store(true)
			return asLocal{open(t, next, 1)}
		})
	})
}

// asLocal counts all hits in this process, and clears Verdict.Fallback.
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

// Of one counter: what passes while the store is up, down and up again, and what the
// store and this process have counted in the end.
func TestOutages(t *testing.T) {
	const up, down = false, true
	type step struct {
		at     time.Duration
		down   bool
		amount uint64
		op     algorithm.Op
		over   bool
	}
	counted, polite := fixed(10, time.Minute), &algorithm.Limit{Max: 10, Period: time.Minute}
	for _, tt := range []struct {
		name          string
		limit         *algorithm.Limit
		replicas      int
		steps         []step
		at            time.Duration
		byStore, here uint64
	}{
		{"the store is not told afterwards", counted, 2, []step{
			{0, up, 4, algorithm.Charge, false},
			{1 * time.Second, down, 5, algorithm.Charge, false},
			{2 * time.Second, down, 1, algorithm.Charge, true}, // a half of 10
			{3 * time.Second, up, 6, algorithm.Charge, false},
			{4 * time.Second, up, 1, algorithm.Charge, true},
		}, 5 * time.Second, 11, 5}, // What was refused under the half does not count under all of it.
		{"a share lasts for two outages of one window", polite, 2, []step{
			{0, down, 3, algorithm.Charge, false},
			{1 * time.Second, up, 4, algorithm.Charge, false},
			{2 * time.Second, down, 2, algorithm.Charge, false},
			{3 * time.Second, down, 1, algorithm.Charge, true},
		}, 5 * time.Second, 4, 5},
		{"the next window has a share of its own", polite, 2, []step{
			{50 * time.Second, down, 5, algorithm.Charge, false},
			{59 * time.Second, down, 1, algorithm.Charge, true},
			{60 * time.Second, down, 5, algorithm.Charge, false},
			{61 * time.Second, down, 1, algorithm.Charge, true},
		}, 62 * time.Second, 0, 5},
		{"a refund goes to the local counter", polite, 1, []step{
			{0, up, 8, algorithm.Charge, false},
			{1 * time.Second, down, 4, algorithm.Charge, false},
			{2 * time.Second, down, 3, algorithm.Refund, false},
		}, 5 * time.Second, 8, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := inMemory(t)
			s := open(t, next, tt.replicas)
			for i, step := range tt.steps {
				next.down.Store(step.down)
				h := local("k", tt.limit, step.amount)
				h.Op = step.op
				v := send(t, s, step.at, h)[0]
				if v.Over != step.over || v.Err != nil || (v.Fallback == backend.FallbackLocal) != step.down {
					t.Fatalf("step %d: %+v", i, v)
				}
			}
			next.down.Store(false)
			if byStore, here := count(t, next, tt.at, "k", tt.limit), count(t, s.localStore.Load(), tt.at, "k",
				tt.limit); byStore != tt.byStore || here != tt.here {
				t.Errorf("the store has counted %d and this process %d, want %d and %d", byStore, here, tt.byStore,
					tt.here)
			}
		})
	}
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
				send(t, short, 0, local("k", second, tt.shortBefore))
			}
			if tt.longBefore > 0 {
				send(t, long, 0, local("k", minute, tt.longBefore))
			}
			short.down.Store(tt.shortDown)
			long.down.Store(tt.longDown)
			hits := []backend.Hit{local("k", second, 1), local("k", minute, 1)}
			hits[0].Atomic, hits[1].Atomic = true, true
			hits[0].Fallback, hits[1].Fallback = tt.shortSays, tt.longSays
			v := send(t, s, 0, hits...)
			if passes := !v[0].Over && !v[1].Over; passes != tt.passes || v[0].Err != nil || v[1].Err != nil {
				t.Errorf("%+v", v)
			}
			short.down.Store(false)
			long.down.Store(false)
			if a, b := count(t, short, 0, "k", second), count(t, long, 0, "k", minute); a != tt.shortCounted ||
				b != tt.longCounts {
				t.Errorf("the stores have %d and %d, want %d and %d", a, b, tt.shortCounted, tt.longCounts)
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
		limit := &algorithm.Limit{
			Kind: algorithm.Kind(rnd.IntN(int(algorithm.Concurrency))), Max: 1 + rnd.Uint64N(12),
			Period: 10 * time.Second,
		}
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
			switch rnd.IntN(5) {
			case 0:
				ways[i].down.Store(rnd.IntN(2) == 0)
			default:
				amount := 1 + rnd.Uint64N(2)
				if v := send(t, stores[i], at, local("k", limit, amount))[0]; !v.Over {
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
		part := limitShare(limit, uint64(n))
		own, shares := bound(limit), uint64(n)*bound(&part)
		for _, check := range []struct {
			name  string
			times []time.Duration
			most  uint64
		}{{"all", passed, own + shares}, {"by the store", byStore, own}, {"here", here, shares}} {
			if got := busiest(check.times, limit); got > check.most {
				t.Fatalf("round %d, %d replicas, %+v: %d passed %s, at most %d may", round, n, *limit, got, check.name,
					check.most)
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

// Each of many concurrent calls is counted once: by the store or in this process.
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
			}
		}
	})
	for c := range 8 {
		callers.Go(func() {
			for i := range 2000 {
				send(t, s, 0, local(fmt.Sprint("k", (c+i)%7), limit, 1))
			}
		})
	}
	callers.Wait()
	close(stop)
	others.Wait()
	next.down.Store(false)
	total := uint64(0)
	for i := range 7 {
		key := fmt.Sprint("k", i)
		total += count(t, next, 0, key, limit) + count(t, s.localStore.Load(), 0, key, limit)
	}
	if total != 16_000 {
		t.Errorf("%d of 16000 are counted, %+v", total, s.Stats())
	}
}
