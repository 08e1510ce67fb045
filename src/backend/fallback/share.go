package fallback

import (
	"time"

	"ratelimit/src/algorithm"
)

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
