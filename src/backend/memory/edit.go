package memory

import (
	"bytes"
	"context"
	"fmt"
	"math"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// SetCounts drops each counter, and charges it with its amount; see backend.Editor. Hits meanwhile see the counter
// before or after the change. SetCounts never waits, so it ignores ctx.
func (s *Store) SetCounts(_ context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	now := b.UnixNano()
	for i := range b.Hits {
		h := b.Hits[i]
		h.Op, h.HoldID = algorithm.Force, algorithm.HoldID{}
		s.setCount(&h, s.counterIDOf(&h, now), now)
	}
	if s.budget.isExceeded(0) {
		s.freeMemory(false, now)
	}
	return nil
}

func (s *Store) setCount(h *backend.Hit, id counterID, now int64) {
	sh := s.shardOf(id.hash & math.MaxUint32)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sl, _ := sh.findSlot(id, now); sl != nil {
		sh.dropCounter(sl)
	}
	if h.Amount > 0 {
		sh.applyHit(h, id, now)
	}
}

// ResetPrefixes drops the counters whose keys begin with one of prefixes; see backend.Editor. The name of a counter is
// the start of its key and, in parentheses, what identifies its windows. It holds the lock of one shard at a time.
func (s *Store) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func(names [][]byte),
) error {
	if s.shards[0].names == nil {
		return fmt.Errorf("%w; MEMORY_COUNTER_NAMES=true keeps them", backend.ErrNoNames)
	}
	for i := range prefixes {
		if n := len(prefixes[i].Text); n > maxNameBytes {
			return fmt.Errorf("memory: the start of a key has %d bytes, and the store keeps only the first %d of a key: leave "+
				"out the end", n, maxNameBytes)
		}
	}
	var m nameMatches
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		m.text, m.ends = m.text[:0], m.ends[:0]
		s.shards[i].resetPrefixes(prefixes, dryRun, &m)
		if len(m.ends) > 0 {
			found(m.names())
		}
	}
	return nil
}

// nameMatches has the names of counters that ResetPrefixes found in a shard.
type nameMatches struct {
	text []byte // all names in a row.
	ends []int  // the end of each name in text.
	list [][]byte
}

// names returns the names. They are valid until the next call.
func (m *nameMatches) names() [][]byte {
	m.list = m.list[:0]
	start := 0
	for _, end := range m.ends {
		m.list = append(m.list, m.text[start:end:end])
		start = end
	}
	return m.list
}

// resetPrefixes adds the matching counters of sh to m, and drops them unless dryRun is set.
func (sh *shard) resetPrefixes(prefixes []backend.KeyPrefix, dryRun bool, m *nameMatches) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var seen slotSet
	for rest := sh.names.entries; len(rest) > 0; {
		e, size := firstEntry(rest)
		rest = rest[size:]
		if !e.hasPrefix(prefixes) {
			continue
		}
		i := sh.slotIndex(e.id)
		if i < 0 || sh.slots[i].expiresAt == 0 || !seen.add(i) {
			continue // The counter was evicted, was dropped before, or has its name twice.
		}
		m.text = e.appendTo(m.text)
		m.ends = append(m.ends, len(m.text))
		if !dryRun {
			sh.dropCounter(&sh.slots[i])
		}
	}
}

// appendTo appends the name of the counter, such as "user_1_ (1m0s gcra)", "user_1_ (24h0m0s fixed_window with holds)"
// or "user_1_ (concurrency)", to b.
func (e *nameEntry) appendTo(b []byte) []byte {
	b = append(append(b, e.name...), " ("...)
	if e.kind == algorithm.Concurrency {
		return append(b, "concurrency)"...)
	}
	b = fmt.Appendf(b, "%v %v", e.period, e.kind)
	if e.isHeld {
		b = append(b, " with holds"...)
	}
	return append(b, ')')
}

// hasPrefix reports whether the name starts with one of prefixes.
func (e *nameEntry) hasPrefix(prefixes []backend.KeyPrefix) bool {
	for i := range prefixes {
		if bytes.HasPrefix(e.name, prefixes[i].Text) {
			return true
		}
	}
	return false
}
