package split

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
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

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func counters(tb testing.TB) *memory.Store {
	tb.Helper()
	return limitertest.Store(tb, memory.Config{})
}

func send(tb testing.TB, store backend.Backend, at time.Time, hits ...backend.Hit) []backend.Verdict {
	tb.Helper()
	b := backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits)), Now: at}
	if err := store.Take(tb.Context(), &b); err != nil {
		tb.Fatalf("Take: %v", err)
	}
	return b.Verdicts
}

// spy notes what reaches a store.
type spy struct {
	next    backend.Backend
	name    string
	log     *[]string
	batches []*backend.Batch
	err     error // of the next verdicts
}

func (s *spy) Take(ctx context.Context, b *backend.Batch) error {
	for i := range b.Hits {
		h := &b.Hits[i]
		*s.log = append(*s.log, fmt.Sprintf("%s %v %s", s.name, h.Op, h.Key))
	}
	s.batches = append(s.batches, b)
	err := s.next.Take(ctx, b)
	if s.err != nil {
		for i := range b.Verdicts {
			b.Verdicts[i] = backend.Verdict{Err: s.err}
		}
	}
	return err
}

func open(tb testing.TB) (store backend.Backend, perSecond, rest *spy, log *[]string) {
	tb.Helper()
	log = new([]string)
	perSecond = &spy{next: counters(tb), name: "s", log: log}
	rest = &spy{next: counters(tb), name: "r", log: log}
	return New(perSecond, rest), perSecond, rest, log
}

func hit(key string, most uint64, period time.Duration, n uint64) backend.Hit {
	return backend.Hit{
		Key: []byte(key), Limit: &algorithm.Limit{Max: most, Period: period, CountBlocked: true},
		Amount: n,
	}
}

func TestSuite(t *testing.T) {
	backendtest.Suite{Brief: true}.Run(t, func(t *testing.T) backend.Backend { return New(counters(t), counters(t)) })
}

