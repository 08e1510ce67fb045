package quota

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"ratelimit/src/rules"
)

// BucketState is what a Divider knows of a bucket at one time.
type BucketState struct {
	Domain  string
	Entries []rules.Entry // sorted by key. Callers must not change them.
	Rule    *rules.Rule   // the rule that the entries match; nil if none does.
	Limits  []*rules.Rule // the rules that limit the bucket.
	Action  Action        // AssignUnits if units describe the bucket, else what all proxies do.

	DemandPerSecond float64 // how many units a second the callers of all proxies ask for.
	Units           uint64  // the sum of the newest assignments of all proxies.
	// ShortFor is for how long some proxy has refused more than a tenth of its requests; 0 if none does. Unfairness is as
	// in Totals.
	ShortFor   time.Duration
	Unfairness float64
	// LeftUnits is what proxies that have left may still use, for LeftFor at most.
	LeftUnits uint64
	LeftFor   time.Duration

	ProxyCount      int          // how many proxies this replica has.
	OtherProxyCount uint64       // how many proxies other replicas have.
	Proxies         []ProxyState // some of them, those with most demand first.
}

// ProxyState is what a proxy has of a bucket.
type ProxyState struct {
	Peer            string // Proxy.Peer.
	DemandPerSecond float64
	// AskedPerSecond and AdmittedPerSecond are what its callers asked for, and got, in the last 10 seconds, or in long
	// windows the last minute. They are 0 until so much time has passed.
	AskedPerSecond, AdmittedPerSecond float64
	IsShort                           bool // true if the proxy refuses more than a tenth of its requests.
	IsNew                             bool // true if the proxy has reported once, so that its demand is not known.
	IsSilent                          bool // true if the proxy has missed its last reports, so that it gets no more units.
	HasAssignment                     bool // false until the first round. The fields below are 0 then.
	Action                            Action
	Units                             uint64        // what the newest assignment gave.
	InUse                             uint64        // how many units the proxy may still use of all assignments.
	AssignedFor                       time.Duration // how long ago the newest assignment was sent.
	ExpiresIn                         time.Duration // 0 if the assignment has expired.
	ReportedFor                       time.Duration // how long ago the last report came.
	Interval                          time.Duration // the time between two reports.
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
		Domain: string(b.domain), Entries: b.entries, Rule: b.target.Rule, Limits: b.target.Rules, Action: b.blanket(),
		DemandPerSecond: float64(f.demandMillis) / 1000, Units: f.units, Unfairness: f.unfairness,
		ProxyCount: len(b.members), OtherProxyCount: b.peers.others.proxies,
	}
	if f.shortMembers > 0 {
		s.ShortFor = max(time.Duration(now.elapsed-f.shortSince), 1)
	}
	if s.LeftUnits = f.left.at(now.elapsed); s.LeftUnits > 0 {
		s.LeftFor = time.Duration(f.left.until - now.elapsed)
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
		AdmittedPerSecond: m.figures.admittedRate, IsShort: m.figures.isShort,
		IsNew: m.isNew, IsSilent: m.isSilent(now),
		ReportedFor: time.Duration(now - m.lastReport), Interval: time.Duration(m.interval * float64(time.Second)),
	}
	if a := &m.newest; a.Bucket != nil {
		s.HasAssignment, s.Action, s.Units = true, a.Action, uint64(a.Units)
		s.AssignedFor, s.ExpiresIn = time.Duration(now-m.assignedAt), time.Duration(max(m.expiresAt-now, 0))
		if s.ExpiresIn > 0 {
			s.InUse = min(m.inUse(), m.unreported)
		}
	}
	return s
}
