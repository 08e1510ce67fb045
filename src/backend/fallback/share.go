package fallback

import (
	"time"

	"ratelimit/src/algorithm"
)

// limitShare returns the part of l that one of n replicas enforces when each counts alone: Max and Burst+1 divided by n and
// rounded up, and MinInterval times n. With Max 10 and 4 replicas it has Max 3. With n of 0 or 1 it is l. A MinInterval above
// algorithm.MaxPeriod, and a Burst that takes longer than that to fill, are lowered to it.
//
// All shares together let up to n - 1 more pass than l, or 2 x (n - 1) more for a GCRA.
func limitShare(l *algorithm.Limit, n uint64) algorithm.Limit {
	s := *l
	if n <= 1 {
		return s
	}
	s.Max = ceilDiv(l.Max, n)
	if uint64(l.MinInterval) > uint64(algorithm.MaxPeriod)/n {
		s.MinInterval = algorithm.MaxPeriod
	} else {
		s.MinInterval *= time.Duration(n)
	}
	if l.Kind == algorithm.GCRA && l.Max > 0 {
		capacity := min(ceilDiv(l.Burst+1, n), uint64(algorithm.MaxPeriod)/uint64(s.EmissionInterval()))
		s.Burst = max(capacity, 1) - 1
	}
	return s
}

// ceilDiv returns a / b, rounded up, for b > 1.
func ceilDiv(a, b uint64) uint64 { return a/b + (a%b+b-1)/b }
