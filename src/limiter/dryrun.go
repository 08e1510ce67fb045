package limiter

import (
	"context"

	"ratelimit/src/algorithm"
)

// DryRun is a dry run of Check: it fills a with the decision on req, but charges nothing and calls no Recorder. Its
// errors are those of Check.
//
// In the verdicts, Before is the count without the request, and Remaining the units that are left without it. DryRun
// decides each hit as if earlier hits of the request had been charged to the counter that they share; it ignores
// refunds, settlements and releases. If an earlier hit is refused, and its limit does not count refused hits, Check may
// allow a later hit that DryRun refuses.
func (l *Limiter) DryRun(ctx context.Context, req *Request, a *Answer) error {
	b := a.OwnBatch(req)
	if err := l.Prepare(ctx, l.Rules(), req, a, b); err != nil {
		return err
	}
	a.makeDryRunHits()
	if err := l.Take(ctx, b); err != nil {
		return err
	}
	a.correctDryRunVerdicts()
	return a.decide(&l.cfg)
}

// makeDryRunHits replaces all hits by looks, which charge nothing.
func (a *Answer) makeDryRunHits() {
	type counter struct {
		key    string
		window algorithm.Window
	}
	type hold struct {
		counter
		id algorithm.HoldID
	}
	earlier, opened, hits := make(map[counter]uint64), make(map[hold]bool), a.Hits()
	for i := range a.Charges {
		c, h := &a.Charges[i], &hits[i]
		*h = h.AsLook()
		same := counter{string(h.Key), h.Limit.Window()}
		held := hold{same, h.HoldID}
		if !c.Op.CanBeRefused() || opened[held] {
			continue
		}
		opened[held] = h.HoldID != algorithm.HoldID{} && h.HoldID != algorithm.Unnamed
		c.RequestedAmount += earlier[same]
		earlier[same] = c.RequestedAmount
		h.Amount = min(c.RequestedAmount, algorithm.MaxAmount)
	}
}

// correctDryRunVerdicts fixes the verdicts of looks that differ from those of the real hits:
// a refund, a settlement or a release is never over, and a second hit on a counter with a minimum interval always is.
func (a *Answer) correctDryRunVerdicts() {
	verdicts := a.Verdicts()
	for i := range a.Statuses {
		st := &a.Statuses[i]
		for j := range st.Charges {
			c, v := &st.Charges[j], &verdicts[j]
			switch {
			case !c.Op.CanBeRefused():
				v.Over, v.WithinMinInterval, v.RetryAfter = false, false, 0
			case c.RequestedAmount > st.Amount && c.Algorithm.MinInterval > 0:
				v.Over, v.WithinMinInterval, v.RetryAfter = true, true, algorithm.Never
			}
		}
		verdicts = verdicts[len(st.Charges):]
	}
}
