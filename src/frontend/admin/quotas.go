package admin

import (
	"fmt"
	"strings"
)

// QuotaQuery asks for quota buckets.
type QuotaQuery struct {
	Domain  string   // Domain is empty for all domains.
	Bucket  []string // Bucket has the entries of one bucket, as key=value; empty for all.
	Buckets int      // Buckets is how many buckets are returned at most, and Proxies how many proxies of each.
	Proxies int
}

// Quotas are the quotas that this replica divides among proxies.
type Quotas struct {
	Total   QuotaTotals   `json:"total"`
	Buckets []QuotaBucket `json:"buckets"` // Buckets are those with most demand first.
	// MatchingBuckets is how many buckets the query finds. Buckets has some of them.
	MatchingBuckets int `json:"matching_buckets"`
}

// QuotaTotals are figures of all buckets.
type QuotaTotals struct {
	Proxies         int64   `json:"proxies"` // Proxies is how many streams there are.
	Buckets         int64   `json:"buckets"`
	DemandPerSecond float64 `json:"demand_per_second"` // DemandPerSecond is how many units a second callers ask for.
	Units           uint64  `json:"units"`             // Units is the sum of the newest assignments.
	LeftUnits       uint64  `json:"left_units"`        // LeftUnits is what proxies may still use after their streams ended.
	ShortBuckets    int     `json:"short_buckets"`     // ShortBuckets is how many buckets have a proxy that refuses more than a tenth of its requests.
	// Unfairness is the largest of all buckets.
	Unfairness float64 `json:"unfairness"`
}

// The actions of a QuotaBucket and a QuotaProxy.
const (
	QuotaUnits    = "units"     // QuotaUnits means that a number of units passes.
	QuotaAllowAll = "allow_all" // QuotaAllowAll means that no limit refuses.
	QuotaDenyAll  = "deny_all"  // QuotaDenyAll means that a limit lets nothing pass, or that nothing is left.
)

// QuotaBucket is a quota that proxies share.
type QuotaBucket struct {
	Domain          string   `json:"domain"`
	Bucket          string   `json:"bucket"` // Bucket is key=value,key=value, sorted by key. Proxies chose its text.
	Rule            string   `json:"rule"`   // Rule is the full name of the rule; empty if none matches.
	Limits          []string `json:"limits"` // Limits are for people, such as "100 per second".
	Action          string   `json:"action"`
	DemandPerSecond float64  `json:"demand_per_second"`
	Units           uint64   `json:"units"`
	// ShortSeconds is for how long a proxy has refused more than a tenth of its requests; 0 if none does.
	ShortSeconds float64 `json:"short_seconds"`
	// Unfairness is by what part the worst-off proxy gets less than its callers ask for, or less than the proxy that gets most, whichever is
	// smaller.
	Unfairness float64 `json:"unfairness"`
	// LeftUnits is what proxies that left may still use, for at most LeftSeconds.
	LeftUnits   uint64  `json:"left_units"`
	LeftSeconds float64 `json:"left_seconds"`
	ProxyCount  int     `json:"proxy_count"`
	// OtherProxyCount is how many proxies have the bucket on other replicas.
	OtherProxyCount uint64       `json:"other_proxy_count"`
	Proxies         []QuotaProxy `json:"proxies"` // Proxies are those with most demand first.
}

// QuotaProxy is what one proxy has of a bucket.
type QuotaProxy struct {
	Peer            string  `json:"peer"` // Peer is the address of the proxy.
	DemandPerSecond float64 `json:"demand_per_second"`
	// AskedPerSecond and AdmittedPerSecond are measured over at least 10 seconds. They are 0 until then.
	AskedPerSecond    float64 `json:"asked_per_second"`
	AdmittedPerSecond float64 `json:"admitted_per_second"`
	Short             bool    `json:"short"`  // Short says that the proxy refuses more than a tenth of its requests.
	Silent            bool    `json:"silent"` // Silent says that the proxy has missed its reports, so that it gets no more units.
	Action            string  `json:"action"` // Action is empty until the proxy has an assignment.
	Units             uint64  `json:"units"`
	InUse             uint64  `json:"in_use"` // InUse is how many units of all assignments the proxy may still use.
	// AssignedSeconds and ReportedSeconds are how long ago the newest assignment and the last report were.
	AssignedSeconds  float64 `json:"assigned_seconds"`
	ExpiresInSeconds float64 `json:"expires_in_seconds"`
	ReportedSeconds  float64 `json:"reported_seconds"`
}

// String returns the figures for people: "3 proxies, 2 buckets, 1 of them short, 321 units a second asked for, 110 assigned".
func (t *QuotaTotals) String() string {
	text := fmt.Sprintf("%d proxies, %s", t.Proxies, plural(int(t.Buckets), "bucket"))
	if t.Proxies == 1 {
		text = "1 proxy, " + plural(int(t.Buckets), "bucket")
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

// Bounds on an answer of /api/quotas and on the quotas of an update.
const (
	defaultBuckets      = 20
	defaultProxies      = 10
	maxProxiesListed    = 10_000 // maxProxiesListed bounds the proxies of all buckets together.
	updateBuckets       = 20
	updateBucketProxies = 10
)

func (a figuresAPI) quotas(p *parameters) any {
	q := QuotaQuery{Domain: p.text("domain"), Buckets: p.limit(defaultBuckets), Proxies: p.number("proxies", defaultProxies, 0, maxListed)}
	if text := p.text("bucket"); text != "" {
		q.Buckets, q.Bucket = 1, strings.Split(text, ",")
	}
	switch {
	case q.Bucket != nil && q.Domain == "":
		p.fail("bucket %q without its domain: add domain=", p.text("bucket"))
	case q.Buckets*q.Proxies > maxProxiesListed:
		p.fail("limit=%d and proxies=%d are together too much: their product is at most %d", q.Buckets, q.Proxies, maxProxiesListed)
	}
	for _, pair := range q.Bucket {
		if key, _, found := strings.Cut(pair, "="); !found || key == "" {
			p.fail("bucket=%q is not allowed: write key=value, separated by commas; %q is not that", p.text("bucket"), pair)
		}
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

// quotasOf returns the quotas with lists that are never null in JSON.
func (a figuresAPI) quotasOf(q QuotaQuery) Quotas {
	quotas := a.figures.Quotas(q)
	quotas.Buckets = listOf(quotas.Buckets)
	for i := range quotas.Buckets {
		b := &quotas.Buckets[i]
		b.Limits, b.Proxies = listOf(b.Limits), listOf(b.Proxies)
	}
	return quotas
}

// IsZero reports that no proxy is connected, and that nothing is left of one that was.
func (t *QuotaTotals) IsZero() bool { return t.Proxies == 0 && t.Buckets == 0 && t.LeftUnits == 0 }

// updateQuotas returns the quotas of an update; nil if there are none.
func (a figuresAPI) updateQuotas() *Quotas {
	quotas := a.quotasOf(QuotaQuery{Buckets: updateBuckets, Proxies: updateBucketProxies})
	if quotas.Total.IsZero() {
		return nil
	}
	return &quotas
}
