package overlimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/testbed/backendtest"
	"ratelimit/testbed/limitertest"
)

const (
	charge = algorithm.Charge
	look   = algorithm.Look
	refund = algorithm.Refund
	force  = algorithm.Force
)

// epoch is the edge of a minute, an hour and a day.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func fixed(limit uint64, period time.Duration) *algorithm.Limit {
	return &algorithm.Limit{Max: limit, Period: period, CountBlocked: true}
}

// uncounted is fixed without counting what is refused.
func uncounted(limit uint64, period time.Duration) *algorithm.Limit {
	return &algorithm.Limit{Max: limit, Period: period}
}

func counters(tb testing.TB) *memory.Store {
	tb.Helper()
	return limitertest.Store(tb, memory.Config{})
}

// spy notes what reaches the store behind the cache.
type spy struct {
	next backend.Backend
	seen []backend.Hit // of the last batch
	err  error         // each verdict's
	then func()        // after the store has decided, before the cache learns of it
}

func (s *spy) Take(ctx context.Context, b *backend.Batch) error {
	s.seen = slices.Clone(b.Hits)
	if err := s.next.Take(ctx, b); err != nil {
		return err
	}
	if s.err != nil {
		for i := range b.Verdicts {
			b.Verdicts[i].Err = s.err
		}
	}
	if then := s.then; then != nil {
		s.then = nil
		then()
	}
	return nil
}

// send sends one batch, and returns its verdicts and what the store was asked.
func (s *spy) send(t *testing.T, c *Cache, at time.Time, hits ...backend.Hit) ([]backend.Verdict, []backend.Hit) {
	t.Helper()
	s.seen = nil
	return send(t, c, at, hits...), s.seen
}

func send(tb testing.TB, store backend.Backend, at time.Time, hits ...backend.Hit) []backend.Verdict {
	tb.Helper()
	b := backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits)), Now: at}
	if err := store.Take(tb.Context(), &b); err != nil {
		tb.Fatalf("Take: %v", err)
	}
	return b.Verdicts
}

func open(tb testing.TB) (*Cache, *spy) {
	tb.Helper()
	s := &spy{next: counters(tb)}
	return New(s, 0), s
}

func hit(key string, l *algorithm.Limit, n uint64) backend.Hit {
	return backend.Hit{Key: []byte(key), Limit: l, Amount: n}
}

// forgetful refunds nothing to each counter before it is asked, so that the
// cache has to ask every time.
type forgetful struct{ *Cache }

func (f forgetful) Take(ctx context.Context, b *backend.Batch) error {
	for _, h := range b.Hits {
		if h.Limit == nil {
			continue
		}
		nothing := backend.Batch{
			Hits:     []backend.Hit{{Key: h.Key, Limit: h.Limit, Op: refund}},
			Verdicts: make([]backend.Verdict, 1),
		}
		if err := f.Cache.Take(ctx, &nothing); err != nil && h.Amount <= algorithm.MaxAmount {
			return err
		}
	}
	return f.Cache.Take(ctx, b)
}

// What the cache does not know is answered as the store does.
func TestSuite(t *testing.T) {
	backendtest.Suite{Brief: true}.Run(t, func(t *testing.T) backend.Backend {
		return forgetful{New(counters(t), 0)}
	})
}

type step struct {
	at    time.Duration
	op    algorithm.Op
	n     uint64
	over  bool
	after uint64
	retry time.Duration
	reset time.Duration
	asked bool // the store was
}

type stepsCase struct {
	name  string
	limit *algorithm.Limit
	steps []step
}

func TestSteps(t *testing.T) {
	for _, test := range stepsCases() {
		t.Run(test.name, func(t *testing.T) {
			c, s := open(t)
			for i, st := range test.steps {
				h := hit("k", test.limit, st.n)
				h.Op = st.op
				verdicts, seen := s.send(t, c, epoch.Add(st.at), h)
				v := verdicts[0]
				if got := (step{
					st.at, st.op, st.n, v.Over, v.After, v.RetryAfter, v.ResetAfter,
					seen != nil,
				}); got != st {
					t.Errorf("step %d:\n got %+v\nwant %+v", i, got, st)
				}
				if v.Cached == st.asked {
					t.Errorf("step %d: Cached is %t, and the store was asked: %t", i, v.Cached, st.asked)
				}
				if v.Cached && (v.Charged || v.Before != v.After || v.Remaining != 0 ||
					v.FullUntil != epoch.Add(st.at+st.reset).UnixNano()) {
					t.Errorf("step %d: %+v", i, v)
				}
			}
		})
	}
}

