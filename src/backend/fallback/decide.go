package fallback

import (
	"context"
	"errors"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// takeScratch holds the hits that one Take takes out of a batch. The store pools them.
type takeScratch struct {
	localHits     backend.SubBatch  // are counted by this process
	limitShares   []algorithm.Limit // this replica's shares of the limits of localHits
	unchargedHits backend.SubBatch  // are sent to the store by chargeAnsweredHits
}

// denyRetryAfter is the RetryAfter of hits that are refused because the store does not answer.
// A store that does not answer is probed about as often.
const denyRetryAfter = time.Second

// decideUnanswered replaces the verdicts of b that have an Err, unless ctx has ended.
func (s *Store) decideUnanswered(ctx context.Context, b *backend.Batch, p *takeScratch) error {
	ended, down, replicas := ctx.Err() != nil, false, uint64(s.cfg.Replicas())
	// append must not move the limits, since hits of p.localHits point to them
	p.limitShares = slices.Grow(p.limitShares[:0], len(b.Hits))
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		refused := isGroupRefused(b, i, end)
		for ; i < end; i++ {
			h, v := &b.Hits[i], &b.Verdicts[i]
			if v.Err == nil {
				continue
			}
			left := v.CallerLeft()
			down = down || !left && !errors.Is(v.Err, backend.ErrOverload)
			mode := h.Fallback
			if ended {
				mode = backend.FallbackError
			}
			if !left {
				s.unansweredHits[mode].Add(1)
			}
			switch mode {
			case backend.FallbackAllow, backend.FallbackDeny:
				*v = uncountedVerdict(h)
			case backend.FallbackLocal:
				p.localHits.Add(b, i, refused && h.Atomic)
				p.limitShares = append(p.limitShares, limitShare(h.Limit, replicas))
				p.localHits.Hits[len(p.localHits.Hits)-1].Limit = &p.limitShares[len(p.limitShares)-1]
			}
		}
	}
	if down {
		s.lastFailureNanos.Store(time.Now().UnixNano())
	}
	return s.countLocally(ctx, b, p)
}

// isGroupRefused reports whether a hit of Hits[i:end] refuses the group, by the store's verdict or by its own fallback.
func isGroupRefused(b *backend.Batch, i, end int) bool {
	for ; i < end; i++ {
		h, v := &b.Hits[i], &b.Verdicts[i]
		if !h.NoVeto && (v.Over || v.Err != nil && fallbackDenies(h)) {
			return true
		}
	}
	return false
}

// countLocally counts the hits of p.localHits in this process.
func (s *Store) countLocally(ctx context.Context, b *backend.Batch, p *takeScratch) error {
	if err := s.localStore.Load().Take(ctx, &p.localHits.Batch); err != nil {
		return err
	}
	for k, i := range p.localHits.BatchIndexes {
		v := &p.localHits.Verdicts[k]
		v.Fallback, v.Share = backend.FallbackLocal, p.localHits.Hits[k].Limit.Capacity()
		v.FullUntil = 0 // the replica's share is used up, but perhaps not the limit
		if v.RetryAfter == algorithm.Never && !canNeverPass(&b.Hits[i]) {
			v.RetryAfter = denyRetryAfter // the hit exceeds the replica's share, but not the limit
		}
	}
	p.localHits.CopyVerdicts(b)
	return nil
}

// canNeverPass reports whether h is refused whatever its counter holds, such as with a limit of 0.
func canNeverPass(h *backend.Hit) bool { return h.Op.CanBeRefused() && !h.Limit.CanPass(h.Amount) }

// fallbackDenies reports whether the fallback of h refuses it without counting.
func fallbackDenies(h *backend.Hit) bool {
	return h.Fallback == backend.FallbackDeny && h.Op.CanBeRefused() ||
		h.Fallback == backend.FallbackAllow && canNeverPass(h)
}

// uncountedVerdict returns the verdict on a hit that is allowed or denied without counting. It
// is that of the first hit of a limit, or that of a hit on a limit that is used up.
func uncountedVerdict(h *backend.Hit) backend.Verdict {
	v := backend.Verdict{Fallback: h.Fallback}
	capacity := h.Limit.Capacity()
	switch {
	case fallbackDenies(h):
		v.Over, v.RetryAfter, v.ResetAfter = true, denyRetryAfter, denyRetryAfter
		if canNeverPass(h) {
			v.RetryAfter = algorithm.Never
		}
		v.Before = max(capacity, h.Limit.Max)
		v.After = v.Before
	case h.Fallback == backend.FallbackAllow:
		v.Remaining = capacity - min(capacity, h.Amount)
	}
	return v
}

// chargeAnsweredHits charges in the store the answered hits of atomic groups that it left uncharged because other hits
// of their groups had no answer. It charges them if their group passes by the fallbacks of those others.
func (s *Store) chargeAnsweredHits(ctx context.Context, b *backend.Batch, p *takeScratch) error {
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		passes := groupPassesByFallback(b, i, end)
		for ; i < end; i++ {
			h, v := &b.Hits[i], &b.Verdicts[i]
			answered := v.Fallback == backend.FallbackError && v.Err == nil
			if passes && answered && h.Atomic && !v.Charged && h.Op == algorithm.Charge && h.Amount > 0 {
				p.unchargedHits.Add(b, i, false)
			}
		}
	}
	return p.unchargedHits.Send(ctx, s, b) // Take of s decides hits that the store does not answer
}

// groupPassesByFallback reports whether Hits[i:end] are an atomic group that passes, and the
// fallback decided at least one of them.
func groupPassesByFallback(b *backend.Batch, i, end int) bool {
	fellBack := false
	for j := i; j < end; j++ {
		h, v := &b.Hits[j], &b.Verdicts[j]
		if v.Err != nil || v.Over && !h.NoVeto {
			return false
		}
		fellBack = fellBack || v.Fallback != backend.FallbackError
	}
	return fellBack && backend.AnyAtomic(b.Hits[i:end])
}

// limitShare returns the part of l that one of n replicas enforces when each counts alone: Max and Burst+1 divided by n
// and rounded up, and MinInterval and Emission times n. With Max 10 and 4 replicas it has Max 3. With n of 0 or 1 it is
// l. A MinInterval or Emission above algorithm.MaxPeriod, and a Burst that takes longer than that to fill, are lowered
// to it.
//
// All shares together let up to n - 1 more pass than l, or 2 x (n - 1) more for a GCRA.
func limitShare(l *algorithm.Limit, n uint64) algorithm.Limit {
	s := *l
	if n <= 1 {
		return s
	}
	s.Max = ceilDiv(l.Max, n)
	s.MinInterval, s.Emission = times(l.MinInterval, n), times(l.Emission, n)
	if l.Kind == algorithm.GCRA && l.Max > 0 {
		capacity := min(ceilDiv(l.Burst+1, n), uint64(algorithm.MaxPeriod)/uint64(s.EmissionInterval()))
		s.Burst = max(capacity, 1) - 1
	}
	return s
}

// times returns d times n, but at most algorithm.MaxPeriod.
func times(d time.Duration, n uint64) time.Duration {
	if uint64(d) > uint64(algorithm.MaxPeriod)/n {
		return algorithm.MaxPeriod
	}
	return d * time.Duration(n)
}

// ceilDiv returns a / b, rounded up, for b > 1.
func ceilDiv(a, b uint64) uint64 { return a/b + (a%b+b-1)/b }
