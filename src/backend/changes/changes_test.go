package changes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/testbed/limitertest"
)

// shared is a store that may be away.
type shared struct {
	backend.Backend
	mu      sync.Mutex
	texts   map[string][]byte // guarded by mu
	down    bool              // guarded by mu
	noTexts bool              // guarded by mu: SetText stores nothing
	ttl     time.Duration     // guarded by mu: of the last text
}

var errDown = errors.New("down")

func (s *shared) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *shared) Take(ctx context.Context, b *backend.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		for i := range b.Verdicts {
			b.Verdicts[i] = backend.Verdict{Err: errDown}
		}
		return nil
	}
	return s.Backend.Take(ctx, b)
}

func (s *shared) SetText(_ context.Context, key string, text []byte, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl = ttl
	if s.down {
		return errDown
	}
	if !s.noTexts {
		s.texts[key] = text
	}
	return nil
}

func (s *shared) Text(_ context.Context, key string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errDown
	}
	return s.texts[key], nil
}

// replica records what OnChange tells.
type replica struct {
	*Feed
	mu    sync.Mutex
	calls []string // guarded by mu
}

func newShared(t *testing.T) *shared {
	t.Helper()
	return &shared{Backend: limitertest.Store(t, memory.Config{}), texts: make(map[string][]byte)}
}

func startReplica(t *testing.T, s *shared) *replica {
	return start(t, &Feed{Store: s, KeyPrefix: "p:"})
}

// start runs a feed that is always needed.
func start(t *testing.T, f *Feed) *replica {
	r := &replica{Feed: f}
	f.Needed = func() bool { return true }
	f.OnChange = func(texts [][]byte, all bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls = append(r.calls, fmt.Sprintf("%q %t", texts, all))
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return r
}

// told returns what OnChange told since the last call.
func (r *replica) told() []string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}

func wantCalls(t *testing.T, r *replica, want ...string) {
	t.Helper()
	if got := r.told(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func publish(t *testing.T, f *Feed, text string) {
	t.Helper()
	if err := f.Publish(t.Context(), []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// A change reaches every replica at the next poll, its author too, and only once.
func TestChangesReachAllReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t)
		publish(t, &Feed{Store: s, KeyPrefix: "p:"}, "before all")
		a, b := startReplica(t, s), startReplica(t, s)
		for _, r := range []*replica{a, b} {
			wantCalls(t, r, "[] false")
		}
		publish(t, a.Feed, "one")
		publish(t, b.Feed, "two")
		wantCalls(t, a)
		time.Sleep(PollPause)
		for _, r := range []*replica{a, b} {
			wantCalls(t, r, `["one" "two"] true`)
		}
		time.Sleep(10 * PollPause)
		wantCalls(t, a)
		publish(t, a.Feed, "three")
		time.Sleep(PollPause)
		wantCalls(t, b, `["three"] true`)
	})
}

// After an outage, replicas learn what was changed meanwhile by a replica that reached the store.
func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t)
		r := startReplica(t, s)
		r.told()
		s.set(func() { s.down = true })
		if err := r.Publish(t.Context(), []byte("lost")); !errors.Is(err, errDown) {
			t.Errorf("Publish during the outage: %v", err)
		}
		time.Sleep(time.Minute)
		wantCalls(t, r)
		s.set(func() { s.down = false })
		publish(t, r.Feed, "after")
		time.Sleep(PollPause)
		wantCalls(t, r, `["after"] true`)
	})
}

func TestTextsThatAreMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t)
		r := startReplica(t, s)
		r.told()
		s.set(func() { s.noTexts = true })
		publish(t, r.Feed, "late")
		time.Sleep(PollPause)
		wantCalls(t, r, "[] true")
		s.set(func() { s.noTexts = false; s.texts["p:ratelimit_change_1"] = []byte("late") })
		time.Sleep(PollPause)
		wantCalls(t, r, `["late"] true`)
		s.set(func() { s.noTexts = true })
		publish(t, r.Feed, "never")
		time.Sleep(10 * PollPause)
		wantCalls(t, r, "[] true", "[] true", "[] true", "[] true", "[] false")
		for range defaultMaxTexts + 1 {
			publish(t, r.Feed, "many")
		}
		time.Sleep(PollPause)
		wantCalls(t, r, "[] false")
		s.set(func() { s.Backend = newShared(t).Backend }) // The store has lost everything.
		time.Sleep(PollPause)
		wantCalls(t, r, "[] false")
	})
}

