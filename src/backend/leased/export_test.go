package leased

import (
	"context"
	"time"

	"ratelimit/src/backend"
)

// SetSleep replaces how Store waits.
func (s *Store) SetSleep(sleep func(ctx context.Context, d time.Duration) bool) { s.sleep = sleep }

// Refill takes units for the leases that are queued.
func (s *Store) Refill(ctx context.Context) {
	for {
		select {
		case r := <-s.refills:
			s.refill(ctx, []refill{r}, new(backend.Batch))
		default:
			return
		}
	}
}

// SweepAll removes all leases whose windows ended a while ago.
func (s *Store) SweepAll() {
	for i := range s.shards {
		s.sweep(&s.shards[i])
	}
}

// Units returns the units of the lease of h, and those of all leases that wait to be given back, or for a window that
// has begun to be noticed.
func (s *Store) Units(h backend.Hit) (held, waiting uint64) {
	for _, r := range s.ahead.begun(s.now()) {
		waiting += s.ahead.all[r].hit.Amount
	}
	s.forEachLease(&backend.Batch{Hits: []backend.Hit{h}}, func(_ *shard, l lease, _ instant) { held = uint64(l.held) })
	s.returns.mu.Lock()
	defer s.returns.mu.Unlock()
	for i := range s.returns.hits {
		waiting += s.returns.hits[i].Amount
	}
	return held, waiting
}
