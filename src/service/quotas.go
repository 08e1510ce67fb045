package service

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/frontend/admin"
	"ratelimit/src/frontend/rlqs"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/subjects"
	"ratelimit/src/operator/throttle"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
)

// buildQuotas makes the service that divides limits among proxies.
func (s *Service) buildQuotas() *rlqs.Service {
	abandonAfter := s.Settings.QuotaAbandonAfter
	if abandonAfter == 0 {
		abandonAfter = math.MaxInt64
	}
	divider := quota.New(quota.Config{
		Find:         s.limiter.FindQuota,
		Rules:        s.limiter.Rules,
		Backend:      s.store.Backend,
		AbandonAfter: abandonAfter,
		MaxBuckets:   s.Settings.QuotaMaxBuckets,
		// Replicas tell each other through the store what their proxies want.
		StoreIsShared: len(s.store.pools) > 0,
		OnUsage: func(u quota.Usage) {
			s.counters.RecordQuota(&u.Target, u.Domain, u.Allowed, u.Denied)
			if s.operator != nil {
				s.operator.recordUsage(&u)
			}
		},
	})
	s.divider = divider
	s.runners = append(s.runners, divider.Run)
	s.counters.ShowFigures("quota", "", divider.Stats())
	refused, refusedStreams := throttle.New(1, logInterval), throttle.New(1, time.Minute)
	return rlqs.New(rlqs.Config{
		Divider: divider,
		Rules:   s.limiter.Rules,
		OnRefusedBucket: func(domain string, err error) {
			if skipped, ok := refused.Pass(time.Now()); ok {
				s.log.Warnf("%d quota buckets got no assignment since this was last said; the last one is of domain %q: %v (QUOTA_MAX_BUCKETS)",
					skipped+1, domain, err)
			}
		},
		OnRefusedStream: func(reason string) {
			if skipped, ok := refusedStreams.Pass(time.Now()); ok {
				s.log.Warnf("%d quota streams were refused since this was last said; the last one: %s. "+
					"Write `quota_buckets: true` into the rules of the domain that the proxy's rate_limit_quota filter names", skipped+1, reason)
			}
		},
	})
}

// usageCharge is what the subjects need of a report.
type usageCharge struct {
	answer limiter.Answer
	charge limiter.Charge
}

var usageCharges = sync.Pool{New: func() any { return new(usageCharge) }}

// recordUsage shows what a proxy decided by a quota among subjects and denials, as if this service had decided it.
func (o *operator) recordUsage(u *quota.Usage) {
	if o.subjects != nil && len(u.Target.Hits) > 0 {
		c := usageCharges.Get().(*usageCharge)
		c.answer.RuleSet, c.answer.Domain = u.Target.RuleSet, u.Target.RuleSet.Domain(u.Domain)
		for i := range u.Target.Hits {
			c.charge.Rule, c.charge.CounterKey = u.Target.Rules[i], u.Target.Hits[i].Key
			o.subjects.Add(subjects.Hits, &c.answer, &c.charge, u.Allowed+u.Denied, u.Entries)
			if u.Denied > 0 && !u.Target.Hits[i].NoVeto {
				o.subjects.Add(subjects.DeniedHits, &c.answer, &c.charge, u.Denied, u.Entries)
			}
		}
		*c = usageCharge{}
		usageCharges.Put(c)
	}
	if o.sampler != nil && u.Denied > 0 {
		now := time.Now()
		o.sampler.AddMany(now, u.Denied, func() denials.Denial {
			d := denials.Denial{Protocol: limiter.ProtocolRLQS, Domain: callertext.Name(string(u.Domain)), Descriptor: callertext.Descriptor(u.Entries)}
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

// Quotas implements admin.Figures.
func (o *operator) Quotas(q admin.QuotaQuery) (v admin.Quotas) {
	d := o.service.divider
	if d == nil {
		return v
	}
	now := quota.Now()
	v.Total = quotaTotals(d.Stats())
	var list []quota.BucketState
	if q.Bucket == nil {
		list, v.MatchingBuckets = d.Snapshot(q.Domain, q.Buckets, q.Proxies, now)
	} else if b, found := d.BucketNamed([]byte(q.Domain), bucketEntries(q.Bucket), q.Proxies, now); found {
		list, v.MatchingBuckets = []quota.BucketState{b}, 1
	}
	for i := range list {
		v.Buckets = append(v.Buckets, quotaBucket(&list[i]))
	}
	return v
}

func quotaTotals(stats *quota.Stats) admin.QuotaTotals {
	totals := stats.Totals()
	return admin.QuotaTotals{
		Proxies: stats.Proxies.Load(), Buckets: stats.Buckets.Load(), DemandPerSecond: totals.DemandPerSecond, Units: totals.Units,
		LeftUnits: totals.LeftUnits, ShortBuckets: totals.ShortBuckets, Unfairness: totals.Unfairness,
	}
}

// bucketEntries returns the entries of a bucket that are written key=value, sorted by key.
func bucketEntries(pairs []string) []rules.Entry {
	entries := make([]rules.Entry, len(pairs))
	for i, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		entries[i] = rules.Entry{Key: []byte(key), Value: []byte(value)}
	}
	quota.SortEntries(entries)
	return entries
}

var quotaActions = map[quota.Action]string{quota.AssignUnits: admin.QuotaUnits, quota.AllowAll: admin.QuotaAllowAll, quota.DenyAll: admin.QuotaDenyAll}

func quotaBucket(b *quota.BucketState) admin.QuotaBucket {
	v := admin.QuotaBucket{
		Domain: b.Domain, Bucket: callertext.Descriptor(b.Entries), Action: quotaActions[b.Action], DemandPerSecond: b.DemandPerSecond, Units: b.Units,
		ShortSeconds: b.ShortFor.Seconds(), Unfairness: b.Unfairness, LeftUnits: b.LeftUnits, LeftSeconds: b.LeftFor.Seconds(),
		ProxyCount: b.ProxyCount, OtherProxyCount: b.OtherProxyCount,
	}
	if b.Rule != nil {
		v.Rule = b.Rule.FullName
	}
	for _, r := range b.Limits {
		v.Limits = append(v.Limits, r.LimitText())
	}
	for i := range b.Proxies {
		p := &b.Proxies[i]
		action := ""
		if p.HasAssignment {
			action = quotaActions[p.Action]
		}
		v.Proxies = append(v.Proxies, admin.QuotaProxy{
			Peer: p.Peer, DemandPerSecond: p.DemandPerSecond, AskedPerSecond: p.AskedPerSecond, AdmittedPerSecond: p.AdmittedPerSecond,
			Short: p.IsShort, Silent: p.IsSilent, Action: action, Units: p.Units, InUse: p.InUse,
			AssignedSeconds: p.AssignedFor.Seconds(), ExpiresInSeconds: p.ExpiresIn.Seconds(), ReportedSeconds: p.ReportedFor.Seconds(),
		})
	}
	return v
}
