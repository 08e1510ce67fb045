package compile

import (
	"strings"

	"ratelimit/src/rules"

	"ratelimit/src/algorithm"
)

// setQuotaBuckets sets d.HasQuotaBuckets, before the limits of cfg are compiled. All files of a domain must agree.
func (c *limitCompiler) setQuotaBuckets(d *rules.Domain, cfg *DomainConfig) {
	has := cfg.QuotaBuckets != nil && cfg.QuotaBuckets.Value
	if d.Pos != cfg.Pos && d.HasQuotaBuckets != has {
		c.problems.Add(cfg.Pos, "write quota_buckets: true in all files of the domain, or in none",
			"quota_buckets of domain %s differs from that at %v", rules.Quote(cfg.Domain), d.Pos)
	}
	if d.HasQuotaBuckets = has; !has {
		return
	}
	at := cfg.QuotaBuckets.Pos
	if c.options.Store.CannotChargeAllOrNone {
		c.problems.Add(at, "remove it, or use "+c.options.Store.adviseOtherStores(), "%s cannot divide limits among proxies",
			c.options.Store.StoreName)
	}
	if cfg.LimitTree != nil {
		c.problems.Add(at, "write the limits as descriptors with `charge: path`", "a tree of limits has no quota buckets")
	}
}

// checkDivisible reports settings of a limit whose units cannot be taken in advance for a proxy.
func (c *limitCompiler) checkDivisible(l *algorithm.Limit, cfg *RateLimitConfig) {
	switch {
	case l.Kind == algorithm.Concurrency:
		c.problems.Add(cfg.Algorithm.Pos, "put it into a domain without quota_buckets",
			"concurrency cannot be divided into quotas: proxies do not report when a request ends")
	case l.Hold > 0:
		c.problems.Add(cfg.holdPos(), "put it into a domain without quota_buckets",
			"a limit with holds cannot be divided into quotas: proxies report requests, not holds")
	case l.MinInterval > 0:
		c.problems.Add(cfg.MinInterval.Pos, "put it into a domain without quota_buckets",
			"min_interval cannot be divided into quotas: each proxy would have to know of the hits of all others")
	}
}

// bucketKeys says which entries of a quota bucket can lead to a place in a tree of descriptors. The entries of a bucket
// have different keys, and are sorted by them.
type bucketKeys struct {
	last      string // the smallest key that the last of these entries can have
	isNoneLed bool   // no bucket can get to the place
}

// with returns the bucketKeys of a child at level.
func (k bucketKeys) with(level *rules.Level) bucketKeys {
	key, found := smallestKeyAfter(level, k.last)
	return bucketKeys{key, k.isNoneLed || !found}
}

// smallestKeyAfter returns the smallest key greater than last that an entry can have to match l.
func smallestKeyAfter(l *rules.Level, last string) (key string, found bool) {
	if !l.HasWildcard {
		return l.Key(), l.Key() > last
	}
	// A wildcard matches key_value, so the key ends at some underscore of the text before the wildcard, or goes on after
	// that text.
	start, _, _ := strings.Cut(l.Name(), "*")
	for i := range len(start) {
		if start[i] == '_' && start[:i] > last {
			return start[:i], true
		}
	}
	switch {
	case start > last:
		return start, true
	case strings.HasPrefix(last, start):
		return last + "\x00", true
	}
	return "", false
}

// keyPair has the key of a descriptor and the key of the descriptor above it.
type keyPair struct{ above, key string }

// checkKeyOrder warns of a descriptor with limits that no bucket can get to, once for each pair of keys. p is the path
// above it.
func (c *Compiler) checkKeyOrder(cfg *DescriptorConfig, p, below compilePath) {
	if !below.isNoneLed || p.isNoneLed || len(p.levels) == 0 { // An empty key at the top is an error.
		return
	}
	pair := keyPair{p.levels[len(p.levels)-1].Key(), cfg.Key}
	if c.warnedKeys[pair] {
		return
	}
	c.warnedKeys[pair] = true
	above, key := rules.Quote(pair.above), rules.Quote(pair.key)
	if pair.above == pair.key {
		c.warnings.Add(cfg.Pos, "put the limit one level higher, or into a domain without quota_buckets",
			"no quota bucket can match %s below %s: a bucket has one entry for each key", key, above)
		return
	}
	c.warnings.Add(cfg.Pos, "put "+key+" above "+above+", or the limits into a domain without quota_buckets",
		"no quota bucket can match %s below %s: the entries of a bucket are sorted by key, so %s comes first", key,
		above, key)
}
