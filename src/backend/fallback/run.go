package fallback

import (
	"context"
	"time"
)

// Run counts the replicas until ctx ends, unless Config says how many there are.
func (s *Store) Run(ctx context.Context) error {
	if s.cfg.Replicas == 0 {
		s.beat(ctx)
	}
	return nil
}

// sleep says false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
