package split

import (
	"context"

	"ratelimit/src/backend"
)

// SetCounts changes each counter in its store; see backend.Editor.
func (s *store) SetCounts(ctx context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	var perSecondHits, otherHits backend.SubBatch
	for i := range b.Hits {
		if isPerSecond(&b.Hits[i]) {
			perSecondHits.Add(b, i, false)
		} else {
			otherHits.Add(b, i, false)
		}
	}
	if len(perSecondHits.Hits) > 0 {
		if err := backend.EditorOf(s.perSecondStore).SetCounts(ctx, &perSecondHits.Batch); err != nil {
			return err
		}
	}
	if len(otherHits.Hits) == 0 {
		return nil
	}
	return backend.EditorOf(s.otherStore).SetCounts(ctx, &otherHits.Batch)
}

// ResetPrefixes searches both stores; see backend.Editor.
func (s *store) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func(names [][]byte),
) error {
	if err := backend.EditorOf(s.perSecondStore).ResetPrefixes(ctx, prefixes, dryRun, found); err != nil {
		return err
	}
	return backend.EditorOf(s.otherStore).ResetPrefixes(ctx, prefixes, dryRun, found)
}
