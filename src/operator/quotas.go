package operator

import (
	"fmt"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/output"
	"ratelimit/src/operator/subjects"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
)

// QuotaQuery asks for quota buckets.
type QuotaQuery struct {
	Domain  string        // empty for all domains.
	Bucket  []rules.Entry // the entries of one bucket, in any order; empty for all.
	Buckets int           // how many buckets are returned at most, and Proxies how many proxies of each.
	Proxies int
}

// Quotas are the quotas that this replica divides among proxies.
type Quotas struct {
	Total   quota.Totals        `json:"total"`
	Buckets []quota.BucketState `json:"buckets"` // those with most demand first.
	// MatchingBuckets is how many buckets the query finds. Buckets has some of them.
	MatchingBuckets int `json:"matching_buckets"`
}

type (
	// QuotaTotals are figures of all quotas of a replica.
	QuotaTotals = quota.Totals
	// QuotaBucket is what a replica divides among proxies.
	QuotaBucket = quota.BucketState
	// QuotaProxy is what a proxy has of a bucket.
	QuotaProxy = quota.ProxyState
)

// QuotaTotalsText returns figures for people: "3 proxies, 2 buckets, 1 of them short, 321 units a second asked for, 110
// assigned".
func QuotaTotalsText(t *quota.Totals) string {
	text := fmt.Sprintf("%d proxies, %s", t.Proxies, output.Plural(t.Buckets, "bucket"))
	if t.Proxies == 1 {
		text = "1 proxy, " + output.Plural(t.Buckets, "bucket")
	}
	if t.ShortBuckets > 0 {
		text += fmt.Sprintf(", %d of them short", t.ShortBuckets)
	}
	text += fmt.Sprintf(", %.0f units a second asked for, %d assigned", t.DemandPerSecond, t.Units)
	if t.LeftUnits > 0 {
		text += fmt.Sprintf(", %d left by proxies that are gone", t.LeftUnits)
	}
	return text
}

// RecordUsage shows what a proxy decided by a quota among subjects and denials, as if this service had decided it.
func (o *Observer) RecordUsage(u *quota.Usage) {
	if o.subjects != nil && len(u.Target.Hits) > 0 {
		answer := limiter.Answer{RuleSet: u.Target.RuleSet, Domain: u.Target.RuleSet.Domain(u.Domain)}
		for i := range u.Target.Hits {
			charge := limiter.Charge{Rule: u.Target.Rules[i], CounterKey: u.Target.Hits[i].Key}
			o.subjects.Add(subjects.Hits, &answer, &charge, u.Allowed+u.Denied, u.Entries)
			if u.Denied > 0 && !u.Target.Hits[i].NoVeto {
				o.subjects.Add(subjects.DeniedHits, &answer, &charge, u.Denied, u.Entries)
			}
		}
	}
	if o.sampler != nil && u.Denied > 0 {
		now := time.Now()
		o.sampler.AddMany(now, u.Denied, func() denials.Denial {
			d := denials.Denial{
				Protocol: "rlqs", Domain: callertext.Name(string(u.Domain)),
				Descriptor: callertext.Descriptor(u.Entries),
			}
			if i := slices.IndexFunc(u.Target.Hits, func(h backend.Hit) bool { return !h.NoVeto }); i >= 0 {
				h := &u.Target.Hits[i]
				d.Rule, d.Counter = callertext.Name(u.Target.Rules[i].FullName), callertext.CounterKey(h.Key)
				if h.Limit.Kind == algorithm.FixedWindow { // Other limits give units at any time.
					_, end := h.Limit.WindowBounds(now.UnixNano())
					d.RetryAfter = time.Duration(end - now.UnixNano())
				}
			}
			return d
		})
	}
}

// QuotasOf returns the quota buckets of d that q asks for, those with most demand first, and the totals of all.
func QuotasOf(d *quota.Divider, q QuotaQuery) (v Quotas) {
	now := quota.Now()
	v.Total = d.Stats().Totals()
	if q.Bucket == nil {
		v.Buckets, v.MatchingBuckets = d.Snapshot(q.Domain, q.Buckets, q.Proxies, now)
		return v
	}
	quota.SortEntries(q.Bucket)
	if b, found := d.BucketNamed([]byte(q.Domain), q.Bucket, q.Proxies, now); found {
		v.Buckets, v.MatchingBuckets = []quota.BucketState{b}, 1
	}
	return v
}
