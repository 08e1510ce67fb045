package replicas

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/testbed/limitertest"
)

var errDown = errors.New("down")

// flaky is a store that counts nothing and answers no hit while it is down.
type flaky struct {
	backend.Backend
	down  atomic.Bool
	asked atomic.Int64 // hits
}

func (f *flaky) Take(ctx context.Context, b *backend.Batch) error {
	f.asked.Add(int64(len(b.Hits)))
	if !f.down.Load() {
		return f.Backend.Take(ctx, b)
	}
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: errDown}
	}
	return nil
}

func inMemory(t testing.TB) *flaky {
	t.Helper()
	return &flaky{Backend: limitertest.Store(t, memory.Config{})}
}

func newCounter(t *testing.T, store backend.Backend, cfg Config) *Counter {
	t.Helper()
	c, err := New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run runs counters until the returned function is called.
func run(t *testing.T, counters ...*Counter) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, c := range counters {
		running.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// Replicas find out how many they are, by the store that they share.
func TestReplicasAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := inMemory(t)
		down := &flaky{Backend: shared}
		var told, lastTold atomic.Int64
		counters := []*Counter{newCounter(t, down, Config{
			KeyPrefix: "p:", OnChange: func(_, after int) {
				told.Add(1)
				lastTold.Store(int64(after))
			},
		})}
		for range 3 {
			counters = append(counters, newCounter(t, shared, Config{KeyPrefix: "p:"}))
		}
		check := func(what string, want int) {
			t.Helper()
			if got := counters[0].Count(); got != want {
				t.Fatalf("%s: %d are counted, want %d", what, got, want)
			}
		}
		defer run(t, counters[0])()
		time.Sleep(time.Minute)
		check("one runs", 1)
		if !counters[0].Known() || counters[1].Known() {
			t.Fatal("the one that runs has counted itself, and no other")
		}
		stopTwo := run(t, counters[1], counters[2])
		defer run(t, counters[3])()
		for range 20 {
			time.Sleep(2 * heartbeatLimit.Period)
			check("all run", 4)
		}
		if !counters[0].Known() {
			t.Error("the count is not known")
		}
		down.down.Store(true)
		stopTwo()
		time.Sleep(2 * heartbeatLimit.Period)
		check("without the store", 4) // the last number stays
		down.down.Store(false)
		time.Sleep(4 * heartbeatLimit.Period) // two windows have to agree
		check("two are left", 2)
		if told.Load() < 2 || lastTold.Load() != 2 {
			t.Errorf("told %d times, last of %d", told.Load(), lastTold.Load())
		}
	})
}

// A number that is configured is not counted.
func TestFixed(t *testing.T) {
	t.Parallel()
	store := inMemory(t)
	c := newCounter(t, store, Config{Fixed: 3})
	if err := c.Run(t.Context()); err != nil || c.Count() != 3 || !c.Known() || store.asked.Load() != 0 {
		t.Errorf("%d, known %t, asked %d times, %v", c.Count(), c.Known(), store.asked.Load(), err)
	}
	if _, err := New(store, Config{Fixed: -1}); err == nil {
		t.Error("-1 replicas are taken")
	}
}

// Replicas that are not missing, but whose heartbeats a store has lost, are not
// dropped: in the next outage each would take the whole limit.
func TestLostHeartbeats(t *testing.T) {
	for _, tt := range []struct {
		name string
		lost time.Duration // how old the window is then
	}{
		{"after all came", 5 * time.Second},
		{"while they came", maxHeartbeatDelay / 2},
		{"before they came", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores := make([]*flaky, 4)
				counters := make([]*Counter, len(stores))
				shared := new(forgetful)
				shared.restart(t)
				for i := range counters {
					stores[i] = &flaky{Backend: shared}
					counters[i] = newCounter(t, stores[i], Config{})
				}
				defer run(t, counters...)()
				replicas := func() (n []int) {
					for _, c := range counters {
						n = append(n, c.Count())
					}
					return n
				}
				time.Sleep(2*heartbeatLimit.Period - heartbeatWindowAge())
				time.Sleep(tt.lost + time.Nanosecond)
				shared.restart(t)
				time.Sleep(heartbeatLimit.Period - heartbeatWindowAge() - time.Nanosecond)
				for _, f := range stores { // and soon it is away
					f.down.Store(true)
				}
				time.Sleep(time.Minute)
				if got := replicas(); !slices.Equal(got, []int{4, 4, 4, 4}) {
					t.Errorf("counted: %v", got)
				}
				for _, f := range stores[:2] {
					f.down.Store(false)
				}
				time.Sleep(3 * heartbeatLimit.Period)
				if got := replicas(); !slices.Equal(got, []int{2, 2, 4, 4}) {
					t.Errorf("two are left, counted: %v", got)
				}
			})
		})
	}
}

// forgetful is a store that can be restarted without what it counted.
type forgetful struct {
	mu  sync.Mutex
	now backend.Backend
}

func (f *forgetful) restart(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = inMemory(t).Backend
}

func (f *forgetful) Take(ctx context.Context, b *backend.Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now.Take(ctx, b)
}

// It is said once that replicas cannot be counted, and again after they could.
func TestUncounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		store := inMemory(t)
		c := newCounter(t, store, Config{OnFailure: func(err error) {
			told.Add(1)
			if !errors.Is(err, errDown) {
				t.Errorf("told of %v", err)
			}
		}})
		defer run(t, c)()
		for _, tt := range []struct {
			down bool
			long time.Duration
			want int64
		}{
			{false, time.Minute, 0},
			{true, 2 * heartbeatLimit.Period, 0},
			{false, time.Minute, 0},
			{true, time.Hour, 1},
			{false, time.Minute, 1},
			{true, time.Minute, 2},
		} {
			store.down.Store(tt.down)
			time.Sleep(tt.long)
			if told.Load() != tt.want {
				t.Errorf("down %t for %v: told %d times, want %d", tt.down, tt.long, told.Load(), tt.want)
			}
		}
	})
}

// A replica that has not reached the store knows no number.
func TestUnknownReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := inMemory(t)
		next.down.Store(true)
		c := newCounter(t, next, Config{})
		defer run(t, c)()
		time.Sleep(time.Minute)
		if c.Known() || c.Count() != 1 {
			t.Errorf("without the store: %d, known %t", c.Count(), c.Known())
		}
		next.down.Store(false)
		time.Sleep(time.Minute)
		if !c.Known() || c.Count() != 1 {
			t.Errorf("with the store: %d, known %t", c.Count(), c.Known())
		}
	})
}
