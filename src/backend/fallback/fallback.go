// Package fallback stands in front of a store that may not answer, and does what
// each hit says of that case: leaves the error, lets it pass, refuses it, or counts
// it in this process.
//
// # Counting here
//
// What is counted here is held to this replica's share of the limit, which is
// algorithm.Limit.Share of the number of replicas: configured, or counted by heartbeats in the
// store (see census). The counters begin empty and stay from one outage to the next.
// So in each window at most the limit passes by the store's count, and the sum of
// all shares by those here: 2 x Max + n - 1 with n replicas, however often the store
// comes and goes. A replica that starts anew brings another share, a
// store that loses its counters another limit, and so do more replicas than were
// counted.
//
// # Afterwards
//
// What was charged here is added to the store when it answers again (see
// Store.Settle): what still counts by then, to the counter it belongs to. Windows that began
// anew meanwhile owe nothing. A sliding log gets it with the time of that moment, so
// there it counts for up to a period longer than it should.
//
// A hit whose answer got lost may have been counted by the store, and counts here
// as well; so does one that was given back, if the reply to that got lost: it is
// given once more. What Settle sends without an answer it looks for before it sends
// it again, and what it gives back it sends once: a store whose answers come late
// would get the same every second.
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
	// MaxBytes caps the memory: half of it for the counters, half for what is to
	// be added to the store afterwards. Defaults to memory.DefaultMaxBytes; the
	// smallest cap is MinBytes.
	MaxBytes int64
	// OnReplicas, if set, is told of each change of the number of replicas by
	// heartbeats. It must not block.
	OnReplicas func(before, after int)
	// OnUncounted, if set, is told why when heartbeats have failed for some
	// windows in a row, once until they succeed. It must not block.
	OnUncounted func(error)
}

// MinBytes is the smallest cap there is.
const MinBytes = 4 * memory.MinBytes

// Store is a limiter.Backend in front of another one. Its zero value is not
// usable; see New.
type Store struct {
	next  backend.Backend
	cfg   Config
	local *memory.Store // what passed here
	owed  *ledger       // of that, what the store does not have
	pool  sync.Pool     // of *scratch

	settling chan struct{} // full while one settles
	replicas atomic.Int64
	useLocal atomic.Bool
	begin    chan struct{} // heartbeats
	last     atomic.Int64  // when a hit had no answer last, in nanoseconds; 0: never
	instead  [4]atomic.Uint64
	returned atomic.Uint64
}

// New returns a store in front of next that counts nothing yet. Run has to run for
// what it counts to get to next.
func New(next backend.Backend, cfg Config) (*Store, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = memory.DefaultMaxBytes
	}
	if cfg.MaxBytes < MinBytes {
		return nil, fmt.Errorf("fallback: a cap of %d bytes is below the smallest, %d", cfg.MaxBytes, MinBytes)
	}
	if cfg.Replicas < 0 {
		return nil, fmt.Errorf("fallback: %d replicas", cfg.Replicas)
	}
	local, err := memory.New(memory.Config{MaxBytes: cfg.MaxBytes / 2})
	if err != nil {
		return nil, fmt.Errorf("fallback: %w", err)
	}
	owed, err := newLedger(cfg.MaxBytes / 2)
	if err != nil {
		return nil, fmt.Errorf("fallback: %w", err)
	}
	s := &Store{
		next: next, cfg: cfg, local: local, owed: owed,
		pool: sync.Pool{New: func() any { return new(scratch) }}, begin: make(chan struct{}, 1),
		settling: make(chan struct{}, 1),
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
	// Owed is how many counters of the store lack something that was charged
	// here, Returned how many were added to, and Forgotten how often there was no
	// room to remember one, or no answer to what was given back.
	Owed, Returned, Forgotten int64
	// Local are the counters here.
	Local memory.Stats
}

// Stats reads the store's figures.
func (s *Store) Stats() Stats {
	st := Stats{
		Replicas: int(s.replicas.Load()), Owed: s.owed.len(), Returned: int64(s.returned.Load()), Forgotten: s.owed.forgotten.Load(),
		Local: s.local.Stats(),
	}
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
