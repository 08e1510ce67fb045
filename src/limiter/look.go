package limiter

import (
	"context"
	"time"

	"ratelimit/src/algorithm"
)

// Look fills a with what would become of req now, and changes nothing: every
// charge only looks, and the Recorder is not told. Its errors are those of Check.
//
// The verdicts are those of looks: Before is the counter as it is, and Remaining
// what is left of it without this request. A hit is judged as if those of the
// request before it had been charged to the counter that they share. Where one
// of them is refused, and its limit does not count what is refused, Check may
// be kinder to the next one than Look.
func (l *Limiter) Look(ctx context.Context, req *Request, a *Answer) error {
	return l.decide(ctx, req, a, true)
}

// oddLook is a hit whose look does not say whether it passes: a refund, which is
// never over, or one that follows too close on another of the request on the
// same counter, and so never passes.
type oddLook struct {
	hit      int
	tooClose bool
}

// onlyLook turns all hits into looks.
func (s *scratch) onlyLook() (odd []oddLook) {
	type counter struct {
		key    string
		kind   algorithm.Kind
		period time.Duration
	}
	asked := make(map[counter]uint64)
	for i := range s.batch.Hits {
		h := &s.batch.Hits[i]
		refund := h.Op == algorithm.Refund
		*h = h.AsLook()
		if refund {
			odd = append(odd, oddLook{hit: i})
			continue
		}
		c := counter{string(h.Key), h.Limit.Kind, h.Limit.Period}
		before := asked[c]
		if before > 0 && h.Limit.MinInterval > 0 {
			odd = append(odd, oddLook{hit: i, tooClose: true})
		}
		h.Amount = min(before+h.Amount, algorithm.MaxAmount)
		asked[c] = h.Amount
	}
	return odd
}

// judge turns the verdicts of odd looks into those of hits.
func (s *scratch) judge(odd []oddLook) {
	for _, o := range odd {
		v := &s.batch.Verdicts[o.hit]
		v.Over, v.Interval, v.RetryAfter = o.tooClose, o.tooClose, 0
		if o.tooClose {
			v.RetryAfter = algorithm.Never
		}
	}
}
