package memory

import (
	"context"
	"math"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// SetCounts drops each counter, and charges it with its amount; see backend.Editor. Hits meanwhile see the counter before or after
// the change. SetCounts never waits, so it ignores ctx.
func (s *Store) SetCounts(_ context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	now := b.UnixNano()
	for i := range b.Hits {
		h := b.Hits[i]
		h.Op = algorithm.Force
		s.setCount(&h, s.counterIDOf(&h, now), now)
	}
	if s.budget.isExceeded(0) {
		s.freeMemory(false, now)
	}
	return nil
}

func (s *Store) setCount(h *backend.Hit, id counterID, now int64) {
	sh := s.shardOf(id.hash & math.MaxUint32)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sl, _ := sh.findSlot(id, now); sl != nil {
		sh.dropCounter(sl)
	}
	if h.Amount > 0 {
		sh.applyHit(h, id, now)
	}
}

// ResetPrefixes returns backend.ErrNoNames: the store has only hashes of the names.
func (*Store) ResetPrefixes(context.Context, []backend.KeyPrefix, bool, func([][]byte)) error {
	return backend.ErrNoNames
}
