package service

import (
	"math"
	"time"

	"ratelimit/src/frontend/rlqs"
	"ratelimit/src/quota"
)

// buildQuotas makes the service that divides limits among proxies.
func (s *Service) buildQuotas() *rlqs.Service {
	abandonAfter := s.Settings.QuotaAbandonAfter
	if abandonAfter == 0 {
		abandonAfter = math.MaxInt64
	}
	divider := quota.New(quota.Config{
		Limiter:      s.limiter.Limiter,
		Backend:      s.store.Backend,
		AbandonAfter: abandonAfter,
		MaxBuckets:   s.Settings.QuotaMaxBuckets,
		// Replicas tell each other through the store what their proxies want.
		StoreIsShared: s.store.IsShared(),
		OnUsage: func(u quota.Usage) {
			s.counters.RecordQuota(u.Target.RuleSet, u.Domain, u.Target.CountedRules(), u.Allowed, u.Denied)
			s.observers.RecordUsage(&u)
		},
	})
	s.divider = divider
	s.run(divider.Run)
	s.counters.ShowFigures("quota", "", divider.Stats())
	warnBucket := s.warnSometimes(logInterval, "quota bucket", "%s got no assignment since this was last said; the last one "+
		"is of domain %q: %v (QUOTA_MAX_BUCKETS)")
	warnStream := s.warnSometimes(time.Minute, "quota stream",
		"%s refused since this was last said; the last one: %s")
	return rlqs.New(rlqs.Config{
		Divider:         divider,
		Rules:           s.limiter.Rules,
		MaxReportBytes:  s.Settings.QuotaMaxReportBytes,
		OnRefusedBucket: func(domain string, err error) { warnBucket(domain, err) },
		OnRefusedStream: func(reason string) { warnStream(reason) },
	})
}
