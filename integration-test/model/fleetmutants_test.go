package model

import (
	"context"
	"sync"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// replicaMutants are mistakes of replicas that share a store. Of each mutant one is made for a fleet, and mutate is
// called for each replica when it starts, also in the place of one that crashed.
var replicaMutants = []struct {
	name   string
	mutant func() (mutate func(replica int) mutation)
	most   int
	first  uint64
}{
	{"holds belong to the replica that opened them", func() func(int) mutation {
		return func(replica int) mutation {
			return heldHits(func(h *backend.Hit, _ map[algorithm.HoldID]int) { anew(h, replica) })
		}
	}, 3, 2},
	{"each replica has a limit of its own", func() func(int) mutation {
		return func(replica int) mutation {
			return changing(func(h *backend.Hit) { h.Key = append(h.Key, byte(replica)) })
		}
	}, 3, 1},
	{"a replica knows the holds that it opened, whatever became of them", knowsItsHolds, 6, 2},
	{"a crash releases the holds of a replica", releasesAtCrash, 7, 5},
	{"a replica that starts settles anew what the one before it settled", settlesAnew, 7, 5},
}

// knowsItsHolds only looks when a hold is acquired again at the replica that opened it.
func knowsItsHolds() func(int) mutation {
	return func(int) mutation {
		return heldHits(func(h *backend.Hit, opened map[algorithm.HoldID]int) {
			if h.Op != algorithm.Charge {
				return
			}
			if opened[h.HoldID]++; opened[h.HoldID] > 1 {
				h.Op = algorithm.Look
			}
		})
	}
}

// atStart asks for the hits that note makes of those of the replica before, when a replica starts.
func atStart(note func(h *backend.Hit) bool) func() func(int) mutation {
	return func() func(int) mutation {
		var mu sync.Mutex
		noted := make(map[int]*backend.Batch)
		return func(replica int) mutation {
			mu.Lock()
			before := noted[replica]
			noted[replica] = new(backend.Batch)
			mu.Unlock()
			return func(ctx context.Context, next backend.Backend, b *backend.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				if before != nil && len(before.Hits) > 0 {
					late := copied(before)
					late.Now, before = b.Now, nil
					if err := next.Take(ctx, &late); err != nil {
						return err
					}
				}
				own := copied(b)
				for _, h := range own.Hits {
					if h.HoldID != (algorithm.HoldID{}) && note(&h) {
						h.Atomic = false
						noted[replica].Hits = append(noted[replica].Hits, h)
						noted[replica].Verdicts = append(noted[replica].Verdicts, backend.Verdict{})
					}
				}
				return next.Take(ctx, b)
			}
		}
	}
}

var (
	releasesAtCrash = atStart(func(h *backend.Hit) bool {
		opens := h.Op == algorithm.Charge && h.Amount > 0
		h.Op = algorithm.Refund
		return opens
	})
	settlesAnew = atStart(func(h *backend.Hit) bool {
		settles := h.Op == algorithm.Force && h.Amount > 0
		h.HoldID = algorithm.HoldID{}
		return settles
	})
)

// TestReplicaMutants is as TestMutants, for replicas that share a store in memory.
func TestReplicaMutants(t *testing.T) {
	t.Parallel()
	can := Can{
		Store: "replicas", Faults: []Fault{Down, Lost, Stall, Crash, Crash, Crash}, Short: true, Holds: true,
		AllHeld: true,
	}
	for _, tt := range replicaMutants {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			open := func(*Script) (lab, error) { return memoryFleet(tt.mutant()) }
			right := func(*Script) (lab, error) { return memoryFleet(nil) }
			notice(t, tt.first, tt.most, can, open, right)
		})
	}
}

// memoryFleet is three replicas that share one store in memory. Mutate, if set, makes something else of each.
func memoryFleet(mutate func(replica int) mutation) (lab, error) {
	var shared backend.Backend
	return newFleet(3, func(replica int) (lab, error) {
		way, err := newFlaky(false, func(next backend.Backend) backend.Backend {
			if mutate == nil {
				return next
			}
			return &mutant{next, mutate(replica)}
		})
		if err != nil {
			return nil, err
		}
		if shared == nil {
			shared = way.store
		}
		way.store = shared
		return way, nil
	})
}
