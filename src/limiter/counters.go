package limiter

import (
	"context"
	"fmt"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// CounterHits finds the counters that req would charge, and returns one hit for each of them with the given amount. It asks no store.
// The batch is valid until a is used again. Its errors are those of Check.
func (l *Limiter) CounterHits(req *Request, a *Answer, amount uint64) (*backend.Batch, error) {
	batch := &a.workspace.ownBatch
	if err := l.addHits(context.Background(), req, a, l.inForce.Load().live, batch); err != nil {
		return nil, err
	}
	seen := make(map[counterID]bool)
	hits := batch.Hits[:0]
	for _, h := range batch.Hits {
		if c := counterOf(&h); !seen[c] { // A canary may share a counter.
			seen[c] = true
			h.Amount, h.Op, h.Atomic = min(amount, algorithm.MaxAmount), algorithm.Force, false
			hits = append(hits, h)
		}
	}
	batch.Hits, batch.Verdicts, batch.Now = hits, batch.Verdicts[:len(hits)], req.Now
	return batch, nil
}

// counterID identifies a counter of the store.
type counterID struct {
	key    string
	window algorithm.Window
}

func counterOf(h *backend.Hit) counterID { return counterID{string(h.Key), h.Limit.Window()} }

// CounterPrefixes returns the starts of the keys of all counters whose descriptors begin with entries; see rules.KeyFormat.KeyPrefixes.
func (l *Limiter) CounterPrefixes(domain []byte, entries []rules.Entry) ([]backend.KeyPrefix, error) {
	set := l.inForce.Load().live
	if set == nil {
		return nil, ErrNoRules
	}
	d := set.Domain(domain)
	if d == nil || len(entries) == 0 {
		return nil, nil
	}
	prefixes, err := l.keyFormat.KeyPrefixes(set, d, entries)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	return prefixes, nil
}
