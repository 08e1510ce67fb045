package rules

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"ratelimit/src/algorithm"
)

// NewLimit is another limit for a rule.
type NewLimit struct {
	Requests uint64
	Unit     Unit // With UnitUnknown the window of the rule stays.
	// Burst replaces that of a gcra. With nil it stays, or stays as large as Requests allow if the rule has no other.
	Burst *uint64
}

// WithLimit returns a copy of r, which counts as r does, with another limit. An unlimited rule gets a fixed window. The
// error says why r cannot have the limit.
func (r *Rule) WithLimit(n NewLimit) (*Rule, error) {
	changed := *r
	l := &changed.Limit
	if r.Unlimited {
		if n.Unit == UnitUnknown {
			return nil, fmt.Errorf("the rule is unlimited, so the limit needs a unit: write %d/minute", n.Requests)
		}
		changed.Unlimited, changed.UnitMultiplier, l.Kind, l.CountBlocked = false, 1, algorithm.FixedWindow, true
	}
	switch hasUnit := n.Unit != UnitUnknown; {
	case hasUnit && l.Kind == algorithm.Concurrency:
		return nil, fmt.Errorf("%v has no unit: write %d", l.Kind, n.Requests)
	case hasUnit && l.Calendar != nil && n.Unit != r.Unit:
		return nil, fmt.Errorf("it counts in windows of a calendar: write %d, without a unit", n.Requests)
	case hasUnit && l.Calendar == nil:
		changed.Unit, changed.UnitMultiplier, changed.HasPeriod, l.Period = n.Unit, 1, false, n.Unit.Length()
	}
	hadDefaultBurst := r.Limit.Burst == max(r.Limit.Max, 1)-1
	changed.Requests, l.Max, l.Emission = n.Requests, n.Requests, 0
	if l.Kind == algorithm.GCRA && (l.Max == 0 || hadDefaultBurst) {
		l.Burst = max(l.Max, 1) - 1
	}
	return changed.checked(n.Burst)
}

// Times returns a copy of r, which counts as r does, with a limit that is factor times as large, and at least 1. The
// burst grows likewise, unless another one is given. A limit of 0 stays. The error says why r cannot have the limit.
func (r *Rule) Times(factor float64, burst *uint64) (*Rule, error) {
	if r.Unlimited {
		return nil, errors.New("the rule is unlimited: write a limit, such as 1000/minute, or ban")
	}
	changed := *r
	l := &changed.Limit
	product, capacity := l.Max, l.Capacity()
	if l.Max > 0 {
		product, capacity = times(l.Max, factor), times(capacity, factor)
	}
	if product > algorithm.MaxCapacity || capacity > algorithm.MaxCapacity {
		return nil, fmt.Errorf("%d times %v is more than %d", l.Max, factor, uint64(algorithm.MaxCapacity))
	}
	changed.Requests, l.Max = product, product
	if l.Kind == algorithm.GCRA && l.Max > 0 {
		l.Burst = capacity - 1
		if l.Emission > 0 {
			l.Emission = max(1, time.Duration(float64(l.Emission)/factor))
		}
	}
	return changed.checked(burst)
}

// times returns n times factor, rounded down but for the inexactness of factor, and at least 1. It is above MaxCapacity
// if the product is.
func times(n uint64, factor float64) uint64 {
	product := float64(n) * factor
	return uint64(min(max(1, math.Floor(product+max(1e-6, product*0x1p-51))), 2*algorithm.MaxCapacity))
}

// checked sets the burst, unless it is nil, and returns r, a copy with another limit, or an error if the limit is not
// valid.
func (r *Rule) checked(burst *uint64) (*Rule, error) {
	r.LimitsFile = nil
	if burst != nil {
		if r.Limit.Kind != algorithm.GCRA {
			return nil, fmt.Errorf("only %v has a burst, and the rule counts by %v", algorithm.GCRA, r.Limit.Kind)
		}
		r.Limit.Burst = *burst
	}
	if err := r.Limit.Validate(); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "algorithm: "))
	}
	r.ExactUnlessLeasable()
	return r, nil
}