func stepsCases() []stepsCase {
	const s, m = time.Second, time.Minute
	return []stepsCase{
		{"refused once, then from here, until the window ends", fixed(2, m), []step{
			{n: 2, after: 2, reset: m, asked: true},
			{at: 1 * s, n: 1, over: true, after: 3, retry: 59 * s, reset: 59 * s, asked: true},
			{at: 2 * s, n: 1, over: true, after: 3, retry: 58 * s, reset: 58 * s},
			{at: 3 * s, n: 2, over: true, after: 3, retry: 57 * s, reset: 57 * s},
			{at: 4 * s, n: 3, over: true, after: 3, retry: algorithm.Never, reset: 56 * s},
			{at: 5 * s, n: 0, over: true, after: 3, retry: 55 * s, reset: 55 * s},
			{at: 6 * s, op: look, n: 1, over: true, after: 3, retry: 54 * s, reset: 54 * s},
			{at: m - 1, n: 1, over: true, after: 3, retry: 1, reset: 1},
			{at: m, n: 1, after: 1, reset: m, asked: true},
			{at: m, n: 1, after: 2, reset: m, asked: true},
			{at: m, n: 1, over: true, after: 3, retry: m, reset: m, asked: true},
			{at: m, n: 1, over: true, after: 3, retry: m, reset: m},
		}},
		{"full is not over yet, and one that is too much does not make it full", uncounted(10, m), []step{
			{n: 8, after: 8, reset: m, asked: true},
			{n: 3, over: true, after: 8, retry: m, reset: m, asked: true},
			{n: 3, over: true, after: 8, retry: m, reset: m, asked: true},
			{n: 11, over: true, after: 8, retry: algorithm.Never, reset: m, asked: true},
			{n: 2, after: 10, reset: m, asked: true},
			{n: 1, over: true, after: 10, retry: m, reset: m, asked: true},
			{n: 1, over: true, after: 10, retry: m, reset: m},
			{n: 0, after: 10, reset: m, asked: true}, // a hit of nothing passes a limit that is just full
			{n: 1, over: true, after: 10, retry: m, reset: m},
		}},
		{"a look does not keep a charge from being counted", fixed(1, m), []step{
			{n: 1, after: 1, reset: m, asked: true},
			{op: look, n: 1, over: true, after: 1, retry: m, reset: m, asked: true},
			{op: look, n: 1, over: true, after: 1, retry: m, reset: m},
			{n: 1, over: true, after: 2, retry: m, reset: m, asked: true},
			{n: 1, over: true, after: 2, retry: m, reset: m},
			{n: 0, over: true, after: 2, retry: m, reset: m},
		}},
		{"a limit of 0", fixed(0, m), []step{
			{op: look, n: 1, over: true, retry: algorithm.Never, reset: m, asked: true},
			{op: look, n: 1, over: true, retry: algorithm.Never, reset: m},
			{op: look, n: 0, over: true, retry: algorithm.Never, reset: m, asked: true},
			{n: 1, over: true, after: 1, retry: algorithm.Never, reset: m, asked: true},
			{n: 1, over: true, after: 1, retry: algorithm.Never, reset: m},
			{n: 0, over: true, after: 1, retry: algorithm.Never, reset: m},
		}},
		{"a refund makes room at once", fixed(2, m), []step{
			{n: 3, over: true, after: 3, retry: algorithm.Never, reset: m, asked: true},
			{n: 1, over: true, after: 3, retry: m, reset: m},
			{op: refund, n: 2, after: 1, reset: m, asked: true},
			{n: 1, after: 2, reset: m, asked: true},
			{n: 1, over: true, after: 3, retry: m, reset: m, asked: true},
			{n: 1, over: true, after: 3, retry: m, reset: m},
		}},
		{"forced hits go through", uncounted(2, m), []step{
			{op: force, n: 2, after: 2, reset: m, asked: true},
			{n: 1, over: true, after: 2, retry: m, reset: m, asked: true},
			{n: 1, over: true, after: 2, retry: m, reset: m},
			{op: force, n: 3, after: 5, reset: m, asked: true},
			{n: 1, over: true, after: 5, retry: m, reset: m, asked: true},
			{n: 1, over: true, after: 5, retry: m, reset: m},
		}},
		{"a clock that goes back", fixed(1, m), []step{
			{at: m + 30*s, n: 2, over: true, after: 2, retry: algorithm.Never, reset: 30 * s, asked: true},
			{at: 30 * s, n: 1, after: 1, reset: 30 * s, asked: true}, // another window
			{at: m + 20*s, n: 1, over: true, after: 3, retry: 40 * s, reset: 40 * s, asked: true},
			{at: m + 30*s, n: 1, over: true, after: 3, retry: 30 * s, reset: 30 * s},
		}},
		{"the longest window", fixed(1, algorithm.MaxPeriod), []step{
			{n: 1, after: 1, reset: left(algorithm.MaxPeriod), asked: true},
			{
				n: 1, over: true, after: 2, retry: left(algorithm.MaxPeriod), reset: left(algorithm.MaxPeriod),
				asked: true,
			},
			{n: 1, over: true, after: 2, retry: left(algorithm.MaxPeriod), reset: left(algorithm.MaxPeriod)},
			{
				at: left(algorithm.MaxPeriod), n: 2, over: true, after: 2, retry: algorithm.Never,
				reset: algorithm.MaxPeriod, asked: true,
			},
			{
				at: left(algorithm.MaxPeriod), n: 1, over: true, after: 2, retry: algorithm.MaxPeriod,
				reset: algorithm.MaxPeriod,
			},
		}},
	}
}

