package limiter

import (
	"context"
	"fmt"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// CounterHits finds the counters that req would charge, and returns one hit for each of them with the given amount. It
// asks no store. The batch is valid until a is used again. Its errors are those of Check.
func (l *Limiter) CounterHits(req *Request, a *Answer, amount uint64) (*backend.Batch, error) {
	b := a.OwnBatch(req)
	if err := l.Prepare(context.Background(), l.Rules(), req, a, b); err != nil {
		return nil, err
	}
	seen := make(map[counterID]bool)
	hits := b.Hits[:0]
	for _, h := range b.Hits {
		if c := counterOf(&h); !seen[c] { // A canary may share a counter.
			seen[c] = true
			h.Amount, h.Op, h.Atomic = min(amount, algorithm.MaxAmount), algorithm.Force, false
			hits = append(hits, h)
		}
	}
	b.Hits, b.Verdicts = hits, b.Verdicts[:len(hits)]
	return &b.Batch, nil
}

// counterID identifies a counter of the store.
type counterID struct {
	key    string
	window algorithm.Window
}

func counterOf(h *backend.Hit) counterID { return counterID{string(h.Key), h.Limit.Window()} }

// CounterPrefixes returns the starts of the keys of all counters whose descriptors begin with entries; see
// rules.KeyFormat.KeyPrefixes.
func (l *Limiter) CounterPrefixes(domain []byte, entries []rules.Entry) ([]backend.KeyPrefix, error) {
	set := l.Rules()
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
