package algorithm

import "time"

// MaxLeaseCapacity is the largest Capacity of a limit whose units can be leased.
const MaxLeaseCapacity = 1<<32 - 1

// CanLease reports whether a caller that charges units of l now may admit hits with them later. A lease of a GCRA comes
// out of its burst. Refused hits that count, holds and minimum intervals need each hit at its own time; a fixed window
// merely counts fewer refused hits.
func (l *Limit) CanLease() bool {
	switch {
	case l.Capacity() > MaxLeaseCapacity:
		return false
	case l.Hold > 0 || l.MinInterval > 0 || l.Emission > 0 || l.Max == 0:
		return false
	case l.Kind == FixedWindow:
		return true
	case l.Kind == GCRA:
		return l.Burst > 0 && !l.CountBlocked
	}
	return (l.Kind == FirstHitWindow || l.Kind == SlidingWindowCounter) && !l.CountBlocked
}

// LeaseTerm returns for how long units that were charged with the outcome v may be used: until the end of the window
// that counts them, or of a GCRA a tenth of the period, but at least 100 ms.
func (l *Limit) LeaseTerm(v *Outcome) time.Duration {
	switch l.Kind {
	case SlidingWindowCounter: // The count of the window is 0 a period after its end.
		return max(v.ResetAfter-l.Period, 0)
	case GCRA:
		return min(l.Period, max(l.Period/10, 100*time.Millisecond))
	}
	return v.ResetAfter
}

// RefillsSteadily reports whether units come back all the time, rather than with the end of a window.
func (l *Limit) RefillsSteadily() bool { return l.Kind == GCRA }

// FollowsLocalClock reports whether the windows of l end by the clock of the process that asks, in all stores.
func (l *Limit) FollowsLocalClock() bool { return l.Kind == FixedWindow }

// CountAfter returns what is left of a count when no hit comes for d, within one window.
func (l *Limit) CountAfter(count uint64, d time.Duration) uint64 {
	if l.Kind != GCRA {
		return count
	}
	return count - min(count, uint64(max(d, 0))/uint64(max(l.EmissionInterval(), 1)))
}

// ResetAfterTerm returns Outcome.ResetAfter of a counter with a count, whose LeaseTerm ends in left.
func (l *Limit) ResetAfterTerm(count uint64, left time.Duration) time.Duration {
	switch l.Kind {
	case SlidingWindowCounter:
		return left + l.Period
	case GCRA:
		return time.Duration(l.RefillTime(count))
	}
	return left
}
