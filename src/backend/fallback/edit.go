package fallback

import (
	"context"
	"fmt"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

// SetCounts changes the counters in the next store, and then those of this process; see backend.Editor.
func (s *Store) SetCounts(ctx context.Context, b *backend.Batch) error {
	if err := backend.EditorOf(s.nextStore).SetCounts(ctx, b); err != nil {
		return err
	}
	return s.SetLocalCounts(ctx, b)
}

// ResetPrefixes resets the counters in the next store, and then all of this process; see backend.Editor.
func (s *Store) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func(names [][]byte),
) error {
	if err := backend.EditorOf(s.nextStore).ResetPrefixes(ctx, prefixes, dryRun, found); err != nil || dryRun {
		return err
	}
	return s.ForgetLocalCounts()
}

// ForgetLocalCounts forgets all counters of this process, which has no names to find some of them.
func (s *Store) ForgetLocalCounts() error {
	empty, err := memory.New(memory.Config{MaxBytes: s.cfg.MaxBytes})
	if err != nil {
		return fmt.Errorf("fallback: %w", err)
	}
	s.localStore.Store(empty)
	return nil
}

// SetLocalCounts changes only the counters that this process counts while the store does not answer. An amount is
// divided among the replicas as limits are. It is for changes that another replica has made in the store.
func (s *Store) SetLocalCounts(ctx context.Context, b *backend.Batch) error {
	replicas := uint64(s.cfg.Replicas())
	local, shares := *b, make([]algorithm.Limit, len(b.Hits))
	local.Hits, local.Verdicts = slices.Clone(b.Hits), make([]backend.Verdict, len(b.Hits))
	for i := range local.Hits {
		h := &local.Hits[i]
		shares[i] = limitShare(h.Limit, replicas)
		h.Limit = &shares[i]
		if replicas > 1 {
			h.Amount = ceilDiv(h.Amount, replicas)
		}
	}
	return s.localStore.Load().SetCounts(ctx, &local)
}
