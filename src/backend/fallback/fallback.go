// Package fallback stands in front of a store that may not answer. It then does what each
// hit says: returns the error, allows the hit, denies it, or counts it in this process.
//
// Local counters enforce this replica's share of the limit. The number of replicas is configured, or counted by
// heartbeats in the store. Local counters start empty and live on from one outage to the next, and the store never
// counts their hits. So in each window at most the limit passes by the store's counter, and all shares together by
// local counters. With n replicas that is 2 x Max + n - 1, however often the store fails: 203 with Max 100 and 4
// replicas. More can pass if a replica restarts, if the store loses its counters, or if there are more replicas than
// were counted. A hit whose reply was lost may be counted in both.
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
	// Replicas is the number of processes that share the limits. With 0, heartbeats in the
	// store count them while SetLocalEnabled is on; before the first heartbeat the number is 1.
	Replicas int
	// KeyPrefix starts the key of the counter of heartbeats.
	KeyPrefix string
	// MaxBytes caps the memory for local counters. Defaults to memory.DefaultMaxBytes; the smallest cap is
	// memory.MinBytes.
	MaxBytes int64
	// OnReplicas, if set, is called when heartbeats show another number of replicas. It must not block.
	OnReplicas func(before, after int)
	// OnHeartbeatsFail, if set, is called with the error when heartbeats have failed for some windows in a row. It is
	// called again only after a heartbeat has succeeded. It must not block.
	OnHeartbeatsFail func(error)
}

// Store is a backend.Backend in front of another one. Its zero value is not usable; see New.
type Store struct {
	nextStore   backend.Backend
	cfg         Config
	localStore  atomic.Pointer[memory.Store]
	scratchPool sync.Pool // contains *takeScratch

	replicaCount       atomic.Int64
	replicasCounted    atomic.Bool // set when a heartbeat has counted the replicas
	localEnabled       atomic.Bool
	localEnabledSignal chan struct{}    // SetLocalEnabled(true) sends to it to wake Run
	lastFailureNanos   atomic.Int64     // Stats.LastFailure in nanoseconds since the Unix epoch, or 0
	unansweredHits     [4]atomic.Uint64 // Stats.UnansweredHits
}

// New returns a store in front of next without local counters. Run counts the replicas.
func New(next backend.Backend, cfg Config) (*Store, error) {
	if cfg.Replicas < 0 {
		return nil, fmt.Errorf("fallback: %d replicas", cfg.Replicas)
	}
	local, err := memory.New(memory.Config{MaxBytes: cfg.MaxBytes})
	if err != nil {
		return nil, fmt.Errorf("fallback: %w", err)
	}
	s := &Store{
		nextStore: next, cfg: cfg,
		scratchPool: sync.Pool{New: func() any { return new(takeScratch) }}, localEnabledSignal: make(chan struct{}, 1),
	}
	s.localStore.Store(local)
	s.replicaCount.Store(int64(max(cfg.Replicas, 1)))
	return s, nil
}

// SetLocalEnabled sets whether some rules count locally when the store does not answer. Only then are there heartbeats.
func (s *Store) SetLocalEnabled(yes bool) {
	s.localEnabled.Store(yes)
	if yes {
		select {
		case s.localEnabledSignal <- struct{}{}:
		default: // Run has yet to receive the previous signal
		}
	}
}

// LocalEnabled reports what SetLocalEnabled has set.
func (s *Store) LocalEnabled() bool { return s.localEnabled.Load() }

// Stats holds the figures of a Store.
type Stats struct {
	// Replicas is the number of processes that share the limits.
	Replicas int
	// ReplicasKnown is set if Replicas is configured or was counted in the store. If not, Replicas is 1.
	ReplicasKnown bool
	// LastFailure is the time at which the store last did not answer a hit, or zero.
	LastFailure time.Time
	// UnansweredHits counts the hits that the store did not answer, by backend.Fallback.
	UnansweredHits [4]uint64
	// LocalCounters has the figures of the store of local counters.
	LocalCounters memory.Stats
}

// Stats returns the current figures.
func (s *Store) Stats() Stats {
	known := s.cfg.Replicas > 0 || s.localEnabled.Load() && s.replicasCounted.Load()
	st := Stats{Replicas: int(s.replicaCount.Load()), ReplicasKnown: known, LocalCounters: s.localStore.Load().Stats()}
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
