// Package unmatched finds traffic that no rule applies to: unknown domains, and descriptors of known domains. It says
// why no rule applies.
//
// A Tracker counts all such descriptors by their domain and keys, and looks closer at a sample of them. Its memory is
// bounded, since callers choose both.
package unmatched

import (
	"cmp"
	"context"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
)

// Traffic is all descriptors of an unknown domain, or those of a known domain that have the same keys and no rule. Its
// texts refer to no memory of a request.
type Traffic struct {
	Domain          string `json:"domain"`
	IsUnknownDomain bool   `json:"unknown_domain"` // No rules have the domain.
	// Keys are the keys of the entries, separated by commas; empty for an unknown domain.
	Keys string `json:"keys,omitempty"`
	// Why says why no rule applies, without values of the request.
	Why string `json:"why"`
	// DidYouMean is the known domain, or the key of a rule, of similar name; empty if there is none.
	DidYouMean string `json:"did_you_mean,omitempty"`
	// Descriptor is the first one that was sampled, as key=value,key=value. It has no values if Config.HidesValues is set.
	Descriptor string `json:"descriptor"`
	// Descriptors is how many there were since FirstAt.
	Descriptors uint64    `json:"descriptors"`
	FirstAt     time.Time `json:"first_at"`
	LastAt      time.Time `json:"last_at"` // right within a second.
}

// Compare compares traffic in the order of List: that of unknown domains first, then by domain and keys.
func Compare(a, b Traffic) int {
	if a.IsUnknownDomain != b.IsUnknownDomain {
		if a.IsUnknownDomain {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Keys, b.Keys))
}

// Reason returns Why, with DidYouMean, as a text for people.
func (t *Traffic) Reason() string {
	if t.DidYouMean == "" {
		return t.Why
	}
	return t.Why + "; did you mean " + t.DidYouMean + "?"
}

// Sample is a descriptor without a rule, and the traffic that it is part of.
type Sample struct {
	Traffic
	// IsFirst is true for the first sample of a domain in a day, for at most 100 unknown and 100 known domains a day. It
	// is false if another rule of the request replaces the rule of the descriptor.
	IsFirst bool
	Skipped uint64 // the number of descriptors of this traffic since the last sample or List.
}

// Config is the configuration of a Tracker.
type Config struct {
	HidesValues bool // true if Traffic.Descriptor must have no values.
	// OnSample gets the samples; required. It runs on the goroutine of the request, so it must not block, and on several
	// at a time.
	OnSample func(Sample)
}

// Bounds on what is kept, for unknown domains and for known ones. A Traffic has less than 2 KiB of texts.
const (
	maxTraffic          = 30 // of each kind.
	maxTrafficPerDomain = 4
	maxFirstsPerDay     = 100 // of each kind.
	maxDescriptorBytes  = 512
	keepFor             = time.Hour // how long traffic is shown after its last descriptor.
)

const (
	interval = time.Second
	// samplesPerInterval bounds the samples of each kind. Each traffic has at most one sample an interval.
	samplesPerInterval = 10
	slotCount          = 4096 // so that two kinds of traffic rarely share a slot.
	maxHashedBytes     = 64   // of each key. Texts have no more.
	maxHashedEntries   = 16   // as above.
)

// kind says whether a domain is known.
type kind uint8

const (
	unknownDomain kind = iota
	knownDomain
	kindCount
)

// Tracker is a limiter.Recorder that finds traffic without a rule. Run must run meanwhile.
type Tracker struct {
	cfg      Config
	seed     maphash.Seed
	interval atomic.Uint32 // the number of the interval.
	places   [kindCount]atomic.Int32
	slots    [slotCount]slot

	mu        sync.Mutex // guards the fields below.
	set       *rules.Set // the rules in force; nil before the first ones.
	traffic   [kindCount]map[name]*entry
	firsts    [kindCount]map[string]bool // the domains that had a first sample since firstsFrom.
	firstFrom time.Time
}

