// Package split keeps the counters of short windows in a store of their own. They get
// most of the hits and matter least, so they should not push out the other counters.
package split

import (
	"context"
	"sync"
	"time"

	"ratelimit/src/backend"
)

// New returns a store in front of two. Limits with a period of at most one second are
// counted in perSecond, all others in rest.
//
// A batch with limits of both takes two round trips, first to perSecond and then to rest.
// Two at a time would cost a goroutine per request, and few requests have both.
//
// An atomic group with hits in both takes three steps: look at its hits in rest; if none
// refuses, charge its hits in perSecond; if none of those refuses, charge its hits in rest.
// If other requests use up rest meanwhile, or one key is in the group twice, perSecond has
// charged a refused group. A store that does not answer counts as a refusal.
func New(perSecond, rest backend.Backend) backend.Backend {
	return &store{
		perSecond: perSecond,
		rest:      rest,
		pool:      sync.Pool{New: func() any { return new(scratch) }},
	}
}

type store struct {
	perSecond, rest backend.Backend
	pool            sync.Pool // of *scratch
}

// scratch holds the parts of a batch that one Take sends to the two stores. The store pools
// scratches.
type scratch struct{ short, long backend.Part }

func short(h *backend.Hit) bool { return h.Limit.Period <= time.Second }

// Take sends each hit of b to its store; see backend.Backend. If all hits are of one store,
// b itself is sent.
func (s *store) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	switch countShort(b.Hits) {
	case 0:
		return s.rest.Take(ctx, b)
	case len(b.Hits):
		return s.perSecond.Take(ctx, b)
	}
	sc := s.pool.Get().(*scratch)
	err := s.takeBoth(ctx, b, sc)
	if sc.short.Reset() && sc.long.Reset() {
		s.pool.Put(sc)
	}
	return err
}

func countShort(hits []backend.Hit) (n int) {
	for i := range hits {
		if short(&hits[i]) {
			n++
		}
	}
	return n
}

// takeBoth makes as few calls as keep the order of the hits: one to each store, and more
// only around an atomic group with hits in both.
func (s *store) takeBoth(ctx context.Context, b *backend.Batch, sc *scratch) error {
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		if n := countShort(b.Hits[i:end]); 0 < n && n < end-i && backend.AnyAtomic(b.Hits[i:end]) {
			if err := s.send(ctx, b, sc); err != nil {
				return err
			}
			if err := s.takeGroup(ctx, b, i, end, sc); err != nil {
				return err
			}
		} else {
			add(&sc.short, b, i, end, true, false)
			add(&sc.long, b, i, end, false, false)
		}
		i = end
	}
	return s.send(ctx, b, sc)
}

// add adds the hits of b from i to end that have a short window, or a long one, to p. If
// look is set, atomic hits are added as looks.
func add(p *backend.Part, b *backend.Batch, i, end int, shorts, look bool) {
	for ; i < end; i++ {
		switch h := &b.Hits[i]; {
		case short(h) != shorts:
		case look && h.Atomic:
			p.AddLook(b, i)
		default:
			p.Add(b, i)
		}
	}
}

func (s *store) send(ctx context.Context, b *backend.Batch, sc *scratch) error {
	if err := sc.short.Send(ctx, s.perSecond, b); err != nil {
		return err
	}
	return sc.long.Send(ctx, s.rest, b)
}

// takeGroup takes the atomic group from hit i up to end in the steps that New describes.
// Hits that are not atomic are charged in the first step of their store.
func (s *store) takeGroup(ctx context.Context, b *backend.Batch, i, end int, sc *scratch) error {
	add(&sc.long, b, i, end, false, true)
	if err := sc.long.Send(ctx, s.rest, b); err != nil {
		return err
	}
	refused := refuses(b, i, end, false)
	add(&sc.short, b, i, end, true, refused)
	if err := sc.short.Send(ctx, s.perSecond, b); err != nil || refused || refuses(b, i, end, true) {
		return err
	}
	for ; i < end; i++ {
		if h := &b.Hits[i]; !short(h) && h.Atomic {
			sc.long.Add(b, i)
		}
	}
	return sc.long.Send(ctx, s.rest, b)
}

// refuses reports whether one of the short hits from i to end, or of the long ones, refuses
// its group or got no answer.
func refuses(b *backend.Batch, i, end int, shorts bool) bool {
	for ; i < end; i++ {
		h, v := &b.Hits[i], &b.Verdicts[i]
		if short(h) == shorts && (v.Err != nil || v.Over && !h.NoVeto) {
			return true
		}
	}
	return false
}
