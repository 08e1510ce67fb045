package leased

import (
	"context"

	"ratelimit/src/backend"
)

// SetCounts changes the counters in the store, after all replicas had time to give back units of them; see
// backend.Editor. Units that a replica needs at that time, or cannot give back because it does not reach the store,
// were taken before the change, and may be used afterwards.
func (s *Store) SetCounts(ctx context.Context, b *backend.Batch) error {
	s.learnBegun(s.now())
	s.contended.mu.Lock()
	for i := range b.Hits {
		h := &b.Hits[i]
		if h.Limit.CanLease() && len(h.Key) <= maxKeyBytes {
			s.contended.tellLater(h.Key, h.Limit, h.SharesKey)
		}
	}
	s.contended.mu.Unlock()
	s.forEachLease(b, s.takeBack)
	s.awaitReturns(ctx)
	defer s.forEachLease(b, s.forget) // After an error, some counters may have been changed.
	return backend.EditorOf(s.cfg.Next).SetCounts(ctx, b)
}

// forEachLease calls f with the leases of the counters of b.
func (s *Store) forEachLease(b *backend.Batch, f func(sh *shard, l lease, now instant)) {
	now := s.now()
	for i := range b.Hits {
		h := &b.Hits[i]
		hash := s.seeds.ofHit(h)
		sh := &s.shards[hash.shard]
		sh.mu.Lock()
		if l, _, _ := sh.find(&hash, 0, h); !l.isNone() {
			f(sh, l, now)
		}
		sh.mu.Unlock()
	}
}

// forget drops the units of a lease, and what is known of its counter.
func (*Store) forget(sh *shard, l lease, _ instant) {
	sh.held -= uint64(l.held)
	l.held, l.used, l.taken, l.end, l.windowEnd = 0, 0, 0, 0, 0
}

// ResetPrefixes resets the counters in the store, after all replicas had time to give back their units; see
// backend.Editor.
func (s *Store) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func(names [][]byte),
) error {
	if dryRun {
		return backend.EditorOf(s.cfg.Next).ResetPrefixes(ctx, prefixes, true, found)
	}
	s.returnAhead(ctx)
	s.contended.mu.Lock()
	s.contended.untold = append(s.contended.untold, allCounters)
	s.contended.mu.Unlock()
	now := s.now()
	s.forAll(func(sh *shard, l lease, _ uint32) { s.takeBack(sh, l, now) })
	s.awaitReturns(ctx)
	defer s.forAll(func(sh *shard, l lease, _ uint32) { s.forget(sh, l, now) })
	return backend.EditorOf(s.cfg.Next).ResetPrefixes(ctx, prefixes, false, found)
}

// forAll calls f with all leases, while it holds mu of their shards.
func (s *Store) forAll(f func(sh *shard, l lease, slot uint32)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.forEach(func(l lease, slot uint32) { f(sh, l, slot) })
		sh.mu.Unlock()
	}
}

// awaitReturns gives replicas the time to give back units.
func (s *Store) awaitReturns(ctx context.Context) {
	s.Tick(ctx)
	if s.replicas() > 1 && s.cfg.Tell != nil {
		s.sleep(ctx, s.resolveTime())
	}
}
