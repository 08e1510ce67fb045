package admin

import (
	"context"
	"fmt"
	"slices"

	"ratelimit/src/operator"
	"ratelimit/src/operator/callertext"
)

// Bounds on an answer of /api/quotas and on the quotas of an update.
const (
	defaultBuckets      = 20
	defaultProxies      = 10
	maxProxiesListed    = 10_000 // bounds the proxies of all buckets together.
	updateBuckets       = 20
	updateBucketProxies = 10
)

func (a figuresAPI) quotas(_ context.Context, p *parameters) any {
	q := operator.QuotaQuery{
		Domain: p.text("domain"), Buckets: p.limit(defaultBuckets),
		Proxies: p.number("proxies", defaultProxies, 0, operator.MaxListed),
	}
	if text := p.text("bucket"); text != "" {
		entries, err := callertext.ParseDescriptor(text)
		if err != nil {
			p.fail("bucket=%w", err)
		}
		q.Buckets, q.Bucket = 1, entries
	}
	switch {
	case q.Bucket != nil && q.Domain == "":
		p.fail("bucket %q without its domain: add domain=", p.text("bucket"))
	case q.Buckets*q.Proxies > maxProxiesListed:
		p.fail("limit=%d and proxies=%d are together too much: their product is at most %d", q.Buckets, q.Proxies,
			maxProxiesListed)
	}
	if p.err != nil {
		return nil
	}
	quotas := a.quotasOf(q)
	if q.Bucket != nil && len(quotas.Buckets) == 0 {
		p.notFound = fmt.Sprintf("no proxy of this replica has the bucket %q of domain %q", p.text("bucket"), q.Domain)
	}
	return quotas
}

func (a figuresAPI) quotasOf(q operator.QuotaQuery) operator.Quotas {
	return withLists(a.figures.Quotas(q))
}

// withLists returns quotas with lists that are never null in JSON.
func withLists(quotas operator.Quotas) operator.Quotas {
	quotas.Buckets = listOf(slices.Clone(quotas.Buckets))
	for i := range quotas.Buckets {
		b := &quotas.Buckets[i]
		b.Limits, b.Proxies = listOf(b.Limits), listOf(b.Proxies)
	}
	return quotas
}

// updateQuotas returns the quotas of an update; nil if there are none.
func (a figuresAPI) updateQuotas() *operator.Quotas {
	quotas := a.quotasOf(operator.QuotaQuery{Buckets: updateBuckets, Proxies: updateBucketProxies})
	if quotas.Total.IsZero() {
		return nil
	}
	return &quotas
}
