package metrics

import (
	"regexp"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// ruleCounters are the counters of one rule.
type ruleCounters struct {
	total, within, near, over, overCached, shadow *Counter
}

const rulePrefix = "ratelimit.service.rate_limit."

func (r *Registry) ruleCounters(prefix string) *ruleCounters {
	return &ruleCounters{
		total:      r.Counter(prefix + "total_hits"),
		within:     r.Counter(prefix + "within_limit"),
		near:       r.Counter(prefix + "near_limit"),
		over:       r.Counter(prefix + "over_limit"),
		overCached: r.Counter(prefix + "over_limit_with_local_cache"),
		shadow:     r.Counter(prefix + "shadow_mode"),
	}
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// sanitize makes a rule's key fit for statsd: `:` and `|` would end a name
// there, and the dots of an address look like levels.
func sanitize(key string) string {
	key = strings.NewReplacer(":", "_", "|", "_").Replace(key)
	return ipv4.ReplaceAllStringFunc(key, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// Use makes the counters of set's rules ready. Rules that a set before had
// under the same key go on counting where they were; counters of rules that
// are gone stay, as counters must not fall.
func (r *Registry) Use(set *rules.Set) {
	list := set.Rules()
	table := &ruleTable{set: set, counters: make([]*ruleCounters, len(list))}
	for i, rule := range list {
		if !rule.Unlimited { // upstream counts nothing for these
			table.counters[i] = r.ruleCounters(rulePrefix + sanitize(rule.Key) + ".")
		}
	}
	r.rules.Store(table)
}

// Record counts one decision; see limiter.Recorder.
func (r *Registry) Record(_ *limiter.Request, a *limiter.Answer) {
	if a.UnknownDomain {
		r.unknownDomain.Add(uint64(len(a.Statuses)))
		return
	}
	if a.Shadowed {
		r.globalShadow.Add(1)
	}
	failed := false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		if !st.Limited {
			continue
		}
		c := r.countersOf(a, st)
		failed = failed || st.Verdict.Err != nil
		if st.Op != algorithm.Refund { // a refund is no hit
			c.total.Add(st.Amount)
			if st.Verdict.Err == nil {
				r.account(c, st)
			}
		}
	}
	if failed {
		r.storeErrors.Add(1)
	}
}

// countersOf finds the counters that st goes to.
func (r *Registry) countersOf(a *limiter.Answer, st *limiter.Status) *ruleCounters {
	if st.Rule == nil {
		return r.requestLimit
	}
	if t := r.rules.Load(); t != nil && t.set == a.Set {
		return t.counters[st.Rule.Index]
	}
	// A request that began before the set was swapped: found by name.
	return r.ruleCounters(rulePrefix + sanitize(st.Rule.Key) + ".")
}

// account splits the hits of one verdict into within, near and over as
// envoyproxy/ratelimit does. With a limit of 10 and near from 8 on: 7 -> 9 is
// 2 within, 1 of them near; 8 -> 12 is 2 over and 2 near, and nothing within.
func (r *Registry) account(c *ruleCounters, st *limiter.Status) {
	v := &st.Verdict
	limit := uint64(st.Limit.Requests)
	near := min(uint64(max(0, float32(limit)*r.nearRatio)), limit)
	before, after := v.Before, v.Before+st.Amount
	shadow := st.Rule != nil && st.Rule.Shadow
	over := uint64(0)
	switch {
	case v.Cached:
		over = st.Amount
		c.overCached.Add(over)
	case v.Over && before >= limit:
		over = st.Amount
	case v.Over:
		over = after - limit
		c.near.Add(limit - max(near, before))
	default:
		c.within.Add(st.Amount)
		if after > near {
			c.near.Add(after - max(near, before))
		}
	}
	c.over.Add(over)
	if shadow {
		c.shadow.Add(over)
	}
}
