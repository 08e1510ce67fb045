package metrics

import (
	"maps"
	"sync"
	"sync/atomic"
)

// maxUnknownDomains is how many domains without rules have a counter of their own, as
// in envoyproxy/ratelimit. A few are mistakes in the configuration of Envoy, whose
// names help; many are a caller who makes names up, and share one counter.
const maxUnknownDomains = 10

// otherDomains stands for the domain in the name of that counter.
const otherDomains = "other_domains"

// unknownDomains counts descriptors of domains without rules.
type unknownDomains struct {
	byName atomic.Pointer[map[string]namedHits] // never changed, but replaced
	others namedHits
	mu     sync.Mutex // held while a name is added
}

func newUnknownDomains() *unknownDomains {
	u := &unknownDomains{others: newNotFound(otherDomains)}
	u.byName.Store(new(map[string]namedHits))
	return u
}

// counter returns the counter of a domain without allocating, unless it is one of the
// first.
func (u *unknownDomains) counter(domain []byte) *Counter {
	known := *u.byName.Load()
	switch h, found := known[string(domain)]; {
	case found:
		return &h.hits[0]
	case len(known) == maxUnknownDomains || len(domain) > maxName:
		return &u.others.hits[0]
	}
	return u.add(string(domain))
}

func (u *unknownDomains) add(domain string) *Counter {
	u.mu.Lock()
	defer u.mu.Unlock()
	known := maps.Clone(*u.byName.Load())
	if known == nil {
		known = make(map[string]namedHits)
	}
	h, found := known[domain]
	switch {
	case !found && len(known) == maxUnknownDomains:
		h = u.others
	case !found:
		h = newNotFound(domain)
		known[domain] = h
		u.byName.Store(&known)
	}
	return &h.hits[0]
}

// stats adds the counters, that of all others once it is not zero.
func (u *unknownDomains) stats(add func(Stat)) {
	for _, h := range *u.byName.Load() {
		h.stats(add)
	}
	if u.others.hits[0].Value() > 0 {
		u.others.stats(add)
	}
}
