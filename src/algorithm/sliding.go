package algorithm

import "time"

// TakeSliding applies op to g, which it changes only if something is charged.
//
// With Max 2 in 10 s, hits at 0 s and 1 s pass. A hit at 2 s is over and must wait 8 s, or 9 s
// with CountBlocked. So with CountBlocked a caller that retries faster than the limit, or than
// MinInterval, stays refused. For MinInterval a hit of several units is one hit.
//
// If at is before the newest hit, the clock was set back, and the newest hit is now. The log
// keeps the newest Max+1 units, which decide all charges. Older units are neither in the next
// Before nor can they be refunded.
//
// Source: ClassDojo's rolling-rate-limiter, README.
func TakeSliding(l *Limit, g *Log, at int64, op Op, amount uint64) (v Outcome) {
	d := g.Draft()
	d.Apply(&v, l, at, op, amount)
	if v.Charged {
		g.commit(&d)
	}
	return v
}

// Apply is TakeSliding on a draft, with one at for all calls. It sets *v, which must be zero.
func (d *Draft) Apply(v *Outcome, l *Limit, at int64, op Op, amount uint64) {
	now := at
	if n := d.size(); n > 0 {
		now = max(at, d.mark(n-1).at)
	}
	first := d.firstAfter(now - int64(l.Period))
	s := SlidingState{Now: now, Used: d.total() - d.before(first), Newest: d.age(now)}
	s.decide(v, l, op, amount)
	if v.Charged {
		if op == Refund {
			d.remove(v.Before - v.After)
		} else {
			d.add(now, amount)
			if l.MinInterval > l.Period {
				first = d.firstAfter(now - int64(l.MinInterval))
			}
			d.trim(first, l.Max)
		}
		first = d.firstAfter(now - int64(l.Period))
	}
	s.NewestAfter = d.age(now)
	s.Wait = d.wait(l, first, now, amount)
	s.WaitForOne = s.Wait
	if amount != 1 {
		s.WaitForOne = d.wait(l, first, now, 1)
	}
	s.complete(v, l, amount)
}

// wait returns the time until enough marks have left the window for amount to pass; 0 if it
// passes now or never. first is the index of the first mark in the window.
func (d *Draft) wait(l *Limit, first int, now int64, amount uint64) time.Duration {
	if amount > l.Max || d.total()-d.before(first) <= l.Max-amount {
		return 0
	}
	return time.Duration(d.mark(d.firstFollowedBy(first, l.Max-amount)).at + int64(l.Period) - now)
}

// SlidingState is all that the outcome of a hit on a sliding window depends on. A store
// that keeps the hits elsewhere fills it in.
type SlidingState struct {
	Now  int64  // the clock, or the newest hit if that is later
	Used uint64 // units in the window before this hit
	// Newest and NewestAfter are the age of the newest hit before and after this hit is
	// recorded; negative: there is none.
	Newest, NewestAfter time.Duration
	// Wait is the time, after this hit, until enough hits have left the window for the
	// amount to pass, and WaitForOne for one unit; 0: it passes now or never.
	Wait, WaitForOne time.Duration
}

// Outcome returns the outcome of op on s, as TakeSliding does.
func (s *SlidingState) Outcome(l *Limit, op Op, amount uint64) (v Outcome) {
	s.decide(&v, l, op, amount)
	s.complete(&v, l, amount)
	return v
}

// decide sets Before, After, Over, Interval and Charged.
func (s *SlidingState) decide(v *Outcome, l *Limit, op Op, amount uint64) {
	v.Before = s.Used
	v.Interval = op.Asks() && s.Newest >= 0 && s.Newest < l.MinInterval
	v.Over = v.Interval || op.Asks() && s.Used+amount > l.Max
	v.After = op.apply(l, v.Over, s.Used, amount, MaxScriptCount)
	v.Charged = amount > 0 && (op.adds(l, v.Over) || op == Refund && s.Used > 0)
}

// complete sets the other fields of v, which depend on the state after the hit.
func (s *SlidingState) complete(v *Outcome, l *Limit, amount uint64) {
	interval := time.Duration(0) // until the minimum interval is over
	if s.NewestAfter >= 0 {
		v.ResetAfter = max(l.Period, l.MinInterval, s.NewestAfter) - s.NewestAfter
		interval = max(l.MinInterval, s.NewestAfter) - s.NewestAfter
	}
	v.setRetry(l, amount, max(s.Wait, interval))
	v.Remaining = l.remaining(v.After)
	full := max(s.WaitForOne, interval)
	switch {
	case l.CountBlocked: // each refusal changes the next outcome
	case l.Max == 0:
		v.FullUntil = endOfTime
	case full > 0:
		v.FullUntil = time.Unix(0, s.Now+int64(full))
	}
}
