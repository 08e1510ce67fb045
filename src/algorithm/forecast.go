package algorithm

import "time"

// HoldEnd is when an open hold expires, and its units.
type HoldEnd struct {
	In    time.Duration // until it expires
	Units uint64
}

// MaxForecastHolds is how many open holds a Forecast looks at one by one. It takes the others as one hold that expires
// with the newest of them, so its waits may be longer than necessary, by less than Limit.Hold.
const MaxForecastHolds = 32

// Forecast is what becomes of a counter with open holds if no other hit comes: each hold expires, and its units are
// charged or released.
type Forecast struct {
	At        int64         // the hit, in Unix nanoseconds
	Base      State         // after the hit, without its holds; SlidingLog is not used
	OpenUnits uint64        // of all open holds, after the hit
	NewestEnd time.Duration // until the newest open hold expires
	// Ends are the open holds after the hit, the oldest first, or the first MaxForecastHolds of them. They may be missing
	// if there is only one, or if set has them.
	Ends []HoldEnd

	set      *HoldSet      // the holds of a HeldState. It is nil if Ends has them.
	position uint32        // of the next hold in set.
	setAhead int64         // the time of set less At.
	seen     int           // how many holds next has returned.
	leftOpen uint64        // the units of the holds that next has not returned.
	elapsed  time.Duration // when the hold expires that next has returned last.
}

// SetWaits corrects the waits of v, the outcome of a hit of amount, which HeldOutcome returned. base looks at the state
// after the hit. At least one hold is open.
func (f *Forecast) SetWaits(v *Outcome, l *Limit, amount uint64, base func(op Op, amount uint64) Outcome) {
	f.leftOpen = f.OpenUnits
	switch {
	case v.Over && v.RetryAfter == Never:
	case v.Over && l.ReleasesExpired():
		v.RetryAfter = f.waitForReleases(l, amount, base)
	case v.Over && (l.Kind == SlidingWindowCounter || f.losesDebt(l)):
		v.RetryAfter = f.waitForDecay(l, amount)
	case v.Over:
		v.RetryAfter = f.waitForCharges(l, amount, base)
	}
	if v.Over && v.RetryAfter == 0 { // There are too many open holds.
		e, _ := f.next(l)
		f.charge(l, e)
		v.RetryAfter = f.elapsed
	}
	if l.ReleasesExpired() {
		v.ResetAfter = max(v.ResetAfter, f.NewestEnd)
	} else {
		v.ResetAfter = f.resetAfterCharges(l, v.ResetAfter)
	}
}

// next returns the next hold to expire.
func (f *Forecast) next(l *Limit) (e HoldEnd, ok bool) {
	switch {
	case f.leftOpen == 0:
		return e, false
	case f.seen >= MaxForecastHolds:
	case f.set != nil:
		e, ok = f.nextOfSet(l)
	case f.seen < len(f.Ends):
		e, ok = f.Ends[f.seen], true
	}
	if !ok {
		e = HoldEnd{In: f.NewestEnd, Units: f.leftOpen}
	}
	f.seen++
	f.leftOpen -= min(e.Units, f.leftOpen)
	f.elapsed = max(e.In, 0)
	return e, true
}

// nextOfSet returns the next hold of f.set.
func (f *Forecast) nextOfSet(l *Limit) (e HoldEnd, ok bool) {
	r := &f.set.opened
	for ; f.position != r.end; f.position++ {
		if row := &f.set.block[r.rowIndex(f.position)]; row[rowUnits] != gapUnits {
			f.position++
			return HoldEnd{In: time.Duration(int64(row[rowTime])-f.setAhead-f.At) + l.Hold, Units: row[rowUnits]}, true
		}
	}
	return e, false
}

// fits reports whether amount fits beside the holds that are still open, if the counter is empty otherwise.
func (f *Forecast) fits(l *Limit, amount uint64) bool { return amount+f.leftOpen <= l.Capacity() }

