package operator

import (
	"fmt"
	"slices"
	"strings"
	"sync"
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
	Domain  string   // empty for all domains.
	Bucket  []string // the entries of one bucket, as key=value; empty for all.
	Buckets int      // how many buckets are returned at most, and Proxies how many proxies of each.
	Proxies int
}

// Quotas are the quotas that this replica divides among proxies.
type Quotas struct {
	Total   QuotaTotals   `json:"total"`
	Buckets []QuotaBucket `json:"buckets"` // those with most demand first.
	// MatchingBuckets is how many buckets the query finds. Buckets has some of them.
	MatchingBuckets int `json:"matching_buckets"`
}

// QuotaTotals are figures of all buckets.
type QuotaTotals struct {
	Proxies         int64   `json:"proxies"` // how many streams there are.
	Buckets         int64   `json:"buckets"`
	DemandPerSecond float64 `json:"demand_per_second"` // how many units a second callers ask for.
	Units           uint64  `json:"units"`             // the sum of the newest assignments.
	LeftUnits       uint64  `json:"left_units"`        // what proxies may still use after their streams ended.
	// how many buckets have a proxy that refuses more than a tenth of its requests.
	ShortBuckets int `json:"short_buckets"`
	// Unfairness is the largest of all buckets.
	Unfairness float64 `json:"unfairness"`
}

// The actions of a QuotaBucket and a QuotaProxy.
const (
	QuotaUnits    = "units"     // means that a number of units passes.
	QuotaAllowAll = "allow_all" // means that no limit refuses.
	QuotaDenyAll  = "deny_all"  // means that a limit lets nothing pass, or that nothing is left.
)

// QuotaBucket is a quota that proxies share.
type QuotaBucket struct {
	Domain          string   `json:"domain"`
	Bucket          string   `json:"bucket"` // key=value,key=value, sorted by key. Proxies chose its text.
	Rule            string   `json:"rule"`   // the full name of the rule; empty if none matches.
	Limits          []string `json:"limits"` // for people, such as "100 per second".
	Action          string   `json:"action"`
	DemandPerSecond float64  `json:"demand_per_second"`
	Units           uint64   `json:"units"`
	// ShortSeconds is for how long a proxy has refused more than a tenth of its requests; 0 if none does.
	ShortSeconds float64 `json:"short_seconds"`
	// Unfairness is by what part the worst-off proxy gets less than its callers ask for, or less than the proxy that gets
	// most, whichever is smaller.
	Unfairness float64 `json:"unfairness"`
	// LeftUnits is what proxies that left may still use, for at most LeftSeconds.
	LeftUnits   uint64  `json:"left_units"`
	LeftSeconds float64 `json:"left_seconds"`
	ProxyCount  int     `json:"proxy_count"`
	// OtherProxyCount is how many proxies have the bucket on other replicas.
	OtherProxyCount uint64       `json:"other_proxy_count"`
	Proxies         []QuotaProxy `json:"proxies"` // those with most demand first.
}

// QuotaProxy is what one proxy has of a bucket.
type QuotaProxy struct {
	Peer            string  `json:"peer"` // the address of the proxy.
	DemandPerSecond float64 `json:"demand_per_second"`
	// AskedPerSecond and AdmittedPerSecond are measured over at least 10 seconds. They are 0 until then.
	AskedPerSecond    float64 `json:"asked_per_second"`
	AdmittedPerSecond float64 `json:"admitted_per_second"`
	Short             bool    `json:"short"`  // true if the proxy refuses more than a tenth of its requests.
	Silent            bool    `json:"silent"` // true if the proxy has missed its reports, so that it gets no more units.
	Action            string  `json:"action"` // empty until the proxy has an assignment.
	Units             uint64  `json:"units"`
	InUse             uint64  `json:"in_use"` // how many units of all assignments the proxy may still use.
	// AssignedSeconds and ReportedSeconds are how long ago the newest assignment and the last report were.
	AssignedSeconds  float64 `json:"assigned_seconds"`
	ExpiresInSeconds float64 `json:"expires_in_seconds"`
	ReportedSeconds  float64 `json:"reported_seconds"`
}

// String returns the figures for people: "3 proxies, 2 buckets, 1 of them short, 321 units a second asked for, 110
// assigned".
func (t *QuotaTotals) String() string {
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

// IsZero reports that no proxy is connected, and that nothing is left of one that was.
func (t *QuotaTotals) IsZero() bool { return t.Proxies == 0 && t.Buckets == 0 && t.LeftUnits == 0 }

// usageCharge is what the subjects need of a report.
type usageCharge struct {
	answer limiter.Answer
	charge limiter.Charge
}

var usageCharges = sync.Pool{New: func() any { return new(usageCharge) }}

// RecordUsage shows what a proxy decided by a quota among subjects and denials, as if this service had decided it.
func (o *Observer) RecordUsage(u *quota.Usage) {
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
			d := denials.Denial{
				Protocol: limiter.ProtocolRLQS, Domain: callertext.Name(string(u.Domain)),
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

// Quotas returns the quota buckets that q asks for, those with most demand first, and the totals of all.
func (f *Figures) Quotas(q QuotaQuery) (v Quotas) {
	d := f.Divider
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

func quotaTotals(stats *quota.Stats) QuotaTotals {
	totals := stats.Totals()
	return QuotaTotals{
		Proxies: stats.Proxies.Load(), Buckets: stats.Buckets.Load(), DemandPerSecond: totals.DemandPerSecond,
		Units:     totals.Units,
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

var quotaActions = map[quota.Action]string{
	quota.AssignUnits: QuotaUnits, quota.AllowAll: QuotaAllowAll,
	quota.DenyAll: QuotaDenyAll,
}

func quotaBucket(b *quota.BucketState) QuotaBucket {
	v := QuotaBucket{
		Domain: b.Domain, Bucket: callertext.Descriptor(b.Entries), Action: quotaActions[b.Action],
		DemandPerSecond: b.DemandPerSecond, Units: b.Units,
		ShortSeconds: b.ShortFor.Seconds(), Unfairness: b.Unfairness, LeftUnits: b.LeftUnits,
		LeftSeconds: b.LeftFor.Seconds(),
		ProxyCount:  b.ProxyCount, OtherProxyCount: b.OtherProxyCount,
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
		v.Proxies = append(v.Proxies, QuotaProxy{
			Peer: p.Peer, DemandPerSecond: p.DemandPerSecond, AskedPerSecond: p.AskedPerSecond,
			AdmittedPerSecond: p.AdmittedPerSecond,
			Short:             p.IsShort, Silent: p.IsSilent, Action: action, Units: p.Units, InUse: p.InUse,
			AssignedSeconds: p.AssignedFor.Seconds(), ExpiresInSeconds: p.ExpiresIn.Seconds(),
			ReportedSeconds: p.ReportedFor.Seconds(),
		})
	}
	return v
}
