package limiter

import (
	"context"
	"time"

	"ratelimit/src/algorithm"
)

// Look fills a with the decision on req as of now, and changes nothing: no hit is
// charged, and the Recorder is not called. Its errors are those of Check.
//
// In the verdicts, Before is the counter as it is, and Remaining is what is left without
// this request. A hit is decided as if earlier hits of the request had been charged to
// the counter that they share. If one of them is refused, and its limit does not count
// refused hits, Check may allow a later hit that Look refuses.
func (l *Limiter) Look(ctx context.Context, req *Request, a *Answer) error {
	return l.decide(ctx, req, a, true)
}

// lookOnly turns all hits into looks.
func (a *Answer) lookOnly() {
	type counter struct {
		key    string
		kind   algorithm.Kind
		period time.Duration
	}
	asked := make(map[counter]uint64)
	for i := range a.Charges {
		c, h := &a.Charges[i], &a.memory.batch.Hits[i]
		refund := h.Op == algorithm.Refund
		*h = h.AsLook()
		if refund {
			continue
		}
		same := counter{string(c.Key), h.Limit.Kind, h.Limit.Period}
		c.Asked += asked[same]
		asked[same] = c.Asked
		h.Amount = min(c.Asked, algorithm.MaxAmount)
	}
}

// correctLooks fixes the verdicts of looks that do not say what would become of the hit:
// a refund is never over, and a second hit on a counter with a minimum interval always is.
func (a *Answer) correctLooks() {
	for i := range a.Statuses {
		st := &a.Statuses[i]
		for j := st.found.begin; j < st.found.end; j++ {
			c, v := &a.Charges[j], &a.memory.batch.Verdicts[j]
			switch {
			case st.Op == algorithm.Refund:
				v.Over, v.Interval, v.RetryAfter = false, false, 0
			case c.Asked > st.Amount && c.Algorithm.MinInterval > 0:
				v.Over, v.Interval, v.RetryAfter = true, true, algorithm.Never
			}
		}
	}
}
