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
		Find:         s.limiter.FindQuota,
		Rules:        s.limiter.Rules,
		Backend:      s.store.Backend,
		AbandonAfter: abandonAfter,
		MaxBuckets:   s.Settings.QuotaMaxBuckets,
		// Replicas tell each other through the store what their proxies want.
		StoreIsShared: len(s.store.pools) > 0,
	})
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
