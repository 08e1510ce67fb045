package compile

import (
	"cmp"
	"math"

	"ratelimit/src/backend"
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// setCounting sets r.Counting and r.OnContention of a limit of d. r.Limit is set, unless the limit has a problem. A
// default of leased leaves the limits exact that cannot be leased; written for such a limit, it is a problem.
func (c *limitCompiler) setCounting(r *rules.Rule, cfg *RateLimitConfig, d *rules.Domain) {
	counting := parseWord(&c.report, d.Counting, cfg.Counting, &backend.Countings)
	onContention := parseWord(&c.report, d.OnContention, cfg.OnContention, &backend.Contentions)
	if counting == backend.Exact || r.Limit.Period == 0 {
		return
	}
	l := r.Limit
	if isOfFile(r) { // The file has the number and the burst, see setCountingOfCopy.
		l.Max, l.Burst = math.MaxUint32, math.MaxUint32-1
	}
	why, fix := rules.WhyNotLeased(&l)
	useless := rules.WhyLeaseIsUseless(&l)
	switch at := cfg.Counting; {
	case at != nil && why != "":
		c.problems.Add(at.Pos, fix, "counting: leased is not possible: %s", why)
	case at == nil && cmp.Or(why, useless) != "":
		r.WhyExact = cmp.Or(why, useless)
		if v := cfg.OnContention; v != nil {
			c.warnings.Add(v.Pos, "remove it", "on_contention has no effect, because the limit is not leased: %s", r.WhyExact)
		}
	default:
		if useless != "" {
			c.warnings.Add(at.Pos, "remove it", "counting: leased has no effect: %s", useless)
		}
		r.Counting, r.OnContention = counting, onContention
	}
}

// setCountingOfPeers makes limits exact whose counters another program has, too: it does not know of leases. list has
// the rules of l as written.
func (c *report) setCountingOfPeers(l *match.List, list []RuleConfig) {
	const why = "another program counts in the same counter, and knows no leases"
	for i := range list {
		if l.Rules[i].Match == nil {
			continue
		}
		for j, r := range l.Rules[i].Match.Limits {
			if r.PeerKey == nil || r.Counting == backend.Exact {
				continue
			}
			r.Counting, r.OnContention, r.WhyExact = backend.Exact, backend.Wait, why
			if v := list[i].limit(j).Counting; v != nil {
				c.problems.Add(v.Pos, "remove it, or set DIVVY_KEYS=own", "counting: leased is not possible: %s", why)
			}
		}
	}
}

// isOfFile reports whether r is the limit of a descriptor with limits_from.
func isOfFile(r *rules.Rule) bool {
	return len(r.Path) > 0 && r.Path[len(r.Path)-1].Kind == rules.LevelLimitsFrom
}