// left is what is left at epoch of a window of period.
func left(period time.Duration) time.Duration {
	_, end := algorithm.WindowBounds(epoch.UnixNano(), period)
	return time.Duration(end - epoch.UnixNano())
}

func TestEntriesDieWithTheirRule(t *testing.T) {
	old := *fixed(5, time.Minute)
	changed := func(f func(*algorithm.Limit)) *algorithm.Limit {
		l := old
		f(&l)
		return &l
	}
	for name, l := range map[string]*algorithm.Limit{
		"raised":                changed(func(l *algorithm.Limit) { l.Max = 100 }),
		"lowered":               changed(func(l *algorithm.Limit) { l.Max = 4 }),
		"longer":                changed(func(l *algorithm.Limit) { l.Period = time.Hour }),
		"refusals do not count": changed(func(l *algorithm.Limit) { l.CountBlocked = false }),
		"burst":                 changed(func(l *algorithm.Limit) { l.Burst = 1 }),
		"interval":              changed(func(l *algorithm.Limit) { l.MinInterval = 1 }),
	} {
		t.Run(name, func(t *testing.T) {
			c, s := open(t)
			send(t, c, epoch, hit("k", &old, 6))
			if _, seen := s.send(t, c, epoch, hit("k", &old, 1)); seen != nil {
				t.Fatal("there is no entry")
			}
			v, seen := s.send(t, c, epoch, hit("k", l, 1))
			if seen == nil {
				t.Errorf("the old rule's entry answered: %+v", v[0])
			}
			if name == "raised" && v[0].Over {
				t.Error("the raised limit does not let it pass")
			}
		})
	}
	t.Run("the same rule, compiled again", func(t *testing.T) {
		c, s := open(t)
		send(t, c, epoch, hit("k", &old, 6))
		again := old
		if _, seen := s.send(t, c, epoch, hit("k", &again, 1)); seen != nil {
			t.Error("the store was asked")
		}
	})
	t.Run("a refund under the new rule", func(t *testing.T) {
		c, _ := open(t)
		send(t, c, epoch, hit("k", &old, 6))
		back := hit("k", fixed(100, time.Minute), 4)
		back.Op = refund
		if v := send(t, c, epoch, back, hit("k", &old, 1)); v[1].Over {
			t.Errorf("%+v: there is room", v[1])
		}
	})
}

