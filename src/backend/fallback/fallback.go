// Package fallback stands in front of a store that may not answer. It then does what each
// hit says: returns the error, allows the hit, denies it, or counts it in this process.
//
// Local counters enforce this replica's share of the limit. The number of replicas is
// configured, or counted by heartbeats in the store. They start empty and live on from one
// outage to the next, and the store never counts their hits. So in each window at most the
// limit passes by the store's count, and all shares together by local counts: 2 x Max + n -
// 1 with n replicas, however often the store fails; with Max 100 and 4 replicas 203. More
// can pass if a replica restarts, if a store loses its counters, and if there are more
// replicas than were counted. A hit whose reply was lost may be counted in both.
package fallback

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

// Config configures a Store.
type Config struct {
	// Replicas is how many processes share the limits. With 0, heartbeats in the store
	// count them while UseLocal is on; until they have, it is 1.
	Replicas int
	// KeyPrefix is in front of the key of the heartbeats.
	KeyPrefix string
	// MaxBytes caps the memory for local counters. Defaults to memory.DefaultMaxBytes; the
	// smallest cap is memory.MinBytes.
	MaxBytes int64
	// OnReplicas, if set, is called when heartbeats show another number of replicas. It
	// must not block.
	OnReplicas func(before, after int)
	// OnUncounted, if set, is called with the error when heartbeats have failed for some
	// windows in a row, once until one succeeds. It must not block.
	OnUncounted func(error)
}

// Store is a backend.Backend in front of another one. Its zero value is not usable; see New.
type Store struct {
	next  backend.Backend
	cfg   Config
	local *memory.Store
	pool  sync.Pool // of *scratch

	replicas atomic.Int64
	useLocal atomic.Bool
	start    chan struct{}    // wakes the heartbeats
	last     atomic.Int64     // see Stats.Last; nanoseconds since the Unix epoch, 0: never
	hits     [4]atomic.Uint64 // see Stats.Fallback
}

// New returns a store in front of next without local counters. Run must run for the replicas
// to be counted.
func New(next backend.Backend, cfg Config) (*Store, error) {
	if cfg.Replicas < 0 {
		return nil, fmt.Errorf("fallback: %d replicas", cfg.Replicas)
	}
	local, err := memory.New(memory.Config{MaxBytes: cfg.MaxBytes})
	if err != nil {
		return nil, fmt.Errorf("fallback: %w", err)
	}
	s := &Store{
		next: next, cfg: cfg, local: local,
		pool: sync.Pool{New: func() any { return new(scratch) }}, start: make(chan struct{}, 1),
	}
	s.replicas.Store(int64(max(cfg.Replicas, 1)))
	return s, nil
}

// UseLocal sets whether some rules count locally when the store does not answer. Only then
// are there heartbeats.
func (s *Store) UseLocal(yes bool) {
	s.useLocal.Store(yes)
	if yes {
		select {
		case s.start <- struct{}{}:
		default: // the heartbeats have yet to see the previous signal
		}
	}
}

// Stats holds the figures of a Store.
type Stats struct {
	// Replicas is how many processes share the limits.
	Replicas int
	// Last is when the store last did not answer a hit; zero: never.
	Last time.Time
	// Fallback counts the hits that the store did not answer, by backend.Fallback.
	Fallback [4]uint64
	// Local are the figures of the local counters.
	Local memory.Stats
}

// Stats returns the current figures.
func (s *Store) Stats() Stats {
	st := Stats{Replicas: int(s.replicas.Load()), Local: s.local.Stats()}
	for i := range st.Fallback {
		st.Fallback[i] = s.hits[i].Load()
	}
	if last := s.last.Load(); last != 0 {
		st.Last = time.Unix(0, last)
	}
	return st
}

// Take sends b to the store, and decides the hits without an answer; see backend.Backend.
// If ctx has ended, they keep their Err.
//
// In an atomic group with some hits answered and others decided here, what the store has
// charged stays charged, and the rest is charged only if the group passes.
func (s *Store) Take(ctx context.Context, b *backend.Batch) error {
	if err := s.next.Take(ctx, b); err != nil || b.Err() == nil {
		return err
	}
	sc := s.pool.Get().(*scratch)
	err := s.decide(ctx, b, sc)
	if err == nil {
		err = s.chargeRest(ctx, b, sc)
	}
	if sc.local.Reset() && sc.rest.Reset() {
		s.pool.Put(sc)
	}
	return err
}
