// Package split keeps the counters of short windows in a store of their own. Short windows get
// most of the hits and matter least, so their counters should not push out the others.
package split

import (
	"context"
	"hash/maphash"
	"iter"
	"sync"
	"time"

	"ratelimit/src/backend"
)

// New returns a store in front of two. Limits with a period of at most one second are counted in perSecond, all others
// in rest.
//
// A batch with limits of both takes two round trips, first to rest and then to perSecond. Two
// calls at a time would cost a goroutine per request, and few requests have limits of both.
//
// An atomic group with hits in both takes three steps: look at its hits in rest; if none refuses, charge its hits in
// perSecond; if none of those refuses, charge its hits in rest. If other requests use up rest meanwhile, or one key is
// in the group twice, perSecond has charged a refused group. A store that does not answer counts as a refusal.
//
// Several such groups in a batch take the three steps together. A group whose counter in rest such a group
// has already starts three new steps.
func New(perSecond, rest backend.Backend) backend.Backend {
	return &store{
		perSecondStore: perSecond, otherStore: rest, hashSeed: maphash.MakeSeed(),
		partsPool: sync.Pool{New: func() any { return &storeParts{heldKeys: make(map[uint64]struct{})} }},
	}
}

type store struct {
	perSecondStore, otherStore backend.Backend
	hashSeed                   maphash.Seed
	partsPool                  sync.Pool // contains *storeParts
}

// storeParts holds the hits of a batch that one Take sends to the two stores.
type storeParts struct {
	perSecondHits, otherHits backend.SubBatch
	heldKeys                 map[uint64]struct{} // has hashes of the keys that must wait for the next round
}

// isPerSecond reports whether the store for short windows counts h.
func isPerSecond(h *backend.Hit) bool { return h.Limit.Period <= time.Second }

// Take sends each hit of b to its store; see backend.Backend. If all hits are for one store, it sends b itself.
func (s *store) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	switch countPerSecond(b.Hits) {
	case 0:
		return s.otherStore.Take(ctx, b)
	case len(b.Hits):
		return s.perSecondStore.Take(ctx, b)
	}
	p := s.partsPool.Get().(*storeParts)
	err := s.takeFromBoth(ctx, b, p)
	if p.perSecondHits.Reset(backend.MaxPooledHits) && p.otherHits.Reset(backend.MaxPooledHits) {
		s.partsPool.Put(p)
	}
	return err
}

// countPerSecond returns how many of the hits are for the store for short windows.
func countPerSecond(hits []backend.Hit) (n int) {
	for i := range hits {
		if isPerSecond(&hits[i]) {
			n++
		}
	}
	return n
}

// takeFromBoth takes the groups of b in as few rounds as keep the order of the hits on each counter.
func (s *store) takeFromBoth(ctx context.Context, b *backend.Batch, p *storeParts) error {
	for begin := 0; begin < len(b.Hits); {
		end := s.endOfRound(b, begin, p)
		if err := s.takeRound(ctx, b, begin, end, p); err != nil {
			return err
		}
		begin = end
	}
	return nil
}

// groupsOf returns the start and the end of each group of Hits[begin:end].
func groupsOf(b *backend.Batch, begin, end int) iter.Seq2[int, int] {
	return func(yield func(begin, end int) bool) {
		for begin < end {
			groupEnd := b.GroupEnd(begin)
			if !yield(begin, groupEnd) {
				return
			}
			begin = groupEnd
		}
	}
}

// spansBoth reports whether Hits[i:end] are an atomic group with hits in both stores.
func spansBoth(b *backend.Batch, i, end int) bool {
	n := countPerSecond(b.Hits[i:end])
	return 0 < n && n < end-i && backend.AnyAtomic(b.Hits[i:end])
}

// endOfRound returns the end of the round that starts at hit begin: the first group with a counter in the other store
// that an earlier group of the round charges in its last step.
func (s *store) endOfRound(b *backend.Batch, begin int, p *storeParts) int {
	clear(p.heldKeys)
	for i, end := range groupsOf(b, begin, len(b.Hits)) {
		spans := spansBoth(b, i, end)
		for j := i; j < end && len(p.heldKeys) > 0; j++ {
			if h := &b.Hits[j]; !isPerSecond(h) {
				if _, held := p.heldKeys[maphash.Bytes(s.hashSeed, h.Key)]; held {
					return i
				}
			}
		}
		for j := i; j < end && spans && end < len(b.Hits); j++ { // The last group of a batch need not hold its keys.
			if h := &b.Hits[j]; !isPerSecond(h) {
				p.heldKeys[maphash.Bytes(s.hashSeed, h.Key)] = struct{}{}
			}
		}
	}
	return len(b.Hits)
}

// takeRound sends Hits[begin:end]. The groups that span both stores take the three steps that New describes, of which
// the others need only the first two. Hits that are not atomic are charged in the first step of their store.
func (s *store) takeRound(ctx context.Context, b *backend.Batch, begin, end int, p *storeParts) error {
	for i, groupEnd := range groupsOf(b, begin, end) {
		addStoreHits(&p.otherHits, b, i, groupEnd, false, spansBoth(b, i, groupEnd))
	}
	if err := p.otherHits.Send(ctx, s.otherStore, b); err != nil {
		return err
	}
	for i, groupEnd := range groupsOf(b, begin, end) {
		refused := spansBoth(b, i, groupEnd) && isGroupRefused(b, i, groupEnd, false)
		addStoreHits(&p.perSecondHits, b, i, groupEnd, true, refused)
	}
	if err := p.perSecondHits.Send(ctx, s.perSecondStore, b); err != nil {
		return err
	}
	for i, groupEnd := range groupsOf(b, begin, end) {
		charged := spansBoth(b, i, groupEnd) && !isGroupRefused(b, i, groupEnd, false) &&
			!isGroupRefused(b, i, groupEnd, true)
		for ; i < groupEnd; i++ {
			if h := &b.Hits[i]; charged && !isPerSecond(h) && h.Atomic {
				p.otherHits.Add(b, i, false)
			}
		}
	}
	return p.otherHits.Send(ctx, s.otherStore, b)
}

// addStoreHits adds the hits of Hits[i:end] for one of the two stores to p. If look is set, it adds the atomic ones as
// looks.
func addStoreHits(p *backend.SubBatch, b *backend.Batch, i, end int, perSecond, look bool) {
	for ; i < end; i++ {
		if h := &b.Hits[i]; isPerSecond(h) == perSecond {
			p.Add(b, i, look && h.Atomic)
		}
	}
}

// isGroupRefused reports whether a hit of Hits[i:end] for one of the two stores refuses its group or got no answer.
func isGroupRefused(b *backend.Batch, i, end int, perSecond bool) bool {
	for ; i < end; i++ {
		h, v := &b.Hits[i], &b.Verdicts[i]
		if isPerSecond(h) == perSecond && (v.Err != nil || v.Over && !h.NoVeto) {
			return true
		}
	}
	return false
}

// SetCounts changes each counter in its store; see backend.Editor.
func (s *store) SetCounts(ctx context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	for _, perSecond := range []bool{true, false} {
		store := s.otherStore
		if perSecond {
			store = s.perSecondStore
		}
		var hits backend.SubBatch
		addStoreHits(&hits, b, 0, len(b.Hits), perSecond, false)
		if len(hits.Hits) == 0 {
			continue
		}
		if err := backend.EditorOf(store).SetCounts(ctx, &hits.Batch); err != nil {
			return err
		}
	}
	return nil
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
