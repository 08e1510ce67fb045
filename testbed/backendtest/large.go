package backendtest

import (
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// largeMax is the smallest Max of a limit that tests charge large amounts to.
const largeMax = 1 << 32

// largeLimits returns limits up to the largest one of a rule. Those of one kind and period share counters.
func (suite *Suite) largeLimits() (limits []*algorithm.Limit) {
	const year = 365 * 24 * time.Hour
	for _, kind := range suite.Kinds {
		for _, period := range []time.Duration{time.Minute, time.Hour, year} {
			for _, most := range []uint64{largeMax, 1e11, algorithm.MaxCapacity} {
				limits = append(limits, countingBlocked(kind, most, period), ignoringBlocked(kind, most, period))
			}
		}
	}
	return slices.DeleteFunc(limits, func(l *algorithm.Limit) bool {
		if l.Kind == algorithm.GCRA {
			l.Burst = l.Max - 1
		}
		return !suite.supports(l) || l.Validate() != nil
	})
}

// testLarge sends random batches to the store and to the referee, with limits and amounts above 2^32.
func (suite *Suite) testLarge(t *testing.T, open func(*testing.T) backend.Backend) {
	limits := suite.largeLimits()
	suite.perKind(t, func(t *testing.T, kind algorithm.Kind) {
		own := slices.DeleteFunc(slices.Clone(limits), func(l *algorithm.Limit) bool { return l.Kind != kind })
		if len(own) > 0 { // A sliding window has no such limit.
			suite.testRandomly(t, open(t), own)
		}
	})
	suite.testRandomly(t, open(t), limits)
}

// amount returns a random amount: up to 4 units, or of a large limit 1 to 10^9, a part of it, or more than it.
func (p *randomTest) amount(l *algorithm.Limit) uint64 {
	small := uint64(p.rnd.IntN(5))
	if l.Max < largeMax {
		return small
	}
	switch p.rnd.IntN(4) {
	case 0:
		return small
	case 1:
		return 1 + p.rnd.Uint64N(1e9)
	}
	return min(l.Max/4*small+p.rnd.Uint64N(3), algorithm.MaxAmount)
}