// waitForReleases returns the time until amount passes if holds are released when they expire.
func (f *Forecast) waitForReleases(l *Limit, amount uint64, base func(op Op, amount uint64) Outcome) time.Duration {
	shortest := Never
	for {
		if f.fits(l, amount) {
			shortest = min(shortest, max(f.elapsed, base(Look, amount+f.leftOpen).RetryAfter))
		}
		if _, ok := f.next(l); !ok || f.elapsed >= shortest {
			return shortest
		}
	}
}

// losesDebt reports whether a GCRA may forget debt when a hold is charged, since settlements exceeded their
// reservations.
func (f *Forecast) losesDebt(l *Limit) bool {
	return l.Kind == GCRA && max(f.Base.GCRA.TAT-f.At, 0) > l.BurstTolerance()-l.RefillTime(f.OpenUnits)
}

// waitForDecay is waitForCharges for counters of which holds that expire later change the wait: what a
// SlidingWindowCounter charges later also shrinks meanwhile.
func (f *Forecast) waitForDecay(l *Limit, amount uint64) time.Duration {
	for {
		start := f.elapsed
		wait := f.Base.Take(l, f.At+int64(start), Look, amount+f.leftOpen).RetryAfter
		e, ok := f.next(l)
		if ok {
			f.charge(l, e)
		}
		if !ok || wait <= f.elapsed-start {
			return start + wait
		}
	}
}

// waitForCharges returns the time until amount passes if holds are charged when they expire. Charging does not change
// the sum of what is charged and open. So amount passes once enough holds have expired for it to fit, and enough of
// what was charged until then counts no more.
func (f *Forecast) waitForCharges(l *Limit, amount uint64, base func(op Op, amount uint64) Outcome) time.Duration {
	if f.fits(l, amount) {
		return base(Look, amount+f.leftOpen).RetryAfter
	}
	for !f.fits(l, amount) {
		e, _ := f.next(l)
		f.charge(l, e)
	}
	then := f.At + int64(f.elapsed)
	switch l.Kind {
	case FixedWindow:
		_, end := l.WindowBounds(then)
		return time.Duration(end - f.At)
	case SlidingWindow:
		return f.elapsed + l.Period
	case GCRA:
		return max(f.elapsed, time.Duration(f.Base.GCRA.TAT-f.At+l.RefillTime(amount+f.leftOpen)-l.BurstTolerance()))
	}
	return f.elapsed + f.Base.Take(l, then, Look, amount+f.leftOpen).RetryAfter
}

// charge charges an expired hold. Other kinds need no state.
func (f *Forecast) charge(l *Limit, e HoldEnd) {
	then := f.At + int64(f.elapsed)
	switch l.Kind {
	case GCRA:
		tat := &f.Base.GCRA.TAT
		*tat = min(max(*tat, then)+l.RefillTime(e.Units), then+l.BurstTolerance())
	case FirstHitWindow, SlidingWindowCounter:
		f.Base.Take(l, then, Force, e.Units)
	}
}

// resetAfterCharges returns the time until the counter is empty if holds are charged when they expire. reset is that
// time without them.
func (f *Forecast) resetAfterCharges(l *Limit, reset time.Duration) time.Duration {
	then := f.At + int64(f.NewestEnd)
	switch l.Kind {
	case FixedWindow:
		_, end := l.WindowBounds(then)
		return time.Duration(end - f.At)
	case SlidingWindow:
		return max(reset, f.NewestEnd+l.Period)
	case SlidingWindowCounter:
		_, end := WindowBounds(then, l.Period)
		return time.Duration(end-f.At) + l.Period
	case GCRA:
		// The bucket is not full before, so all open holds add to its debt.
		if tat := f.Base.GCRA.TAT; tat >= then && !f.losesDebt(l) {
			return time.Duration(tat + l.RefillTime(f.leftOpen) - f.At)
		}
	case FirstHitWindow:
		if end := f.Base.FirstHit.WindowEnd; end > then { // All open holds are charged in this window.
			return time.Duration(end - f.At)
		}
	}
	for {
		e, ok := f.next(l)
		switch {
		case ok:
		case l.Kind == GCRA:
			return time.Duration(f.Base.GCRA.TAT - f.At)
		default:
			return f.elapsed + f.Base.Take(l, f.At+int64(f.elapsed), Look, 0).ResetAfter
		}
		f.charge(l, e)
	}
}
