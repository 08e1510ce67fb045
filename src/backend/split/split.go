// Package split keeps the counters of short windows in a store of their own:
// they are hit most and worth least, so they should not crowd out the others.
package split

import (
	"context"
	"sync"
	"time"

	"ratelimit/src/backend"
)

// New returns a store in front of two: limits with a period of at most one
// second are perSecond's, all others rest's.
//
// A batch for both is asked of perSecond first and then of rest, one after the
// other: two at a time would cost a goroutine and its wakeups per request, and
// few requests have limits of both sorts. So such a batch takes two round
// trips.
//
// No two stores can promise an atomic group that has hits in both. Such a group
// takes three steps: its hits in rest are looked at, then perSecond charges
// its part if nobody refused, then rest charges its part if nobody refused;
// each part is atomic in its own store. Nothing passes that should not. But if
// others use up what rest had left between the first step and the last, or if
// only the same key twice is too much for it, then perSecond has charged a
// group that is refused. That is why it comes first: what it lost is back in a
// second. A store that does not answer counts as a refusal.
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

// scratch is the memory of one Take, used again for the next.
type scratch struct {
	short, long backend.Part
}

func short(h *backend.Hit) bool { return h.Limit.Period <= time.Second }

// Take hands each hit of b to the store it belongs to; see limiter.Backend. If
// all belong to one, b itself goes on.
func (s *store) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	switch seconds := countShort(b.Hits); seconds {
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

func countShort(hits []backend.Hit) int {
	n := 0
	for i := range hits {
		if short(&hits[i]) {
			n++
		}
	}
	return n
}

// takeBoth sends the batch in as few calls as keep its order: one to each
// store, and more only around an atomic group that spans both.
func (s *store) takeBoth(ctx context.Context, b *backend.Batch, sc *scratch) error {
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		if spans(b.Hits[i:end]) {
			if err := s.send(ctx, b, sc); err != nil {
				return err
			}
			if err := s.takeGroup(ctx, b, i, end, sc); err != nil {
				return err
			}
			i = end
			continue
		}
		for ; i < end; i++ {
			sc.to(&b.Hits[i]).Add(b, i)
		}
	}
	return s.send(ctx, b, sc)
}

// spans says whether hits are an atomic group of both stores.
func spans(hits []backend.Hit) bool {
	n := countShort(hits)
	return 0 < n && n < len(hits) && backend.AnyAtomic(hits)
}

func (sc *scratch) to(h *backend.Hit) *backend.Part {
	if short(h) {
		return &sc.short
	}
	return &sc.long
}

// send hands over what has been gathered.
func (s *store) send(ctx context.Context, b *backend.Batch, sc *scratch) error {
	if err := handOver(ctx, s.perSecond, &sc.short, b); err != nil {
		return err
	}
	return handOver(ctx, s.rest, &sc.long, b)
}

// handOver sends a part of b to next, hands out the verdicts, and empties the part. An
// empty part is not sent.
func handOver(ctx context.Context, next backend.Backend, p *backend.Part, b *backend.Batch) error {
	if len(p.Hits) == 0 {
		return nil
	}
	if err := next.Take(ctx, &p.Batch); err != nil {
		return err
	}
	p.Return(b)
	p.Empty()
	return nil
}

// takeGroup takes the atomic group from hit i up to end, which spans both
// stores. Hits that are not atomic are charged at the first opportunity; each
// verdict is the last that its store gave.
func (s *store) takeGroup(ctx context.Context, b *backend.Batch, i, end int, sc *scratch) error {
	hits, verdicts := b.Hits[i:end], b.Verdicts[i:end]
	for j := range hits {
		switch h := &hits[j]; {
		case short(h):
		case h.Atomic:
			sc.long.AddLook(b, i+j)
		default:
			sc.long.Add(b, i+j)
		}
	}
	if err := handOver(ctx, s.rest, &sc.long, b); err != nil {
		return err
	}
	refused := vetoed(hits, verdicts, false)
	for j := range hits {
		switch h := &hits[j]; {
		case !short(h):
		case h.Atomic && refused:
			sc.short.AddLook(b, i+j)
		default:
			sc.short.Add(b, i+j)
		}
	}
	if err := handOver(ctx, s.perSecond, &sc.short, b); err != nil {
		return err
	}
	if refused || vetoed(hits, verdicts, true) {
		return nil // what rest was asked were looks
	}
	for j := range hits {
		if h := &hits[j]; !short(h) && h.Atomic {
			sc.long.Add(b, i+j)
		}
	}
	return handOver(ctx, s.rest, &sc.long, b)
}

// vetoed says whether one of the short hits, or else one of the long, refuses
// for its group or was not answered.
func vetoed(hits []backend.Hit, verdicts []backend.Verdict, seconds bool) bool {
	for i := range hits {
		h, v := &hits[i], &verdicts[i]
		if short(h) == seconds && (v.Err != nil || v.Over && !h.NoVeto) {
			return true
		}
	}
	return false
}
