package fallback

import (
	"context"
	"math/rand/v2"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Replicas count themselves with a counter of the store that they share: in each
// window each adds one to it early, and reads it late. It needs nothing of a store
// that limits do not need, and a replica that is gone is missing from the next
// window on. Who ends and begins anew within a window counts twice in it, which
// makes shares smaller, not larger. In an outage the last number stays.
//
// A store that lost the counter has too few, and is likely to be away again soon:
// then each replica would take the whole limit for its share. So a smaller number
// holds only when two windows in a row say so, of which this replica saw nothing lost.
var census = algorithm.Limit{Max: 1 << 32, Period: 10 * time.Second, CountBlocked: true}

// When in a window a replica adds itself, and when it reads: in between there is
// room for clocks that do not agree.
const (
	beatWithin = 3 * time.Second
	readAfter  = 8 * time.Second
)

// uncountedAfter is in how many windows in a row a heartbeat fails before it is
// spoken of.
const uncountedAfter = 3

// censusKey is what it is counted under, behind the prefix of all keys.
const censusKey = "ratelimit_replicas_"

// beat counts the replicas until ctx ends.
func (s *Store) beat(ctx context.Context) {
	key := append([]byte(s.cfg.KeyPrefix), censusKey...)
	last := int64(0) // as many there were in the window before, as far as is known
	failed := 0      // windows in a row
	for ctx.Err() == nil {
		if !s.useLocal.Load() {
			select {
			case <-s.begin:
			case <-ctx.Done():
			}
			continue
		}
		came, err := s.ask(ctx, key, algorithm.Force, 1)
		failed++
		counted := err == nil
		switch {
		case failed == uncountedAfter && !counted && s.cfg.OnUncounted != nil:
			s.cfg.OnUncounted(err)
		case counted:
			failed = 0
			s.know(max(came, s.replicas.Load())) // others may not have come to it yet
		}
		if !sleep(ctx, readAfter-intoWindow()) {
			return
		}
		if n, err := s.ask(ctx, key, algorithm.Look, 0); err == nil && counted && n >= came {
			s.know(max(n, last))
			last = n
		} else { // this one is not in it
			last = max(n, s.replicas.Load())
			s.know(last)
		}
		if !sleep(ctx, census.Period-intoWindow()+rand.N(beatWithin)) {
			return
		}
	}
}

// intoWindow is how old the window is.
func intoWindow() time.Duration {
	now := time.Now().UnixNano()
	start, _ := algorithm.Window(now, census.Period)
	return time.Duration(now - start)
}

// ask is what the counter of this window has, after what is done to it.
func (s *Store) ask(ctx context.Context, key []byte, op algorithm.Op, amount uint64) (n int64, err error) {
	b := backend.Batch{
		Hits:     []backend.Hit{{Key: key, Limit: &census, Op: op, Amount: amount}},
		Verdicts: make([]backend.Verdict, 1),
	}
	if err := s.next.Take(ctx, &b); err != nil {
		return 0, err
	}
	return int64(min(b.Verdicts[0].After, census.Max)), b.Verdicts[0].Err
}

// know says how many replicas there are.
func (s *Store) know(n int64) {
	n = max(n, 1) // the counter may be gone, but this one is here
	if before := s.replicas.Swap(n); before != n && s.cfg.OnReplicas != nil {
		s.cfg.OnReplicas(int(before), int(n))
	}
}
