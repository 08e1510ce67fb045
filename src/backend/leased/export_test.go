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
			s.refill(ctx, []ref{r}, new(backend.Batch))
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