// slot counts the traffic of one hash.
type slot struct {
	sampledIn atomic.Uint32 // the interval of the last sample.
	counted   atomic.Uint64 // the descriptors that no Traffic has yet.
}

// name identifies a Traffic.
type name struct{ domain, keys string }

// entry is a Traffic and what it belongs to.
type entry struct {
	Traffic
	slot  *slot
	rules *rules.Domain // nil for an unknown domain.
}

// New returns a Tracker without rules.
func New(cfg Config) *Tracker {
	t := &Tracker{cfg: cfg, seed: maphash.MakeSeed()}
	for k := range kindCount {
		t.traffic[k], t.firsts[k] = make(map[name]*entry), make(map[string]bool)
	}
	t.beginInterval()
	return t
}

// Run begins an interval each second until ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			t.beginInterval()
		case <-ctx.Done():
			return nil
		}
	}
}

func (t *Tracker) beginInterval() {
	for k := range t.places {
		t.places[k].Store(samplesPerInterval)
	}
	t.interval.Add(1)
}

// Record implements limiter.Recorder. It allocates memory only for samples.
func (t *Tracker) Record(req *limiter.Request, a *limiter.Answer) {
	switch {
	case req.CallerLimit != nil:
	case a.Domain == nil && len(a.Statuses) > 0:
		if s := t.count(unknownDomain, t.hash(req.Domain, nil), uint64(len(a.Statuses))); s != nil {
			t.sample(req, a, 0, s)
		}
	default:
		for i := range a.Statuses {
			if st := &a.Statuses[i]; st.Match != nil || len(st.Charges) > 0 {
				continue
			}
			if s := t.count(knownDomain, t.hash(req.Domain, req.Descriptors[i].Entries), 1); s != nil {
				t.sample(req, a, i, s)
			}
		}
	}
}

// hash returns a hash of a domain and the keys of a descriptor.
func (t *Tracker) hash(domain []byte, entries []rules.Entry) uint64 {
	h := maphash.Bytes(t.seed, domain)
	for i := range entries[:min(len(entries), maxHashedEntries)] {
		key := entries[i].Key
		h = bits.RotateLeft64(h, 5) ^ maphash.Bytes(t.seed, key[:min(len(key), maxHashedBytes)])
	}
	return h
}

// count counts n descriptors. It returns their slot if one of them is to be sampled, else nil.
func (t *Tracker) count(k kind, hash, n uint64) *slot {
	s := &t.slots[hash%slotCount]
	s.counted.Add(n)
	now, last := t.interval.Load(), s.sampledIn.Load()
	if last == now || !s.sampledIn.CompareAndSwap(last, now) || t.places[k].Add(-1) < 0 {
		return nil
	}
	return s
}

// sample looks at descriptor i, which slot s has counted.
func (t *Tracker) sample(req *limiter.Request, a *limiter.Answer, i int, s *slot) {
	k, n, entries := unknownDomain, name{domain: callertext.Name(string(req.Domain))}, req.Descriptors[i].Entries
	if a.Domain != nil {
		k, n.keys = knownDomain, callertext.Descriptor(withoutValues(entries))
	}
	t.mu.Lock()
	e := t.traffic[k][n]
	t.mu.Unlock()
	if e == nil {
		e = t.newEntry(n, a, entries)
		e.slot = s
	}
	if sample, ok := t.add(k, n, e, a.RuleSet); ok {
		t.cfg.OnSample(sample)
	}
}