func TestOneStoreGetsTheBatchItself(t *testing.T) {
	for _, test := range []struct {
		name   string
		period time.Duration
		short  bool
	}{
		{"a second", time.Second, true},
		{"less", time.Millisecond, true},
		{"more", time.Second + 1, false},
		{"a minute", time.Minute, false},
	} {
		store, perSecond, rest, _ := open(t)
		b := backend.Batch{
			Hits:     []backend.Hit{hit("a", 9, test.period, 1), hit("b", 9, test.period, 1)},
			Verdicts: make([]backend.Verdict, 2),
		}
		if err := store.Take(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		got, other := rest, perSecond
		if test.short {
			got, other = perSecond, rest
		}
		if len(got.batches) != 1 || got.batches[0] != &b || len(other.batches) != 0 {
			t.Errorf("%s: not passed on", test.name)
		}
	}
	t.Run("empty", func(t *testing.T) {
		store, _, _, _ := open(t)
		send(t, store, time.Time{})
	})
}

func TestOrderIsKept(t *testing.T) {
	store, perSecond, rest, log := open(t)
	v := send(
		t, store, time.Time{}, hit("m1", 10, time.Minute, 1), hit("s1", 10, time.Second, 2), hit("m2", 10, time.Minute,
			3),
		hit("s2", 10, time.Second, 4), hit("m1", 10, time.Minute, 5),
	)
	for i, want := range []uint64{1, 2, 3, 4, 6} {
		if v[i].After != want {
			t.Errorf("hit %d: %+v", i, v[i])
		}
	}
	want := []string{"r charge m1", "r charge m2", "r charge m1", "s charge s1", "s charge s2"}
	if !slices.Equal(*log, want) {
		t.Errorf("%q, want %q", *log, want)
	}
	if !perSecond.batches[0].Now.IsZero() || !rest.batches[0].Now.IsZero() {
		t.Error("the stores got an instant")
	}
}

type member struct {
	key    string // s…: a second, m…: a minute
	n      uint64
	op     algorithm.Op
	plain  bool // not atomic
	shadow bool
	group  uint16

	over, charged bool
}

type groupCase struct {
	name            string
	perSecond, rest error
	hits            []member
	log             []string
}

var errGone = errors.New("errGone")

var groupCases = []groupCase{
	{"all pass", nil, nil, []member{
		{key: "m", n: 1, charged: true},
		{key: "s", n: 1, charged: true},
	}, []string{"r look m", "s charge s", "r charge m"}},
	{"rest refuses", nil, nil, []member{
		{key: "s", n: 1},
		{key: "mfull", n: 1, over: true},
		{key: "m", n: 1},
	}, []string{"r look mfull", "r look m", "s look s"}},
	{"perSecond refuses", nil, nil, []member{
		{key: "sfull", n: 1, over: true},
		{key: "s", n: 1},
		{key: "m", n: 1},
	}, []string{"r look m", "s charge sfull", "s charge s"}},
	{"a shadow hit refuses no other hit", nil, nil, []member{
		{key: "sfull", n: 1, shadow: true, over: true, charged: true},
		{key: "mfull", n: 1, shadow: true, over: true, charged: true},
		{key: "m", n: 1, charged: true},
	}, []string{"r look mfull", "r look m", "s charge sfull", "r charge mfull", "r charge m"}},
	{"refunds wait for the rest", nil, nil, []member{
		{key: "mfull", n: 1, op: refund},
		{key: "mfull2", n: 1, op: force},
		{key: "sfull", n: 1, over: true},
	}, []string{"r look mfull", "r look mfull2", "s charge sfull"}},
	{"and happen", nil, nil, []member{
		{key: "mfull", n: 1, op: refund, charged: true},
		{key: "s", n: 1, charged: true},
	}, []string{"r look mfull", "s charge s", "r refund mfull"}},
	{"what is not atomic is charged once, whatever happens", nil, nil, []member{
		{key: "m", n: 1, plain: true, charged: true},
		{key: "s", n: 1, plain: true, charged: true},
		{key: "mfull", n: 1, over: true},
		{key: "s2", n: 1},
	}, []string{"r charge m", "r look mfull", "s charge s", "s look s2"}},
	{"and once if all pass", nil, nil, []member{
		{key: "m", n: 1, plain: true, charged: true},
		{key: "s", n: 1, charged: true},
		{key: "m2", n: 1, charged: true},
	}, []string{"r charge m", "r look m2", "s charge s", "r charge m2"}},
	{"nothing atomic", nil, nil, []member{
		{key: "mfull", n: 1, plain: true, over: true, charged: true},
		{key: "s", n: 1, plain: true, charged: true},
	}, []string{"r charge mfull", "s charge s"}},
	{"the batch keeps its order around a group", nil, nil, []member{
		{key: "m", n: 1, plain: true, charged: true},
		{key: "s", n: 1, group: 1, charged: true},
		{key: "m", n: 0, group: 1, charged: true},
		{key: "s", n: 0, plain: true, charged: true},
		{key: "m2", n: 1, plain: true, charged: true},
	}, []string{"r charge m", "r look m", "r charge m2", "s charge s", "s charge s", "r charge m"}},
	{"groups on other counters take their steps together", nil, nil, []member{
		{key: "s", n: 1, charged: true},
		{key: "m", n: 1, charged: true},
		{key: "s2", n: 1, group: 1},
		{key: "mfull", n: 1, group: 1, over: true},
		{key: "s2", n: 1, group: 2, charged: true},
		{key: "m2", n: 1, group: 2, charged: true},
	}, []string{
		"r look m", "r look mfull", "r look m2", "s charge s", "s look s2", "s charge s2", "r charge m",
		"r charge m2",
	}},
	{"groups on one counter take their steps in turn", nil, nil, []member{
		{key: "s", n: 1, charged: true},
		{key: "m", n: 1, charged: true},
		{key: "s2", n: 1, group: 1},
		{key: "m", n: 1, group: 1, over: true},
		{key: "m", n: 1, group: 2, plain: true, over: true, charged: true},
	}, []string{"r look m", "s charge s", "r charge m", "r look m", "s look s2", "r charge m"}},
	{"rest is errGone", nil, errGone, []member{
		{key: "m", n: 1},
		{key: "s", n: 1},
	}, []string{"r look m", "s look s"}},
	{"perSecond is errGone", errGone, nil, []member{
		{key: "m", n: 1},
		{key: "s", n: 1},
	}, []string{"r look m", "s charge s"}},
}

func TestAtomicGroups(t *testing.T) {
	full := []backend.Hit{hit("sfull", 1, time.Second, 1), hit("mfull", 1, time.Minute, 1)}
	for _, test := range groupCases {
		t.Run(test.name, func(t *testing.T) {
			store, perSecond, rest, log := open(t)
			send(t, store, epoch, full...)
			*log = nil
			perSecond.err, rest.err = test.perSecond, test.rest
			var hits []backend.Hit
			for _, m := range test.hits {
				period := time.Minute
				if m.key[0] == 's' {
					period = time.Second
				}
				h := hit(m.key, 1, period, m.n)
				h.Op, h.Atomic, h.NoVeto, h.GroupID = m.op, !m.plain, m.shadow, m.group
				hits = append(hits, h)
			}
			for i, v := range send(t, store, epoch, hits...) {
				got, want := test.hits[i], test.hits[i]
				got.over, got.charged = v.Over, v.Charged
				if got != want {
					t.Errorf("hit %d:\n got %+v\nwant %+v", i, got, want)
				}
				if wantErr := map[byte]error{'s': test.perSecond, 'm': test.rest}[want.key[0]]; v.Err != wantErr {
					t.Errorf("hit %d: error %v, want %v", i, v.Err, wantErr)
				}
			}
			if !slices.Equal(*log, test.log) {
				t.Errorf("asked %q\nwant  %q", *log, test.log)
			}
		})
	}
}

// Alone, the two stores together are one store.
func TestReferee(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	store, one := New(counters(t), counters(t)), counters(t)
	now := epoch
	periods := []time.Duration{time.Second, time.Second, time.Minute, 5 * time.Minute}
	for round := range 5000 {
		now = now.Add(time.Duration(rnd.Int64N(int64(400 * time.Millisecond))))
		var hits []backend.Hit
		for range 1 + rnd.IntN(8) {
			group := uint16(rnd.IntN(2)) // numbers come again
			keys := rnd.Perm(12)         // within a group each its own: looks do not see each other
			for i := range 1 + rnd.IntN(3) {
				n := len(hits)
				if n > 0 && i == 0 && hits[n-1].GroupID == group {
					group += 2
				}
				hits = append(hits, backend.Hit{
					Key: fmt.Appendf(nil, "key-%d", keys[i]),
					Limit: &algorithm.Limit{
						Max: rnd.Uint64N(8), Period: periods[rnd.IntN(len(periods))], CountBlocked: rnd.IntN(2) == 0,
					},
					Amount:  uint64(rnd.IntN(4)),
					Op:      []algorithm.Op{charge, charge, charge, charge, look, refund, refund, force}[rnd.IntN(8)],
					GroupID: group,
					Atomic:  rnd.IntN(3) > 0,
					NoVeto:  rnd.IntN(4) == 0,
				})
			}
		}
		got, want := send(t, store, now, hits...), send(t, one, now, hits...)
		for i := range got {
			g, w := got[i], want[i]
			if g != w {
				t.Fatalf("round %d, hit %d of %+v\n got %+v\nwant %+v", round, i, hits, g, w)
			}
		}
	}
}

// Groups that span both stores never pass more than either limit allows, and
// what is lost is lost per second only.
func TestConcurrentGroups(t *testing.T) {
	perSecond, rest := counters(t), counters(t)
	store := New(perSecond, rest)
	for _, test := range []struct{ second, minute uint64 }{{300, 500}, {500, 300}} {
		var passed atomic.Uint64
		var wg sync.WaitGroup
		key := fmt.Sprint(test)
		s, m := hit(key, test.second, time.Second, 1), hit(key, test.minute, time.Minute, 1)
		s.Atomic, m.Atomic = true, true
		for c := range 8 {
			wg.Go(func() {
				hits := []backend.Hit{s, m}
				if c%2 == 0 {
					hits = []backend.Hit{m, s}
				}
				for range 200 {
					b := backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, 2), Now: epoch}
					if err := store.Take(t.Context(), &b); err != nil {
						t.Error(err)
						return
					}
					if !b.Verdicts[0].Over && !b.Verdicts[1].Over {
						passed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		s.Op, m.Op = look, look
		seconds, minutes := send(t, perSecond, epoch, s)[0].Before, send(t, rest, epoch, m)[0].Before
		if n := passed.Load(); n != 300 || minutes != n || seconds < n || seconds > test.second {
			t.Errorf("%+v: %d passed, %d and %d are counted", test, n, seconds, minutes)
		}
	}
}

// A group with a limit per second and a hold in the other store opens the hold only if both pass.
func TestHoldsInGroups(t *testing.T) {
	store, _, rest, _ := open(t)
	slots := &algorithm.Limit{Kind: algorithm.Concurrency, Max: 2, Period: time.Minute, Hold: time.Minute}
	group := func(name string) []backend.Hit {
		hits := []backend.Hit{
			hit("second", 2, time.Second, 1),
			{Key: []byte("slots"), Limit: slots, Amount: 1, HoldID: backend.NewHoldID([]byte(name))},
		}
		hits[0].Atomic, hits[1].Atomic = true, true
		return hits
	}
	for i, want := range []struct {
		name string
		over bool
		open uint64
	}{{"a", false, 1}, {"a", false, 1}, {"b", true, 1}} {
		v := send(t, store, epoch, group(want.name)...)
		look := backend.Hit{Key: []byte("slots"), Limit: slots, Op: algorithm.Look}
		if left := send(t, rest, epoch, look)[0]; (v[0].Over || v[1].Over) != want.over || left.Before != want.open {
			t.Errorf("group %d: %+v, %d holds are open, want %d", i, v, left.Before, want.open)
		}
	}
}

func TestErrorsOfStores(t *testing.T) {
	broken := errors.New("broken")
	for name, store := range map[string]backend.Backend{
		"perSecond": New(fail{broken}, counters(t)),
		"rest":      New(counters(t), fail{broken}),
	} {
		for _, atomic := range []bool{false, true} {
			b := backend.Batch{
				Hits:     []backend.Hit{hit("s", 1, time.Second, 1), hit("m", 1, time.Minute, 1)},
				Verdicts: make([]backend.Verdict, 2),
			}
			b.Hits[0].Atomic = atomic
			if err := store.Take(t.Context(), &b); !errors.Is(err, broken) {
				t.Errorf("%s, atomic %t: %v", name, atomic, err)
			}
		}
	}
}

type fail struct{ err error }

func (f fail) Take(context.Context, *backend.Batch) error { return f.err }

// nowhere passes everything at once, so that only the split is measured.
type nowhere struct{}

func (nowhere) Take(_ context.Context, b *backend.Batch) error {
	clear(b.Verdicts)
	return nil
}

func BenchmarkTake(b *testing.B) {
	s, m := hit("second", 1<<40, time.Second, 1), hit("minute", 1<<40, time.Minute, 1)
	sa, ma := s, m
	sa.Atomic, ma.Atomic = true, true
	var many []backend.Hit // many are the hits of 256 requests.
	for i := range uint16(256) {
		sa.Key, ma.Key = fmt.Appendf(nil, "second-%d", i), fmt.Appendf(nil, "minute-%d", i)
		sa.GroupID, ma.GroupID = i, i
		many = append(many, sa, ma)
	}
	for _, bench := range []struct {
		name string
		hits []backend.Hit
	}{
		{"pass-through", []backend.Hit{m}},
		{"both", []backend.Hit{s, m}},
		{"atomic", []backend.Hit{sa, ma}},
		{"256 atomic groups", many},
	} {
		b.Run(bench.name, func(b *testing.B) {
			store := New(nowhere{}, nowhere{})
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				batch := backend.Batch{Hits: bench.hits, Verdicts: make([]backend.Verdict, len(bench.hits))}
				for pb.Next() {
					if err := store.Take(context.Background(), &batch); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
