package memory

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// SetCounts drops each counter, and charges it with its amount; see backend.Editor. Hits meanwhile see the counter
// before or after the change. SetCounts never waits, so it ignores ctx.
func (s *Store) SetCounts(_ context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	now := b.UnixNano()
	for i := range b.Hits {
		h := b.Hits[i]
		h.Op, h.HoldID = algorithm.Force, algorithm.HoldID{}
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

// ResetPrefixes drops the counters whose keys begin with one of prefixes; see backend.Editor. The name of a counter is
// the start of its key and, in parentheses, what identifies its windows. It holds the lock of one shard at a time.
func (s *Store) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func(names [][]byte),
) error {
	if s.shards[0].names == nil {
		return fmt.Errorf("%w; MEMORY_COUNTER_NAMES=true keeps them", backend.ErrNoNames)
	}
	for i := range prefixes {
		if n := len(prefixes[i].Text); n > maxNameBytes {
			return fmt.Errorf("memory: the start of a key has %d bytes, and the store keeps only the first %d of a key: leave "+
				"out the end", n, maxNameBytes)
		}
	}
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		if names := s.shards[i].resetPrefixes(prefixes, dryRun); len(names) > 0 {
			found(names)
		}
	}
	return nil
}

// resetPrefixes returns the names of the matching counters of sh, and drops the counters unless dryRun is set.
func (sh *shard) resetPrefixes(prefixes []backend.KeyPrefix, dryRun bool) (names [][]byte) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var buffer [maxNameBytes]byte
	for i, ref := range sh.names.refs {
		sl := &sh.slots[i]
		if ref == 0 || sl.expiresAt == 0 {
			continue // The slot is empty, or its counter was evicted or was dropped before.
		}
		e := sh.names.entry(ref, &buffer)
		if !e.hasPrefix(prefixes) {
			continue
		}
		names = append(names, e.counterName())
		if !dryRun {
			sh.dropCounter(sl)
		}
	}
	return names
}

// counterName returns the name of the counter, such as "user_1_ (1m0s gcra)", "user_1_ (24h0m0s fixed_window with
// holds)" or "user_1_ (concurrency)".
func (e *nameEntry) counterName() []byte {
	holds := ""
	switch {
	case e.kind == algorithm.Concurrency:
		return fmt.Appendf(nil, "%s (concurrency)", e.name)
	case e.isHeld:
		holds = " with holds"
	}
	return fmt.Appendf(nil, "%s (%v %v%s)", e.name, e.period, e.kind, holds)
}

// hasPrefix reports whether the name starts with one of prefixes.
func (e *nameEntry) hasPrefix(prefixes []backend.KeyPrefix) bool {
	return slices.ContainsFunc(prefixes, func(p backend.KeyPrefix) bool { return bytes.HasPrefix(e.name, p.Text) })
}
