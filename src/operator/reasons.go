package operator

import (
	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// OverReasons returns why the limit of c is exceeded: "count" if the amount does not fit, "interval" if the minimum
// interval has not passed. The result is empty if the hit passed, but never nil.
func OverReasons(c *limiter.Charge) []string {
	v := c.Verdict
	fits, interval := v.Before+c.RequestedAmount <= CountedCapacity(c), v.WithinMinInterval
	count := v.Over && (!fits || !interval)
	if !c.HasCounterVerdict() {
		count, interval = v.RetryAfter == algorithm.Never, false
	}
	reasons := []string{}
	if count {
		reasons = append(reasons, "count")
	}
	if interval {
		reasons = append(reasons, "interval")
	}
	return reasons
}