func TestKeysAreToldApart(t *testing.T) {
	c, s := open(t)
	long := make([]byte, 70_000)
	keys := []string{"", "a", "A", "a\x00", string(long), string(long[1:])}
	l := fixed(1, time.Minute)
	for _, k := range keys {
		if v, _ := s.send(t, c, epoch, hit(k, l, 2)); v[0].Cached {
			t.Errorf("key %.20q is another's", k)
		}
	}
	for _, k := range keys {
		if v, seen := s.send(t, c, epoch, hit(k, l, 2)); !v[0].Cached || seen != nil {
			t.Errorf("key %.20q has no entry", k)
		}
	}
}

// With the clock's own time, entries end at the window's edge too.
func TestRealTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := open(t)
		l := fixed(1, 10*time.Second)
		time.Sleep(time.Until(time.Now().Truncate(10 * time.Second).Add(10*time.Second + 300*time.Millisecond)))
		send(t, c, time.Time{}, hit("k", l, 2))
		for range 9 {
			time.Sleep(time.Second)
			if v, seen := s.send(t, c, time.Time{}, hit("k", l, 1)); seen != nil || !v[0].Over ||
				v[0].RetryAfter > 10*time.Second {
				t.Errorf("%v: %+v", time.Now(), v[0])
			}
		}
		time.Sleep(700*time.Millisecond - 1)
		if v := send(t, c, time.Time{}, hit("k", l, 1)); !v[0].Cached || v[0].RetryAfter != 1 {
			t.Errorf("a nanosecond before the edge: %+v", v[0])
		}
		time.Sleep(time.Nanosecond)
		if v := send(t, c, time.Time{}, hit("k", l, 1)); v[0].Over {
			t.Errorf("at the edge: %+v", v[0])
		}
		want := Stats{Hits: 10, Misses: 2, Lookups: 12, Expired: 1}
		if st := c.Stats(); st.Hits != want.Hits || st.Misses != want.Misses || st.Lookups != want.Lookups ||
			st.Expired != want.Expired {
			t.Errorf("%+v, want %+v", st, want)
		}
	})
}

// The wall clock stands still for virtual time, and the other way round.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := open(t)
		l := fixed(1, time.Second)
		far := time.Date(2149, 12, 31, 23, 59, 59, 0, time.UTC)
		for i := range 100 { // 100 windows in no time
			at := far.Add(-time.Duration(i) * time.Second)
			send(t, c, at, hit("k", l, 2))
			if _, seen := s.send(t, c, at.Add(time.Second-1), hit("k", l, 1)); seen != nil {
				t.Fatalf("no entry at %v", at)
			}
			if v := send(t, c, at.Add(time.Second), hit("other", l, 0)); v[0].Over {
				t.Fatalf("over at %v", at)
			}
		}
		send(t, c, epoch, hit("slow", l, 2))
		time.Sleep(10 * time.Minute)
		if _, seen := s.send(t, c, epoch, hit("slow", l, 1)); seen != nil {
			t.Error("the wall clock ended an entry of virtual time")
		}
	})
}

func TestErrorOfTheNextStore(t *testing.T) {
	broken := errors.New("broken")
	c := New(fail{broken}, 0)
	b := backend.Batch{
		Hits: []backend.Hit{hit("k", fixed(1, time.Minute), 1)},
		Verdicts: []backend.Verdict{
			{Outcome: algorithm.Outcome{Over: true, FullUntil: time.Now().Add(time.Hour).UnixNano()}},
		},
	}
	if err := c.Take(t.Context(), &b); !errors.Is(err, broken) || c.Stats().Entries != 0 {
		t.Errorf("%v, %+v", err, c.Stats())
	}
}

type fail struct{ err error }

func (f fail) Take(context.Context, *backend.Batch) error { return f.err }

