package algorithm

import (
	"math/bits"
	"time"
)

// Share is the part of l that one of n replicas enforces which count apart: an
// n-th of Max and of what a bucket holds, both rounded up, and n times the minimum
// interval, up to MaxPeriod. Together they let pass up to n - 1 more than l, or for a
// bucket in any stretch up to 2 x (n - 1) more: with a Max of 10 and 4 replicas
// each has 3. 0 and 1 are l itself.
//
// A bucket that would then take more than MaxPeriod to fill holds less.
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

// ceilDiv is a / b, rounded up.
func ceilDiv(a, b uint64) uint64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
