package rules

import "ratelimit/src/algorithm"

// setQuotaBuckets sets d.HasQuotaBuckets, before the limits of cfg are compiled. All files of a domain must agree.
func (c *Compiler) setQuotaBuckets(d *Domain, cfg *DomainConfig) {
	c.quotaBuckets = cfg.QuotaBuckets != nil && cfg.QuotaBuckets.Value
	if d.pos != cfg.Pos && d.HasQuotaBuckets != c.quotaBuckets {
		c.problems.Add(cfg.Pos, "write quota_buckets: true in all files of the domain, or in none",
			"quota_buckets of domain %s differs from that at %v", Quote(cfg.Domain), d.pos)
	}
	if d.HasQuotaBuckets = c.quotaBuckets; !c.quotaBuckets {
		return
	}
	at := cfg.QuotaBuckets.Pos
	if c.options.Store.CannotChargeAllOrNone {
		c.problems.Add(at, "remove it, or use "+c.options.Store.adviseOtherStores(), "%s cannot divide limits among proxies", c.options.Store.StoreName)
	}
	if cfg.LimitTree != nil {
		c.problems.Add(at, "write the limits as descriptors with `charge: path`", "a tree of limits has no quota buckets")
	}
}

// checkDivisible reports settings of a limit whose units cannot be taken in advance for a proxy.
func (c *Compiler) checkDivisible(l *algorithm.Limit, cfg *RateLimitConfig) {
	switch {
	case l.Kind == algorithm.Concurrency:
		c.problems.Add(cfg.Algorithm.Pos, "put it into a domain without quota_buckets", "concurrency cannot be divided into quotas: proxies do not report when a request ends")
	case l.Hold > 0:
		c.problems.Add(cfg.Hold.Pos, "put it into a domain without quota_buckets", "a limit with holds cannot be divided into quotas: proxies report requests, not holds")
	case l.MinInterval > 0:
		c.problems.Add(cfg.MinInterval.Pos, "put it into a domain without quota_buckets", "min_interval cannot be divided into quotas: each proxy would have to know of the hits of all others")
	}
}
