// Package fallback stands in front of a store that may not answer, and does what
// each hit says of that case: leaves the error, lets it pass, refuses it, or counts
// it in this process.
//
// # Counting here
//
// What is counted here is held to this replica's share of the limit, which is
// algorithm.Limit.Share of the number of replicas: configured, or counted by heartbeats in the
// store (see census). The counters begin empty and stay from one outage to the next.
// The store counts none of these hits, also not after the outage. So in each window at
// most the limit passes by the store's count, and the sum of all shares by those here:
// 2 x Max + n - 1 with n replicas, however often the store comes and goes. A replica
// that restarts brings another share, a store that loses its counters another limit,
// and so do more replicas than were counted.
//
// A hit whose reply was lost may have been counted by the store, and is counted here
// as well.
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

// Config says how a Store is shared, and how large it may grow.
type Config struct {
	// Replicas is how many processes share the limits. 0: as many as heartbeats
	// in the store say, while UseLocal is in force, and until they do 1.
	Replicas int
	// KeyPrefix stands in front of the key of the heartbeats.
	KeyPrefix string
	// MaxBytes caps the memory for the counters. Defaults to memory.DefaultMaxBytes;
	// the smallest cap is memory.MinBytes.
	MaxBytes int64
	// OnReplicas, if set, is told of each change of the number of replicas by
	// heartbeats. It must not block.
	OnReplicas func(before, after int)
	// OnUncounted, if set, is told why when heartbeats have failed for some
	// windows in a row, once until they succeed. It must not block.
	OnUncounted func(error)
}

// Store is a limiter.Backend in front of another one. Its zero value is not
// usable; see New.
type Store struct {
	next  backend.Backend
	cfg   Config
	local *memory.Store // what passed here
	pool  sync.Pool     // of *scratch

	replicas atomic.Int64
	useLocal atomic.Bool
	begin    chan struct{} // heartbeats
	last     atomic.Int64  // when a hit had no answer last, in nanoseconds; 0: never
	instead  [4]atomic.Uint64
}

// New returns a store in front of next that counts nothing yet. Run must run for the
// replicas to be counted.
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
		pool: sync.Pool{New: func() any { return new(scratch) }}, begin: make(chan struct{}, 1),
	}
	s.replicas.Store(int64(max(cfg.Replicas, 1)))
	return s, nil
}

// UseLocal says whether some hits count here when the store does not answer:
// only then there are heartbeats.
func (s *Store) UseLocal(yes bool) {
	s.useLocal.Store(yes)
	if yes {
		select {
		case s.begin <- struct{}{}:
		default: // they are about to
		}
	}
}

// Stats is what a Store says of itself.
type Stats struct {
	// Replicas is how many share the limits.
	Replicas int
	// Last is when a hit had no answer of the store last; zero: never.
	Last time.Time
	// Fallback counts the hits that had none, by what became of them.
	Fallback [4]uint64 // by algorithm.Fallback
	// Local are the counters here.
	Local memory.Stats
}

// Stats reads the store's figures.
func (s *Store) Stats() Stats {
	st := Stats{Replicas: int(s.replicas.Load()), Local: s.local.Stats()}
	for i := range st.Fallback {
		st.Fallback[i] = s.instead[i].Load()
	}
	if last := s.last.Load(); last != 0 {
		st.Last = time.Unix(0, last)
	}
	return st
}

// Take sends b on, and replaces the verdicts of hits that got no answer; see
// limiter.Backend. When ctx has ended nobody waits for them, and their Err stays.
//
// An atomic group of which some hits have an answer, and others are decided here,
// stands or falls together as far as that is still possible: what the store
// charged stays charged.
func (s *Store) Take(ctx context.Context, b *backend.Batch) error {
	if err := s.next.Take(ctx, b); err != nil {
		return err
	}
	if b.Err() == nil {
		return nil
	}
	return s.decide(ctx, b, true)
}
