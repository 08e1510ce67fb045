package fallback

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
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

// settleMisses is after how many batches without an answer the rest waits. One is
// not enough: they may all have been on the one node of a cluster that is away.
const settleMisses = 10

// Settle adds to the store what was charged here and still counts, and reports
// whether the store took any of it. Now is as in algorithm.Batch. What it does not
// take is tried again by the next call, for as long as it counts.
func (s *Store) Settle(ctx context.Context, now time.Time) (taken bool) {
	select {
	case s.settling <- struct{}{}: // two at a time would give the same twice
		defer func() { <-s.settling }()
	case <-ctx.Done():
		return false
	}
	var b backend.Batch
	entries := s.owed.all(now)
	missed := 0 // batches in a row of which nothing was taken
	for len(entries) > 0 && ctx.Err() == nil && missed < settleMisses {
		missed++
		n := min(settleBatch, len(entries))
		open := s.owed.bill(entries[:n], &b, now)
		entries = entries[n:]
		if len(open) == 0 {
			continue
		}
		there, err := s.reached(ctx, open, &b, now)
		if err != nil {
			return taken
		}
		if len(there) == 0 {
			continue
		}
		of := s.owed.bill(there, &b, now)
		b.Now = now
		if err := s.next.Take(ctx, &b); err != nil {
			return taken // misuse, which the first one of these hits would have been
		}
		done := s.owed.paid(of, &b)
		s.returned.Add(uint64(done))
		if done > 0 {
			taken, missed = true, 0
		}
	}
	return taken
}

// reached are those entries of a bill, b, whose counters the store can be asked for.
// A store that is away may do later what it is sent now, so it is sent what counts
// only after a look was answered.
func (s *Store) reached(ctx context.Context, of []*entry, b *backend.Batch, now time.Time) (there []*entry, err error) {
	for i := range b.Hits {
		b.Hits[i].Op, b.Hits[i].Amount = algorithm.Look, 0
	}
	b.Now = now
	if err := s.next.Take(ctx, b); err != nil {
		return nil, err
	}
	for i, e := range of {
		if b.Verdicts[i].Err == nil && (len(there) == 0 || there[len(there)-1] != e) {
			s.owed.looked(e, b.Verdicts[i].Before, now)
			there = append(there, e)
		}
	}
	return there, nil
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
