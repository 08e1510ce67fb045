package fallback

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"ratelimit/src/algorithm"
)

// Run adds to the store what was charged here, when the store answers again, and
// counts the replicas, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { s.settle(ctx) })
	if s.cfg.Replicas == 0 {
		parts.Go(func() { s.beat(ctx) })
	}
	parts.Wait()
	return nil
}

// The pause between two attempts to settle doubles while the store takes nothing.
const (
	settleLeast = 50 * time.Millisecond
	settleMost  = time.Second
)

func (s *Store) settle(ctx context.Context) {
	pause := settleLeast
	for {
		if s.owed.len() == 0 {
			pause = settleLeast
			select {
			case <-s.owed.some:
			case <-ctx.Done():
				return
			}
		}
		if !sleep(ctx, pause/2+rand.N(pause/2+1)) {
			return
		}
		pause = min(2*pause, settleMost)
		if s.Settle(ctx, time.Time{}) {
			pause = settleLeast
		}
	}
}

// settleBatch is how many counters are settled in one batch.
const settleBatch = 100

// Settle adds to the store what was charged here and still counts, and reports
// whether the store took any of it. Now is as in algorithm.Batch. What it does not
// take is tried again by the next call, for as long as it counts.
func (s *Store) Settle(ctx context.Context, now time.Time) (taken bool) {
	s.settling.Lock() // two at a time would give the same twice
	defer s.settling.Unlock()
	var b algorithm.Batch
	entries := s.owed.all()
	for len(entries) > 0 && ctx.Err() == nil {
		n := min(settleBatch, len(entries))
		of := s.owed.bill(entries[:n], &b, now)
		entries = entries[n:]
		if len(of) == 0 {
			continue
		}
		b.Now = now
		if err := s.next.Take(ctx, &b); err != nil {
			return taken // misuse, which the first one of these hits would have been
		}
		done := s.owed.paid(of, &b)
		s.returned.Add(uint64(done))
		if done == 0 {
			return taken // all the others can wait
		}
		taken = true
	}
	return taken
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
