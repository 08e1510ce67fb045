package fallback

import (
	"context"
	"errors"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// scratch holds the parts and limits that one Take works on. The store pools scratches.
type scratch struct {
	local  backend.Part // the hits to count here
	shares []algorithm.Limit
	rest   backend.Part // see chargeRest
}

// denyFor is the wait of hits that are refused because the store does not answer. A store
// that does not answer is probed about as often.
const denyFor = time.Second

// decide replaces the verdicts of b that have an Err.
func (s *Store) decide(ctx context.Context, b *backend.Batch, sc *scratch) error {
	ended, down, replicas := ctx.Err() != nil, false, uint64(s.replicas.Load())
	sc.shares = slices.Grow(sc.shares[:0], len(b.Hits)) // hits point into it
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		refused := refused(b, i, end)
		for ; i < end; i++ {
			h, v := &b.Hits[i], &b.Verdicts[i]
			if v.Err == nil {
				continue
			}
			down = down || !errors.Is(v.Err, backend.ErrOverload)
			mode := h.Fallback
			if ended {
				mode = backend.FallbackError
			}
			s.hits[mode].Add(1)
			switch mode {
			case backend.FallbackAllow, backend.FallbackDeny:
				*v = uncounted(h)
			case backend.FallbackLocal:
				if refused && h.Atomic {
					sc.local.AddLook(b, i)
				} else {
					sc.local.Add(b, i)
				}
				sc.shares = append(sc.shares, share(h.Limit, replicas))
				sc.local.Hits[len(sc.local.Hits)-1].Limit = &sc.shares[len(sc.shares)-1]
			}
		}
	}
	if down {
		s.last.Store(time.Now().UnixNano())
	}
	return s.count(ctx, b, sc)
}

// refused reports whether a hit from i to end refuses the group, by the store's verdict or
// by its own fallback.
func refused(b *backend.Batch, i, end int) bool {
	for ; i < end; i++ {
		h, v := &b.Hits[i], &b.Verdicts[i]
		if !h.NoVeto && (v.Over || v.Err != nil && denies(h)) {
			return true
		}
	}
	return false
}

// count counts sc.local in this process.
func (s *Store) count(ctx context.Context, b *backend.Batch, sc *scratch) error {
	if err := s.local.Take(ctx, &sc.local.Batch); err != nil {
		return err
	}
	for k, i := range sc.local.From {
		v := &sc.local.Verdicts[k]
		v.Fallback = backend.FallbackLocal
		v.FullUntil = time.Time{} // the share is used up, but perhaps not the limit
		if v.RetryAfter == algorithm.Never && !neverPasses(&b.Hits[i]) {
			v.RetryAfter = denyFor // it exceeds the share, not the limit
		}
	}
	sc.local.Return(b)
	sc.local.Empty()
	return nil
}

// neverPasses reports whether no state of the store lets h pass, such as with a limit of 0.
func neverPasses(h *backend.Hit) bool { return h.Op.Asks() && h.Amount > h.Limit.Capacity() }

// denies reports whether h's own fallback refuses it without counting.
func denies(h *backend.Hit) bool {
	return h.Fallback == backend.FallbackDeny && h.Op.Asks() || h.Fallback == backend.FallbackAllow && neverPasses(h)
}

// uncounted returns the verdict on a hit that is allowed or denied without counting: as on
// the first hit of a limit, or as on a hit when the limit is used up.
func uncounted(h *backend.Hit) backend.Verdict {
	v := backend.Verdict{Fallback: h.Fallback}
	capacity := h.Limit.Capacity()
	switch {
	case denies(h):
		v.Over, v.RetryAfter, v.ResetAfter = true, denyFor, denyFor
		if neverPasses(h) {
			v.RetryAfter = algorithm.Never
		}
		v.Before = max(capacity, h.Limit.Max)
		v.After = v.Before
	case h.Fallback == backend.FallbackAllow:
		v.Remaining = capacity - min(capacity, h.Amount)
	}
	return v
}

// chargeRest charges in the store what it left uncharged because other hits of the same
// atomic group had no answer, if the group passes after all.
func (s *Store) chargeRest(ctx context.Context, b *backend.Batch, sc *scratch) error {
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		passes := passesHere(b, i, end)
		for ; i < end; i++ {
			h, v := &b.Hits[i], &b.Verdicts[i]
			answered := v.Fallback == backend.FallbackError && v.Err == nil
			if passes && answered && h.Atomic && !v.Charged && h.Op == algorithm.Charge && h.Amount > 0 {
				sc.rest.Add(b, i)
			}
		}
	}
	return sc.rest.Send(ctx, s, b) // through s: another store of the group may not answer any more
}

// passesHere reports whether the hits from i to end are an atomic group that passes, some
// hits of which were decided here.
func passesHere(b *backend.Batch, i, end int) bool {
	here := false
	for j := i; j < end; j++ {
		h, v := &b.Hits[j], &b.Verdicts[j]
		if v.Err != nil || v.Over && !h.NoVeto {
			return false
		}
		here = here || v.Fallback != backend.FallbackError
	}
	return here && backend.AnyAtomic(b.Hits[i:end])
}
