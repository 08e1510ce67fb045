// Package split keeps the counters of short windows in a store of their own. Short windows get
// most of the hits and matter least, so their counters should not push out the others.
package split

import (
	"context"
	"sync"
	"time"

	"ratelimit/src/backend"
)

// New returns a store in front of two. Limits with a period of at most one second are counted in perSecond, all others in rest.
//
// A batch with limits of both takes two round trips, first to perSecond and then to rest. Two
// calls at a time would cost a goroutine per request, and few requests have limits of both.
//
// An atomic group with hits in both takes three steps: look at its hits in rest; if none refuses, charge its hits in perSecond;
// if none of those refuses, charge its hits in rest. If other requests use up rest meanwhile, or one key is in the group twice,
// perSecond has charged a refused group. A store that does not answer counts as a refusal.
func New(perSecond, rest backend.Backend) backend.Backend {
	return &store{perSecondStore: perSecond, otherStore: rest, partsPool: sync.Pool{New: func() any { return new(storeParts) }}}
}

type store struct {
	perSecondStore, otherStore backend.Backend
	partsPool                  sync.Pool // partsPool contains *storeParts.
}

// storeParts holds the hits of a batch that one Take sends to the two stores.
type storeParts struct{ perSecondHits, otherHits backend.SubBatch }

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

// takeFromBoth makes as few calls as keep the order of the hits: one to each store, and more
// only around an atomic group with hits in both stores.
func (s *store) takeFromBoth(ctx context.Context, b *backend.Batch, p *storeParts) error {
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		if n := countPerSecond(b.Hits[i:end]); 0 < n && n < end-i && backend.AnyAtomic(b.Hits[i:end]) {
			if err := s.sendBoth(ctx, b, p); err != nil {
				return err
			}
			if err := s.takeAtomicGroup(ctx, b, i, end, p); err != nil {
				return err
			}
		} else {
			addStoreHits(&p.perSecondHits, b, i, end, true, false)
			addStoreHits(&p.otherHits, b, i, end, false, false)
		}
		i = end
	}
	return s.sendBoth(ctx, b, p)
}

// addStoreHits adds the hits of Hits[i:end] for one of the two stores to p. If look is set, it adds the atomic ones as looks.
func addStoreHits(p *backend.SubBatch, b *backend.Batch, i, end int, perSecond, look bool) {
	for ; i < end; i++ {
		if h := &b.Hits[i]; isPerSecond(h) == perSecond {
			p.Add(b, i, look && h.Atomic)
		}
	}
}

func (s *store) sendBoth(ctx context.Context, b *backend.Batch, p *storeParts) error {
	if err := p.perSecondHits.Send(ctx, s.perSecondStore, b); err != nil {
		return err
	}
	return p.otherHits.Send(ctx, s.otherStore, b)
}

// takeAtomicGroup sends the atomic group Hits[i:end] to the stores in the three steps that New
// describes. Hits that are not atomic are charged in the first step of their store.
func (s *store) takeAtomicGroup(ctx context.Context, b *backend.Batch, i, end int, p *storeParts) error {
	addStoreHits(&p.otherHits, b, i, end, false, true)
	if err := p.otherHits.Send(ctx, s.otherStore, b); err != nil {
		return err
	}
	refused := isGroupRefused(b, i, end, false)
	addStoreHits(&p.perSecondHits, b, i, end, true, refused)
	if err := p.perSecondHits.Send(ctx, s.perSecondStore, b); err != nil || refused || isGroupRefused(b, i, end, true) {
		return err
	}
	for ; i < end; i++ {
		if h := &b.Hits[i]; !isPerSecond(h) && h.Atomic {
			p.otherHits.Add(b, i, false)
		}
	}
	return p.otherHits.Send(ctx, s.otherStore, b)
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
