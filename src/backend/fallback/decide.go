package fallback

import (
	"context"
	"errors"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// scratch is the memory of one Take, used again for the next.
type scratch struct {
	here   backend.Part // what is counted here
	shares []algorithm.Limit
	again  backend.Part // what the store would have charged, had it known the rest of the group
}

func (s *Store) release(sc *scratch) {
	if !sc.here.Reset() || !sc.again.Reset() {
		return
	}
	s.pool.Put(sc)
}

// decide replaces the verdicts of b that have an Err. With again the store is asked
// once more for what is left of atomic groups.
func (s *Store) decide(ctx context.Context, b *backend.Batch, again bool) error {
	if unanswered(b) {
		s.last.Store(time.Now().UnixNano())
	}
	sc := s.pool.Get().(*scratch)
	defer s.release(sc)
	waits := ctx.Err() == nil
	if cap(sc.shares) < len(b.Hits) { // pointers into it must stay good
		sc.shares = make([]algorithm.Limit, 0, len(b.Hits))
	}
	sc.shares = sc.shares[:0]
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		s.decideGroup(b, i, end, waits, sc)
		i = end
	}
	if len(sc.here.Hits) > 0 {
		if err := s.count(ctx, b, sc); err != nil {
			return err
		}
	}
	if !again {
		return nil
	}
	return s.takeAgain(ctx, b, sc)
}

// unanswered reports whether some hit has no answer for another reason than that its
// request was too much for the store.
func unanswered(b *backend.Batch) bool {
	for i := range b.Verdicts {
		if err := b.Verdicts[i].Err; err != nil && !errors.Is(err, backend.ErrOverload) {
			return true
		}
	}
	return false
}

// count has sc.here counted here.
func (s *Store) count(ctx context.Context, b *backend.Batch, sc *scratch) error {
	if err := s.local.Take(ctx, &sc.here.Batch); err != nil {
		return err
	}
	for k, i := range sc.here.From {
		v := &sc.here.Verdicts[k]
		v.Fallback = backend.FallbackLocal
		v.FullUntil = time.Time{} // the share is used up, which says nothing of the limit
		if v.RetryAfter == algorithm.Never && !never(&b.Hits[i]) {
			v.RetryAfter = denyFor // it fits into the limit, and so waits for the store
		}
	}
	sc.here.Return(b)
	return nil
}

// decideGroup decides on the hits of one group, from i to end, that have an Err, or
// puts them into sc.here.
func (s *Store) decideGroup(b *backend.Batch, i, end int, waits bool, sc *scratch) {
	refused := false // by a hit that may
	for j := i; j < end; j++ {
		h, v := &b.Hits[j], &b.Verdicts[j]
		refused = refused || !h.NoVeto && (v.Over || v.Err != nil && refuses(h))
	}
	replicas := uint64(s.replicas.Load())
	for j := i; j < end; j++ {
		h, v := &b.Hits[j], &b.Verdicts[j]
		if v.Err == nil {
			continue
		}
		how := h.Fallback
		if !waits {
			how = backend.FallbackError
		}
		s.instead[how].Add(1)
		switch how {
		case backend.FallbackAllow, backend.FallbackDeny:
			*v = uncounted(h)
		case backend.FallbackLocal:
			if refused && h.Atomic {
				sc.here.AddLook(b, j)
			} else {
				sc.here.Add(b, j)
			}
			sc.shares = append(sc.shares, h.Limit.Share(replicas))
			sc.here.Hits[len(sc.here.Hits)-1].Limit = &sc.shares[len(sc.shares)-1]
		}
	}
}

// asks says whether h can be refused.
func asks(h *backend.Hit) bool { return h.Op == algorithm.Charge || h.Op == algorithm.Look }

// never says whether h passes in no state of the store: nobody has to ask it for that,
// and no word for its absence lets in who is banned by a limit of 0.
func never(h *backend.Hit) bool { return asks(h) && h.Amount > h.Limit.Capacity() }

// refuses says whether h's word for the absence of the store is no.
func refuses(h *backend.Hit) bool {
	return h.Fallback == backend.FallbackDeny && asks(h) || h.Fallback == backend.FallbackAllow && never(h)
}

// denyFor is after how long callers are told to try again that are refused
// because the store does not answer: about as often as it is asked whether it does.
const denyFor = time.Second

// uncounted is the verdict on a hit that passes or is refused without being counted:
// as if it were the first, or as if the limit were used up.
func uncounted(h *backend.Hit) backend.Verdict {
	v := backend.Verdict{Fallback: h.Fallback}
	capacity := h.Limit.Capacity()
	switch {
	case refuses(h):
		v.Over, v.RetryAfter, v.ResetAfter = true, denyFor, denyFor
		if never(h) {
			v.RetryAfter = algorithm.Never
		}
		v.Before = max(capacity, h.Limit.Max)
		v.After = v.Before
	case h.Fallback == backend.FallbackAllow:
		v.Remaining = capacity - min(capacity, h.Amount)
	}
	return v
}

// takeAgain charges what the store left uncharged since hits of the same atomic
// group had no answer, in the groups that pass after all.
func (s *Store) takeAgain(ctx context.Context, b *backend.Batch, sc *scratch) error {
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		if passes(b, i, end) {
			for j := i; j < end; j++ {
				h, v := &b.Hits[j], &b.Verdicts[j]
				if h.Atomic && v.Fallback == backend.FallbackError && v.Err == nil && !v.Charged && h.Op == algorithm.Charge && h.Amount > 0 {
					sc.again.Add(b, j)
				}
			}
		}
		i = end
	}
	if len(sc.again.Hits) == 0 {
		return nil
	}
	if err := s.next.Take(ctx, &sc.again.Batch); err != nil {
		return err
	}
	if sc.again.Err() != nil { // another store of the group's has gone, too
		if err := s.decide(ctx, &sc.again.Batch, false); err != nil {
			return err
		}
	}
	sc.again.Return(b)
	return nil
}

// passes says whether the hits from i to end are an atomic group, of which some
// were decided here, that nobody refuses.
func passes(b *backend.Batch, i, end int) bool {
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