// A store that answers late and knows of no change does not make a replica forget what it has cached since its start.
func TestFirstReadWithoutChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t)
		s.set(func() { s.down = true })
		r := startReplica(t, s)
		time.Sleep(time.Second)
		s.set(func() { s.down = false })
		time.Sleep(2 * PollPause)
		wantCalls(t, r)
		publish(t, r.Feed, "first")
		time.Sleep(PollPause)
		wantCalls(t, r, `["first"] true`)
	})
}

// A replica that remembers nothing asks nothing.
func TestNotNeeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t)
		ctx, stop := context.WithCancel(t.Context())
		f := &Feed{
			Store: s, Needed: func() bool { return false },
			OnChange: func([][]byte, bool) { t.Error("it was told") },
		}
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		time.Sleep(10 * PollPause)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Two feeds in one store do not hear each other, and each has its own pause.
func TestFeedsSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t)
		pause := 20 * time.Millisecond
		var pauseMu sync.Mutex
		quick := func() *Feed {
			return &Feed{Store: s, KeyPrefix: "p:", Name: "contention", Pause: func() time.Duration {
				pauseMu.Lock()
				defer pauseMu.Unlock()
				return pause
			}}
		}
		a, b := start(t, quick()), start(t, quick())
		slow, other := startReplica(t, s), start(t, &Feed{Store: s, KeyPrefix: "q:", Name: "contention"})
		publish(t, a.Feed, "soon")
		publish(t, slow.Feed, "later")
		time.Sleep(20 * time.Millisecond)
		for _, r := range []*replica{a, b} {
			wantCalls(t, r, `["soon"] true`)
		}
		wantCalls(t, slow)
		time.Sleep(PollPause)
		wantCalls(t, slow, `["later"] true`)
		wantCalls(t, a)
		wantCalls(t, other)
		pauseMu.Lock()
		pause = time.Minute
		pauseMu.Unlock()
		time.Sleep(30 * time.Millisecond) // All have asked for the next pause.
		publish(t, b.Feed, "after a minute")
		time.Sleep(59 * time.Second)
		wantCalls(t, a)
		time.Sleep(time.Second)
		wantCalls(t, a, `["after a minute"] true`)
		s.mu.Lock()
		defer s.mu.Unlock()
		want := []string{"p:ratelimit_change_1", "p:ratelimit_contention_1", "p:ratelimit_contention_2"}
		if keys := slices.Sorted(maps.Keys(s.texts)); !slices.Equal(keys, want) {
			t.Errorf("texts under %q, want %q", keys, want)
		}
	})
}

// The bounds of a feed are its own: how long a text stays, how long it is waited for, and how many are read.
func TestBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShared(t)
		const pause = 20 * time.Millisecond
		r := start(t, &Feed{
			Store: s, Name: "contention", Pause: func() time.Duration { return pause },
			TextTTL: 5 * time.Second, TextWait: 2 * pause, MaxTexts: 2,
		})
		publish(t, r.Feed, "one")
		publish(t, r.Feed, "two")
		time.Sleep(pause)
		wantCalls(t, r, `["one" "two"] true`)
		if s.ttl != 5*time.Second {
			t.Errorf("texts stay for %v", s.ttl)
		}
		for range 3 {
			publish(t, r.Feed, "many")
		}
		time.Sleep(pause)
		wantCalls(t, r, "[] false")
		s.set(func() { s.noTexts = true })
		publish(t, r.Feed, "never")
		s.set(func() { s.noTexts = false })
		publish(t, r.Feed, "behind it")
		time.Sleep(3 * pause)
		wantCalls(t, r, "[] true", "[] true", `["behind it"] false`)
	})
}
