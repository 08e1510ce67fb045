package leased_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/leased"
	"ratelimit/src/backend/memory"
)

// cluster is some replicas that share a store in memory. Calls of the store take delay.
type cluster struct {
	shared   *memory.Store
	delay    time.Duration
	commands atomic.Int64
	replicas []*leased.Store
	stop     func()
}

// Take is what replicas call.
func (c *cluster) Take(ctx context.Context, b *backend.Batch) error {
	time.Sleep(c.delay)
	c.commands.Add(int64(len(b.Hits)))
	return c.shared.Take(ctx, b)
}

func newCluster(t *testing.T, n int, delay time.Duration) *cluster {
	shared, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{shared: shared, delay: delay}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range n {
		s := leased.New(leased.Config{
			Next: c, Replicas: func() int { return n },
			Tell: func(_ context.Context, text []byte) error {
				time.Sleep(c.delay)
				for _, r := range c.replicas {
					r.Heard([][]byte{text}, true)
				}
				return nil
			},
		})
		c.replicas = append(c.replicas, s)
		wg.Go(func() { _ = s.Run(ctx) })
	}
	c.stop = func() { cancel(); wg.Wait() }
	return c
}

func leasedHit(key string, l *algorithm.Limit, amount uint64) backend.Hit {
	return backend.Hit{Key: []byte(key), Limit: l, Amount: amount, Counting: backend.Leased}
}

func take(t testing.TB, s backend.Backend, hits ...backend.Hit) []backend.Verdict {
	b := &backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits))}
	for i := range hits {
		hits[i].GroupID = uint16(i)
	}
	if err := s.Take(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return b.Verdicts
}

func TestNeverTooManyHardlyTooFew(t *testing.T) {
	for _, c := range []struct {
		max       uint64
		perSecond int
		replicas  []int
	}{
		{10, 20, []int{1, 2, 4, 8}},
		{60, 20, []int{1, 2, 4, 8}},
		{60, 200, []int{4}},
		{1000, 40, []int{1, 2, 4, 8}},
		{1000, 200, []int{8}},
		{50_000, 200, []int{8}},
		{20_000, 500, []int{4}},
	} {
		for _, n := range c.replicas {
			t.Run(fmt.Sprint(n, " replicas, ", c.max, " a minute, ", c.perSecond, " a second"), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { testRefusals(t, n, c.max, c.perSecond) })
			})
		}
	}
}

// testRefusals sends hits to random replicas for most of a minute, and checks how many pass.
func testRefusals(t *testing.T, replicas int, most uint64, perSecond int) {
	c := newCluster(t, replicas, time.Millisecond)
	defer c.stop()
	l := &algorithm.Limit{Max: most, Period: time.Minute, CountBlocked: true}
	var passed, hits atomic.Uint64
	start := time.Now()
	rng := rand.New(rand.NewPCG(1, uint64(replicas)))
	var wg sync.WaitGroup
	for time.Since(start) < 50*time.Second {
		r := c.replicas[rng.IntN(replicas)]
		hits.Add(1)
		wg.Go(func() {
			if !take(t, r, leasedHit("k", l, 1))[0].Over {
				passed.Add(1)
			}
		})
		time.Sleep(time.Second / time.Duration(perSecond))
	}
	wg.Wait()
	admissible := min(most, hits.Load())
	t.Logf("%d of %d admissible passed, of %d; %.4f commands a hit", passed.Load(), admissible, hits.Load(),
		float64(c.commands.Load())/float64(hits.Load()))
	if p := passed.Load(); p > most || float64(p) < 0.995*float64(admissible) {
		t.Errorf("%d of %d admissible passed", p, admissible)
	}
}

// A look asks the store, which counts what replicas hold, and says how much of it this replica does.
func TestLooksAskTheStore(t *testing.T) {
	c := newCluster(t, 2, 0)
	defer c.stop()
	l := &algorithm.Limit{Max: 80, Period: time.Minute, CountBlocked: true}
	for i, step := range []struct {
		replica      int
		op           algorithm.Op
		amount       uint64
		before, held uint64
		over         bool
	}{
		{replica: 0, op: algorithm.Charge, amount: 1},                      // takes 20 of 80
		{replica: 0, op: algorithm.Look, amount: 1, before: 20, held: 19},  //
		{replica: 1, op: algorithm.Look, amount: 1, before: 20},            // It holds nothing.
		{replica: 0, op: algorithm.Look, amount: 79, before: 20, held: 19}, // 60 are left, and 19 held.
		{replica: 0, op: algorithm.Look, amount: 80, before: 20, held: 19, over: true},
		{replica: 1, op: algorithm.Look, amount: 61, before: 20, over: true},
	} {
		h := leasedHit("k", l, step.amount)
		h.Op = step.op
		v := take(t, c.replicas[step.replica], h)[0]
		if step.op == algorithm.Look && (v.Before != step.before || v.HeldHere != step.held || v.Over != step.over) {
			t.Errorf("step %d: got %+v", i, v.Outcome)
		}
	}
}
