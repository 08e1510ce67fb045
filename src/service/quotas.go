package service

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/frontend/rlqs"
	"ratelimit/src/metrics/callertext"
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
	})
	s.divider = divider
	s.runners = append(s.runners, divider.Run)
	s.counters.ShowFigures("quota", "", divider.Stats())
	refused := new(logThrottle)
	return rlqs.New(rlqs.Config{
		Divider: divider,
		Rules:   s.limiter.Rules,
		OnRefusedBucket: func(domain string, err error) {
			if n := refused.addEvent(time.Now()); n > 0 {
				s.log.Warnf("%d quota buckets got no assignment since this was last said; the last one is of domain %q: %v (QUOTA_MAX_BUCKETS)", n, domain, err)
			}
		},
	})
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
	slices.SortStableFunc(entries, func(a, b rules.Entry) int { return bytes.Compare(a.Key, b.Key) })
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