// The batch is the caller's: only its verdicts change.
func TestTheBatchIsNotTouched(t *testing.T) {
	c, _ := open(t)
	l := fixed(1, time.Minute)
	send(t, c, epoch, hit("full", l, 2))
	hits := []backend.Hit{hit("full", l, 1), hit("a", l, 1)}
	for i := range hits {
		hits[i].GroupID, hits[i].Atomic = 9, true
	}
	before := slices.Clone(hits)
	send(t, c, epoch, hits...)
	for i := range hits {
		if fmt.Sprint(hits[i]) != fmt.Sprint(before[i]) {
			t.Errorf("%+v became %+v", before[i], hits[i])
		}
	}
}

// However many counters are over their limits, memory stays, and answers stay
// right.
func TestMoreThanFits(t *testing.T) {
	c, _ := open(t)
	l := fixed(1, 24*time.Hour)
	const keys = 40_000
	for round := range 2 {
		for k := range keys {
			n := uint64(2)
			if k%10 == 0 {
				n = 1
			}
			v := send(t, c, epoch, hit(fmt.Sprint(k), l, n))
			if want := k%10 != 0 || round > 0; v[0].Over != want {
				t.Fatalf("round %d, key %d: %+v", round, k, v[0])
			}
		}
		for k := 0; k < keys; k += 10 { // used up in round 0, so over twice
			send(t, c, epoch, hit(fmt.Sprint(k), l, 1))
		}
	}
	st := c.Stats()
	if st.Entries < 6000 || st.Entries > MinBytes/72 || st.AverageAccessTime == 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%+v", st)
}

// A small and a large number are not what they seem.
func TestSizes(t *testing.T) {
	for _, bytes := range []int{-1, 0, 1, MinBytes, 4 << 20} {
		c := New(counters(t), bytes)
		send(t, c, epoch, hit("k", fixed(1, time.Minute), 2))
		if v := send(t, c, epoch, hit("k", fixed(1, time.Minute), 1)); !v[0].Cached {
			t.Errorf("%d bytes: no entry", bytes)
		}
	}
}

