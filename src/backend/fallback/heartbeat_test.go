package fallback

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
)

// now is a hit by the clock of the store.
func now(t *testing.T, s *Store, h backend.Hit) backend.Verdict {
	t.Helper()
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
	if err := s.Take(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Verdicts[0]
}

// run runs stores until the returned function is called.
func run(t *testing.T, stores ...*Store) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, s := range stores {
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
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
		var told []int
		var stores []*Store
		for i := range 4 {
			cfg := Config{KeyPrefix: "p:"}
			if i == 0 {
				cfg.OnReplicas = func(_, after int) { told = append(told, after) }
			}
			s, err := New(&flaky{Backend: shared.Backend}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			stores = append(stores, s)
		}
		defer run(t, stores[0])()
		replicas := func() int { return stores[0].Stats().Replicas }
		time.Sleep(time.Minute)
		if replicas() != 1 || shared.asked.Load() != 0 {
			t.Fatal("replicas are counted although no rule counts locally")
		}
		for _, s := range stores {
			s.SetLocalEnabled(true)
		}
		stopTwo := run(t, stores[1], stores[2])
		defer run(t, stores[3])()
		for range 20 {
			time.Sleep(2 * heartbeatLimit.Period)
			if replicas() != 4 {
				t.Fatalf("%d of 4 are counted", replicas())
			}
		}
		down := stores[0].nextStore.(*flaky)
		down.down.Store(true)
		limit := fixed(10, time.Hour)
		if v := now(t, stores[0], local("k", limit, 3)); v.Over || v.Fallback != backend.FallbackLocal {
			t.Errorf("%+v", v)
		}
		if v := now(t, stores[0], local("k", limit, 1)); !v.Over {
			t.Errorf("a share is 3 of 10: %+v", v)
		}
		stopTwo()
		time.Sleep(2 * heartbeatLimit.Period)
		if replicas() != 4 {
			t.Errorf("without the store it is %d", replicas()) // the last number stays
		}
		down.down.Store(false)
		time.Sleep(4 * heartbeatLimit.Period) // two windows have to agree
		if replicas() != 2 {
			t.Errorf("%d of 2 are counted", replicas())
		}
		if len(told) < 2 || told[len(told)-1] != 2 {
			t.Errorf("told of %v", told)
		}
	})
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
				next := make([]*flaky, 4)
				stores := make([]*Store, len(next))
				shared := new(forgetful)
				shared.restart(t)
				for i := range stores {
					next[i] = &flaky{Backend: shared}
					stores[i] = open(t, next[i], 0)
					stores[i].SetLocalEnabled(true)
				}
				defer run(t, stores...)()
				replicas := func() (n []int) {
					for _, s := range stores {
						n = append(n, s.Stats().Replicas)
					}
					return n
				}
				time.Sleep(2*heartbeatLimit.Period - heartbeatWindowAge())
				time.Sleep(tt.lost + time.Nanosecond)
				shared.restart(t)
				time.Sleep(heartbeatLimit.Period - heartbeatWindowAge() - time.Nanosecond)
				for _, f := range next { // and soon it is away
					f.down.Store(true)
				}
				time.Sleep(time.Minute)
				if got := replicas(); !slices.Equal(got, []int{4, 4, 4, 4}) {
					t.Errorf("counted: %v", got)
				}
				for _, f := range next[:2] {
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
		next := inMemory(t)
		s, err := New(next, Config{OnHeartbeatsFail: func(err error) {
			told.Add(1)
			if !errors.Is(err, errDown) {
				t.Errorf("told of %v", err)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		s.SetLocalEnabled(true)
		defer run(t, s)()
		for _, tt := range []struct {
			down bool
			long time.Duration
			want int64
		}{{false, time.Minute, 0}, {true, 2 * heartbeatLimit.Period, 0}, {false, time.Minute, 0}, {
			true, time.Hour,
			1,
		}, {false, time.Minute, 1}, {true, time.Minute, 2}} {
			next.down.Store(tt.down)
			time.Sleep(tt.long)
			if told.Load() != tt.want {
				t.Errorf("down %t for %v: told %d times, want %d", tt.down, tt.long, told.Load(), tt.want)
			}
		}
	})
}
