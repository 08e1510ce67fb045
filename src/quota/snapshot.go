package quota

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
)

// BucketState is what a Divider knows of a bucket at one time.
type BucketState struct {
	Domain          string   `json:"domain"`
	Bucket          string   `json:"bucket"` // key=value,key=value, sorted by key. Proxies chose its text.
	Rule            string   `json:"rule"`   // the full name of the rule; empty if none matches.
	Limits          []string `json:"limits"` // for people, such as "100 per second".
	Action          string   `json:"action"` // "units" if units describe the bucket, else what all proxies do.
	DemandPerSecond float64  `json:"demand_per_second"`
	Units           uint64   `json:"units"`
	// ShortSeconds is for how long a proxy has refused more than a tenth of its requests; 0 if none does.
	ShortSeconds float64 `json:"short_seconds"`
	Unfairness   float64 `json:"unfairness"` // as in Totals.
	// LeftUnits is what proxies that left may still use, for at most LeftSeconds.
	LeftUnits       uint64       `json:"left_units"`
	LeftSeconds     float64      `json:"left_seconds"`
	ProxyCount      int          `json:"proxy_count"`
	OtherProxyCount uint64       `json:"other_proxy_count"` // those of other replicas.
	Proxies         []ProxyState `json:"proxies"`           // some of them, those with most demand first.
}

// ProxyState is what a proxy has of a bucket.
type ProxyState struct {
	Peer            string  `json:"peer"` // Proxy.Peer.
	DemandPerSecond float64 `json:"demand_per_second"`
	// AskedPerSecond and AdmittedPerSecond are what its callers asked for, and got, in the last 10 seconds, or in long
	// windows the last minute. They are 0 until so much time has passed.
	AskedPerSecond    float64 `json:"asked_per_second"`
	AdmittedPerSecond float64 `json:"admitted_per_second"`
	IsShort           bool    `json:"short"`  // true if the proxy refuses more than a tenth of its requests.
	IsSilent          bool    `json:"silent"` // true if it has missed its last reports, so that it gets no more units.
	Action            string  `json:"action"` // empty until the first assignment.
	Units             uint64  `json:"units"`  // what the newest assignment gave.
	InUse             uint64  `json:"in_use"` // how many units of all assignments the proxy may still use.
	// AssignedSeconds and ReportedSeconds are how long ago the newest assignment and the last report were.
	AssignedSeconds  float64 `json:"assigned_seconds"`
	ExpiresInSeconds float64 `json:"expires_in_seconds"` // 0 if the assignment has expired.
	ReportedSeconds  float64 `json:"reported_seconds"`
}

// Snapshot returns up to maxBuckets buckets of a domain, or of all domains if it is empty, those with most demand
// first, with up to maxProxies proxies each. count is how many buckets there are. Reports wait at most while a bucket,
// or the list of buckets, is copied.
func (d *Divider) Snapshot(domain string, maxBuckets, maxProxies int, now Instant) (list []BucketState, count int) {
	d.mu.Lock()
	buckets := slices.Clone(d.list)
	d.mu.Unlock()
	type item struct {
		bucket *bucket
		demand uint64
	}
	var busiest []item
	order := func(a, b item) int {
		return cmp.Or(cmp.Compare(b.demand, a.demand), bytes.Compare(a.bucket.domain, b.bucket.domain),
			slices.CompareFunc(a.bucket.entries, b.bucket.entries, compareEntries))
	}
	for _, b := range buckets {
		if domain != "" && string(b.domain) != domain {
			continue
		}
		count++
		b.mu.Lock()
		it := item{b, b.figures.demandMillis}
		b.mu.Unlock()
		busiest = insertSorted(busiest, it, maxBuckets, order)
	}
	for _, it := range busiest {
		list = append(list, it.bucket.state(maxProxies, now))
	}
	return list, count
}

func compareEntries(a, b rules.Entry) int {
	return cmp.Or(bytes.Compare(a.Key, b.Key), bytes.Compare(a.Value, b.Value))
}

// insertSorted inserts an item into a sorted list, which keeps the first most items.
func insertSorted[T any](list []T, item T, most int, order func(a, b T) int) []T {
	if len(list) == most {
		if most == 0 || order(item, list[most-1]) >= 0 {
			return list
		}
		list = list[:most-1]
	}
	at, _ := slices.BinarySearchFunc(list, item, order)
	return slices.Insert(list, at, item)
}

// BucketNamed returns the bucket of a domain with these entries, which must be sorted by key, with up to maxProxies
// proxies. found is false if no proxy of this replica has it.
func (d *Divider) BucketNamed(domain []byte, entries []rules.Entry, maxProxies int,
	now Instant,
) (state BucketState, found bool) {
	d.mu.Lock()
	b := d.buckets[bucketName(domain, entries)]
	d.mu.Unlock()
	if b == nil {
		return BucketState{}, false
	}
	return b.state(maxProxies, now), true
}

// state returns the state of the bucket with up to maxProxies proxies.
func (b *bucket) state(maxProxies int, now Instant) BucketState {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.figures.shortMembers > 0 {
		b.updateUnfairness(now.elapsed)
	}
	f := &b.figures
	s := BucketState{
		Domain: string(b.domain), Bucket: callertext.Descriptor(b.entries), Action: b.terms.action.String(),
		DemandPerSecond: float64(f.demandMillis) / 1000, Units: f.units, Unfairness: f.unfairness,
		ProxyCount: len(b.members), OtherProxyCount: b.peers.others.proxies,
	}
	if b.target.Match != nil {
		s.Rule = b.target.Match.FullName
	}
	for _, r := range b.target.Rules {
		s.Limits = append(s.Limits, r.LimitText())
	}
	if f.shortMembers > 0 {
		s.ShortSeconds = secondsBetween(f.shortSince, now.elapsed)
	}
	if s.LeftUnits = f.left.at(now.elapsed); s.LeftUnits > 0 {
		s.LeftSeconds = secondsBetween(now.elapsed, f.left.until)
	}
	var busiest []*member
	order := func(a, b *member) int {
		return cmp.Or(cmp.Compare(b.demand, a.demand), cmp.Compare(a.proxy.Peer, b.proxy.Peer))
	}
	for _, m := range b.members {
		busiest = insertSorted(busiest, m, maxProxies, order)
	}
	for _, m := range busiest {
		s.Proxies = append(s.Proxies, m.state(now.elapsed))
	}
	return s
}

// state returns the state of the member. The caller holds the lock of the bucket.
func (m *member) state(now int64) ProxyState {
	s := ProxyState{
		Peer: m.proxy.Peer, DemandPerSecond: m.demand, AskedPerSecond: m.figures.askedRate,
		AdmittedPerSecond: m.figures.admittedRate, IsShort: m.figures.isShort, IsSilent: m.isSilent(now),
		ReportedSeconds: secondsBetween(m.lastReport, now),
	}
	if a := &m.newest; a.Bucket != nil {
		s.Action, s.Units, s.AssignedSeconds = a.Action.String(), uint64(a.Units), secondsBetween(m.assignedAt, now)
		if s.ExpiresInSeconds = max(secondsBetween(now, m.expiresAt), 0); s.ExpiresInSeconds > 0 {
			s.InUse = min(m.inUse(), m.unreported)
		}
	}
	return s
}

// secondsBetween returns the seconds from begin to end, both as Instant.elapsed.
func secondsBetween(begin, end int64) float64 { return time.Duration(end - begin).Seconds() }