// newEntry describes the traffic of a descriptor. It takes its time, and holds no lock.
func (t *Tracker) newEntry(n name, a *limiter.Answer, entries []rules.Entry) *entry {
	e := &entry{rules: a.Domain, Traffic: Traffic{Domain: n.domain, Keys: n.keys, IsUnknownDomain: a.Domain == nil}}
	if e.IsUnknownDomain {
		e.Why, e.DidYouMean = "no rules have the domain", a.RuleSet.NearestDomain(n.domain)
	} else {
		e.Why, e.DidYouMean = reason(a.Domain, entries)
	}
	if t.cfg.HidesValues {
		entries = withoutValues(entries)
	}
	e.Descriptor = callertext.Cut(callertext.Descriptor(entries), maxDescriptorBytes)
	return e
}

// add adds e to the traffic, unless that has it already. ok is false if set is not in force any more.
func (t *Tracker) add(k kind, n name, e *entry, set *rules.Set) (s Sample, ok bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if set != t.set {
		return s, false
	}
	if known := t.traffic[k][n]; known != nil {
		e = known
	} else {
		t.makeRoom(k, n, now)
		e.FirstAt = now
		t.traffic[k][n] = e
	}
	e.LastAt = now
	added := e.addCounted()
	return Sample{
		Traffic: e.Traffic, IsFirst: e.Why != replacedReason && t.isFirst(k, n.domain, now), Skipped: max(added, 1) - 1,
	}, true
}

// addCounted adds what the slot has counted, and returns that.
func (e *entry) addCounted() (added uint64) {
	added = e.slot.counted.Swap(0)
	e.Descriptors += added
	return added
}

// isFirst reports whether the domain has its first sample since a day.
func (t *Tracker) isFirst(k kind, domain string, now time.Time) bool {
	if now.Sub(t.firstFrom) >= 24*time.Hour {
		t.firstFrom = now
		clear(t.firsts[unknownDomain])
		clear(t.firsts[knownDomain])
	}
	if t.firsts[k][domain] || len(t.firsts[k]) >= maxFirstsPerDay {
		return false
	}
	t.firsts[k][domain] = true
	return true
}

// makeRoom removes the traffic with the fewest descriptors if there is no room for n: that of the same domain first.
func (t *Tracker) makeRoom(k kind, n name, now time.Time) {
	t.forgetOld(now)
	var leastOfDomain, least name
	ofDomain := 0
	isLess := func(a, b name) bool {
		x, y := t.traffic[k][a], t.traffic[k][b]
		return y == nil || cmp.Or(cmp.Compare(x.Descriptors, y.Descriptors), x.LastAt.Compare(y.LastAt)) < 0
	}
	for other, e := range t.traffic[k] {
		e.addCounted()
		if isLess(other, least) {
			least = other
		}
		if other.domain == n.domain {
			ofDomain++
			if isLess(other, leastOfDomain) {
				leastOfDomain = other
			}
		}
	}
	switch {
	case ofDomain >= maxTrafficPerDomain:
		delete(t.traffic[k], leastOfDomain)
	case len(t.traffic[k]) >= maxTraffic:
		delete(t.traffic[k], least)
	}
}

// forgetOld removes traffic that has ended.
func (t *Tracker) forgetOld(now time.Time) {
	for k := range kindCount {
		for n, e := range t.traffic[k] {
			if now.Sub(e.LastAt) > keepFor {
				delete(t.traffic[k], n)
			}
		}
	}
}

// UseRules learns the rules before the limiter decides by them. It forgets traffic that they may apply to.
func (t *Tracker) UseRules(set *rules.Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set = set
	for k := range kindCount {
		for n, e := range t.traffic[k] {
			if set.Domain([]byte(n.domain)) != e.rules {
				delete(t.traffic[k], n)
			} else if e.IsUnknownDomain {
				e.DidYouMean = set.NearestDomain(n.domain)
			}
		}
	}
}

// List returns the traffic of the last hour, in the order of Compare.
func (t *Tracker) List() []Traffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetOld(time.Now())
	var list []Traffic
	for k := range kindCount {
		for _, e := range t.traffic[k] {
			e.addCounted()
			list = append(list, e.Traffic)
		}
	}
	slices.SortFunc(list, Compare)
	return list
}
