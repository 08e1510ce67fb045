// Package fallback stands in front of a store that may not answer. It then does what each
// hit says: returns the error, allows the hit, denies it, or counts it in this process.
//
// Local counters enforce this replica's share of the limit; Config.Replicas says how many replicas there are. Local
// counters start empty and live on from one outage to the next, and the store never counts their hits. So in each
// window at most the limit passes by the store's counter, and all shares together by local counters. With n replicas
// that is 2 x Max + n - 1, however often the store fails: 203 with Max 100 and 4 replicas. More can pass if a replica
// restarts, if the store loses its counters, or if there are more replicas than were counted. A hit whose reply was
// lost may be counted in both.
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
	// Replicas returns the number of processes that share the limits, each time one is divided. Nil means that this is
	// the only one.
	Replicas func() int
	// MaxBytes caps the memory for local counters. Defaults to memory.DefaultMaxBytes; the smallest cap is
	// memory.MinBytes.
	MaxBytes int64
}

// Store is a backend.Backend in front of another one. Its zero value is not usable; see New.
type Store struct {
	nextStore   backend.Backend
	cfg         Config
	localStore  atomic.Pointer[memory.Store]
	scratchPool sync.Pool // contains *takeScratch

	lastFailureNanos atomic.Int64     // Stats.LastFailure in nanoseconds since the Unix epoch, or 0
	unansweredHits   [4]atomic.Uint64 // Stats.UnansweredHits
}

// New returns a store in front of next without local counters.
func New(next backend.Backend, cfg Config) (*Store, error) {
	if cfg.Replicas == nil {
		cfg.Replicas = func() int { return 1 }
	}
	local, err := memory.New(memory.Config{MaxBytes: cfg.MaxBytes})
	if err != nil {
		return nil, fmt.Errorf("fallback: %w", err)
	}
	s := &Store{nextStore: next, cfg: cfg, scratchPool: sync.Pool{New: func() any { return new(takeScratch) }}}
	s.localStore.Store(local)
	return s, nil
}

// Stats holds the figures of a Store.
type Stats struct {
	// LastFailure is the time at which the store last did not answer a hit, or zero.
	LastFailure time.Time
	// UnansweredHits counts the hits that the store did not answer, by backend.Fallback.
	UnansweredHits [4]uint64
	// LocalCounters has the figures of the store of local counters.
	LocalCounters memory.Stats
}

// Stats returns the current figures.
func (s *Store) Stats() Stats {
	st := Stats{LocalCounters: s.localStore.Load().Stats()}
	for i := range st.UnansweredHits {
		st.UnansweredHits[i] = s.unansweredHits[i].Load()
	}
	if last := s.lastFailureNanos.Load(); last != 0 {
		st.LastFailure = time.Unix(0, last)
	}
	return st
}

// Take sends b to the store, and decides the hits without an answer; see backend.Backend. If ctx has ended, they keep
// their Err.
//
// If the store answers some hits of an atomic group and Take decides the others, hits that the
// store has charged stay charged. The others are charged only if the group passes.
func (s *Store) Take(ctx context.Context, b *backend.Batch) error {
	if err := s.nextStore.Take(ctx, b); err != nil || b.FirstErr() == nil {
		return err
	}
	p := s.scratchPool.Get().(*takeScratch)
	err := s.decideUnanswered(ctx, b, p)
	if err == nil {
		err = s.chargeAnsweredHits(ctx, b, p)
	}
	if p.localHits.Reset(backend.MaxPooledHits) && p.unchargedHits.Reset(backend.MaxPooledHits) {
		s.scratchPool.Put(p)
	}
	return err
}
