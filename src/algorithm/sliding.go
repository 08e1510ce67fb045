package algorithm

import "time"

// TakeSliding applies op to g, which it changes only if something is charged.
//
// With Max 2 in 10 s, hits at 0 s and 1 s pass. A hit at 2 s is over and must wait 8 s, or 9 s
// with CountBlocked. So with CountBlocked a caller that retries faster than the limit, or than
// MinInterval, stays refused. For MinInterval a hit of several units is one hit.
//
// If hits are later than at, the clock was set back. Then they count as hits at the instant at, so they leave the
// window at most one period later. The log keeps the newest Max+1 units, which decide all charges. Older units are
// neither in the next Before nor can they be refunded.
//
// Source: ClassDojo's rolling-rate-limiter, README.
func TakeSliding(l *Limit, g *Log, at int64, op Op, amount uint64) (v Outcome) {
	d := g.NewDraft()
	clockWasSetBack := d.newestRecord().instant > at
	d.Take(&v, l, at, op, amount)
	if v.Charged || clockWasSetBack {
		g.commitDraft(&d)
	}
	return v
}

// Take is TakeSliding on a draft, with one at for all calls. It sets *v, which must be zero.
func (d *LogDraft) Take(v *Outcome, l *Limit, at int64, op Op, amount uint64) {
	d.moveFutureHitsTo(at)
	first := d.firstRecordAfter(at - int64(l.Period))
	s := SlidingSnapshot{
		Now: at, UnitsInWindow: d.unitsFrom(first),
		NewestAge: time.Duration(at - d.newestRecord().instant),
	}
	s.setDecision(v, l, op, amount)
	if v.Charged {
		if op == Refund {
			d.removeUnits(v.Before - v.After)
		} else {
			d.addUnits(at, amount)
			if l.MinInterval > l.Period {
				first = d.firstRecordAfter(at - int64(l.MinInterval))
			}
			d.trimOldRecords(first, l.Max)
		}
		first = d.firstRecordAfter(at - int64(l.Period))
	}
	s.NewestAgeAfter = time.Duration(at - d.newestRecord().instant)
	s.WaitForAmount = d.waitForUnits(l, first, at, amount)
	s.WaitForOneUnit = s.WaitForAmount
	if amount != 1 {
		s.WaitForOneUnit = d.waitForUnits(l, first, at, 1)
	}
	s.setWaitsAndRemaining(v, l, amount)
}

// waitForUnits returns the time until enough records have left the window for amount to pass, or 0 if it
// passes now or never. first is the index of the first record in the window.
func (d *LogDraft) waitForUnits(l *Limit, first int, at int64, amount uint64) time.Duration {
	if amount > l.Max || d.unitsFrom(first) <= l.Max-amount {
		return 0
	}
	return time.Duration(d.recordAt(d.firstRecordFollowedByAtMost(first, l.Max-amount)).instant + int64(l.Period) - at)
}

// SlidingSnapshot is all that the outcome of a hit on a sliding window depends on. A store that
// keeps the hits elsewhere fills it in.
type SlidingSnapshot struct {
	Now           int64
	UnitsInWindow uint64 // the sum of the amounts in the window before this hit.
	// NewestAge and NewestAgeAfter are the age of the newest hit before and after this hit is
	// recorded, or at least MaxPeriod if there is none.
	NewestAge, NewestAgeAfter time.Duration
	// WaitForAmount is the time, after this hit, until enough hits have left the window for the same
	// amount to pass. WaitForOneUnit is the same for one unit. Both are 0 if it passes now or never.
	WaitForAmount, WaitForOneUnit time.Duration
}

// Outcome returns the outcome of op on s, as TakeSliding does.
func (s *SlidingSnapshot) Outcome(l *Limit, op Op, amount uint64) (v Outcome) {
	s.setDecision(&v, l, op, amount)
	s.setWaitsAndRemaining(&v, l, amount)
	return v
}

// setDecision sets Before, After, Over, WithinMinInterval and Charged.
func (s *SlidingSnapshot) setDecision(v *Outcome, l *Limit, op Op, amount uint64) {
	v.Before = s.UnitsInWindow
	v.WithinMinInterval = op.CanBeRefused() && s.NewestAge < l.MinInterval
	v.Over = v.WithinMinInterval || op.isOver(l, s.UnitsInWindow+amount)
	v.After = op.countAfterOp(l, v.Over, s.UnitsInWindow, amount, MaxScriptCount)
	v.Charged = amount > 0 && (op.addsAmount(l, v.Over) || op == Refund && s.UnitsInWindow > 0)
}

// setWaitsAndRemaining sets the other fields of v, which depend on the state after the hit.
func (s *SlidingSnapshot) setWaitsAndRemaining(v *Outcome, l *Limit, amount uint64) {
	interval := max(l.MinInterval-s.NewestAgeAfter, 0) // the time until the minimum interval is over
	v.ResetAfter = max(l.Period-s.NewestAgeAfter, interval)
	v.setRetryAfter(l, amount, max(s.WaitForAmount, interval))
	v.Remaining = l.remainingAfter(v.After)
	v.setFullUntil(l, s.Now, int64(max(s.WaitForOneUnit, interval)))
}