// Many goroutines charge, refund and look at the same few counters. After a refund there is
// room for a unit, since no other goroutine uses the counter.
func TestConcurrentRefunds(t *testing.T) {
	c := New(counters(t), 0)
	var wg sync.WaitGroup
	for key := range 4 {
		l := uncounted(1, time.Hour)
		name := fmt.Sprint(key)
		send(t, c, epoch, hit(name, l, 1))
		var done atomic.Bool
		for range 3 { // these only look, and make entries
			wg.Go(func() {
				h := hit(name, l, 1)
				h.Op = look
				b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
				for !done.Load() {
					if err := c.Take(t.Context(), &b); err != nil {
						t.Error(err)
						return
					}
					runtime.Gosched()
				}
			})
		}
		wg.Go(func() {
			defer done.Store(true)
			back := hit(name, l, 1)
			back.Op = refund
			for i := range 3000 {
				b := backend.Batch{Hits: []backend.Hit{back}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
				if err := c.Take(t.Context(), &b); err != nil {
					t.Error(err)
					return
				}
				b.Hits[0] = hit(name, l, 1)
				if err := c.Take(t.Context(), &b); err != nil || b.Verdicts[0].Over {
					t.Errorf("round %d: %+v, %v", i, b.Verdicts[0], err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// Nothing above the limit, and nothing below it.
func TestConcurrentCharges(t *testing.T) {
	for _, l := range []*algorithm.Limit{fixed(1000, time.Hour), uncounted(1000, time.Hour)} {
		c := New(counters(t), 0)
		var admitted [3]atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 3000 {
					k := i % len(admitted)
					b := backend.Batch{
						Hits:     []backend.Hit{hit(fmt.Sprint(k), l, 1), hit("side", l, 0)},
						Verdicts: make([]backend.Verdict, 2),
						Now:      epoch,
					}
					if err := c.Take(t.Context(), &b); err != nil || b.Verdicts[1].Over {
						t.Errorf("%+v, %v", b.Verdicts, err)
						return
					}
					if !b.Verdicts[0].Over {
						admitted[k].Add(1)
					}
				}
			})
		}
		wg.Wait()
		for k := range admitted {
			if n := admitted[k].Load(); n != 1000 {
				t.Errorf("key %d: %d admitted", k, n)
			}
		}
	}
}

// TestRuleHash checks that the hash depends on each field of a limit without holds, and on whether there are holds, and
// that equal calendars of two loads of the rules have one hash.
func TestRuleHash(t *testing.T) {
	t.Parallel()
	calendar := func(unit algorithm.CalendarUnit) *algorithm.Calendar {
		c, err := algorithm.NewCalendar(algorithm.CalendarSpec{Unit: unit, Units: 1, Location: time.UTC})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	limits := []algorithm.Limit{
		{},
		{Kind: algorithm.GCRA},
		{Max: 1},
		{Period: 1},
		{Burst: 1},
		{MinInterval: 1},
		{Emission: 1},
		{CountBlocked: true},
		{KeepsDebt: true},
		{Hold: 1},
		{Calendar: calendar(algorithm.CalendarDay)},
		{Calendar: calendar(algorithm.CalendarYear)},
	}
	// ReleaseUnsettled is left out, and a calendar is in two limits.
	if fields := reflect.TypeFor[algorithm.Limit]().NumField(); fields != len(limits)-1 {
		t.Errorf("a limit has %d fields, and %d are tested", fields, len(limits)-1)
	}
	h, seen := newIDHasher(), make(map[uint64]algorithm.Limit)
	for _, l := range limits {
		if other, has := seen[h.ruleHash(&l)]; has {
			t.Errorf("%+v and %+v have one hash", l, other)
		}
		seen[h.ruleHash(&l)] = l
	}
	if _, has := seen[h.ruleHash(&algorithm.Limit{Calendar: calendar(algorithm.CalendarDay)})]; !has {
		t.Error("an equal calendar has another hash")
	}
}

// fast is a store whose clock is ahead of that of this process.
type fast struct {
	backend.Backend
	by time.Duration
}

func (f fast) Take(ctx context.Context, b *backend.Batch) error {
	c := *b
	c.Now = b.Now.Add(f.by)
	return f.Backend.Take(ctx, &c)
}

// The window of a first hit follows the clock of the store. A refusal from the cache names the same end, exactly.
func TestWindowEndIsTheStores(t *testing.T) {
	t.Parallel()
	c := New(fast{counters(t), 1234567 * time.Microsecond}, 0)
	l := &algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 2, Period: time.Minute}
	want := epoch.Add(time.Minute + 1234567*time.Microsecond).UnixNano()
	send(t, c, epoch, hit("k", l, 2))
	for i, at := range []time.Duration{time.Second, 2 * time.Second, 59 * time.Second} {
		v := send(t, c, epoch.Add(at), hit("k", l, 1))[0]
		if !v.Over || v.Cached != (i > 0) || v.WindowEnd != want {
			t.Errorf("after %v: %+v, want a window that ends at %d", at, v, want)
		}
	}
}

// Refused hits of a leased limit need not count, so a counter that is full refuses them without the store. An exact
// limit counts them: the store sees each until the count is beyond the limit.
func TestLeasedHitsOfAFullCounter(t *testing.T) {
	for _, tt := range []struct {
		counting backend.Counting
		asked    int // of three hits after the limit is used up
	}{{backend.Exact, 1}, {backend.Leased, 1}} {
		at, asked := epoch, 0
		store := counters(t)
		c := New(backendFunc(func(ctx context.Context, b *backend.Batch) error {
			asked++
			if b.Hits[0].Counting == backend.Leased && asked > 2 {
				b.Hits[0].Op = look // as package leased asks, when nothing is left
			}
			return store.Take(ctx, b)
		}), 1<<20)
		for range 2 + 3 {
			b := &backend.Batch{
				Now: at, Verdicts: make([]backend.Verdict, 1),
				Hits: []backend.Hit{{Key: []byte("k"), Limit: fixed(2, time.Minute), Amount: 1, Counting: tt.counting}},
			}
			if err := c.Take(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		if asked != 2+tt.asked {
			t.Errorf("%v: the store is asked %d times, want %d", tt.counting, asked, 2+tt.asked)
		}
	}
}

type backendFunc func(context.Context, *backend.Batch) error

func (f backendFunc) Take(ctx context.Context, b *backend.Batch) error { return f(ctx, b) }
