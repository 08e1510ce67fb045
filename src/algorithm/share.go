package algorithm

import (
	"math/bits"
	"time"
)

// Share returns the part of l that one of n replicas enforces when each counts alone: Max
// and Burst+1 divided by n and rounded up, and MinInterval times n, up to MaxPeriod. With
// Max 10 and 4 replicas each has 3. With n of 0 or 1 it is l.
//
// All shares together let up to n - 1 more pass than l, or 2 x (n - 1) more for a bucket.
// A bucket that would take more than MaxPeriod to fill holds less.
func (l *Limit) Share(n uint64) Limit {
	s := *l
	if n <= 1 {
		return s
	}
	s.Max = ceilDiv(l.Max, n)
	if hi, lo := bits.Mul64(uint64(l.MinInterval), n); hi == 0 && lo < uint64(MaxPeriod) {
		s.MinInterval = time.Duration(lo)
	} else if l.MinInterval > 0 {
		s.MinInterval = MaxPeriod
	}
	if l.Kind == GCRA && l.Max > 0 {
		holds := min(ceilDiv(l.Burst+1, n), uint64(MaxPeriod)/uint64(s.Emission()))
		s.Burst = max(holds, 1) - 1
	}
	return s
}

// ceilDiv returns a / b, rounded up, for b > 1.
func ceilDiv(a, b uint64) uint64 { return a/b + (a%b+b-1)/b }
