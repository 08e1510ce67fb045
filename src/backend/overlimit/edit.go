package overlimit

import (
	"context"

	"ratelimit/src/backend"
)

// Clear makes all entries invalid. A verdict of the next store on a question from before Clear does not become a valid
// entry. Callers change the counters in the store first, and then call Clear.
func (c *Cache) Clear() {
	for i := range c.evictionGuards {
		g := &c.evictionGuards[i]
		g.mu.Lock()
		g.evictionCount.Add(1)
		g.mu.Unlock()
	}
	// This comes second: an entry that has the new generation although its question is older is now refused by its
	// guard.
	c.generation.Add(1)
}

// SetCounts changes the counters in the next store and clears the cache; see backend.Editor. It drops all, because a
// counter may have an entry for each rule that uses it.
func (c *Cache) SetCounts(ctx context.Context, b *backend.Batch) error {
	defer c.Clear() // After an error, some counters may have been changed.
	return backend.EditorOf(c.nextStore).SetCounts(ctx, b)
}

// ResetPrefixes resets the counters in the next store and clears the cache; see backend.Editor.
func (c *Cache) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func(names [][]byte),
) error {
	if !dryRun {
		defer c.Clear()
	}
	return backend.EditorOf(c.nextStore).ResetPrefixes(ctx, prefixes, dryRun, found)
}
