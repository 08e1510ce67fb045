package metrics

import (
	"container/list"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"io"
	"sync"

	"ratelimit/src/rules"
)

// seriesCache holds the names that contain text from clients. When it is full, it evicts the
// least recently used name. Names are found by their hash: a lookup builds the name on the
// stack and allocates nothing.
type seriesCache struct {
	seed    maphash.Seed
	names   *names
	evicted Counter
	shards  []seriesShard
}

// seriesShards is the number of shards. Requests of different shards do not share a lock.
const seriesShards = 16

type seriesShard struct {
	max int // bounds byHash

	mu     sync.Mutex               // guards the fields below
	byHash map[uint64]*list.Element // of recent
	recent list.List                // of *series, the most recently used first
}

type series struct {
	hash uint64 // of the name, with seriesCache.seed
	name *name
}

func newSeriesCache(most int, n *names) *seriesCache {
	c := &seriesCache{seed: maphash.MakeSeed(), names: n, shards: make([]seriesShard, min(most, seriesShards))}
	for i := range c.shards {
		c.shards[i].max = most / len(c.shards)
		c.shards[i].byHash = make(map[uint64]*list.Element)
	}
	return c
}

// stackName is the longest name, in bytes, that a lookup builds without an allocation.
const stackName = 256

// perValue returns the counters of a rule whose name contains values of the request.
func (c *seriesCache) perValue(rule *rules.Rule, entries []rules.Entry) *hits {
	var stack [stackName]byte
	return c.get(rule.AppendName(stack[:0], entries))
}

// requestLimit returns the counters of a limit that came with a request. In domain d, the
// entries user=ann and plan are named d.user_ann.plan.
func (c *seriesCache) requestLimit(domain []byte, entries []rules.Entry) *hits {
	var stack [stackName]byte
	name := append(stack[:0], domain...)
	for i := range entries {
		name = append(name, '.')
		name = append(name, entries[i].Key...)
		if len(entries[i].Value) > 0 {
			name = append(name, '_')
			name = append(name, entries[i].Value...)
		}
	}
	return c.get(name)
}

// maxName bounds names that contain text from clients, in bytes.
const maxName = 1024

// bounded returns name. It replaces the part behind maxName by a hash of the whole name.
func bounded(name []byte) string {
	text := string(name) // a copy: name stays on the caller's stack
	if len(text) <= maxName {
		return text
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, text) // never fails
	return fmt.Sprintf("%s_%016x", text[:maxName], h.Sum64())
}

// get returns the counters of a name and marks it as the most recently used.
func (c *seriesCache) get(name []byte) *hits {
	hash := maphash.Bytes(c.seed, name)
	shard := &c.shards[hash%uint64(len(c.shards))]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if e := shard.byHash[hash]; e != nil {
		shard.recent.MoveToFront(e)
		return &e.Value.(*series).name.hits
	}
	s := &series{hash, c.names.open(clientPrefix(bounded(name)))}
	if len(shard.byHash) >= shard.max {
		oldest := shard.recent.Remove(shard.recent.Back()).(*series)
		delete(shard.byHash, oldest.hash)
		c.names.close(oldest.name)
		c.evicted.Add(1)
	}
	shard.byHash[hash] = shard.recent.PushFront(s)
	return &s.name.hits
}

// len returns the number of cached names.
func (c *seriesCache) len() (n int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.byHash)
		s.mu.Unlock()
	}
	return n
}

// maxUnknownDomains bounds the domains without rules that have a counter of their own. A
// name shows a mistake in Envoy's configuration; a client may invent any number of names.
const maxUnknownDomains = 10

// otherDomains names the counter that all further domains share.
const otherDomains = "other_domains"

// unknownDomains counts descriptors of domains without rules.
type unknownDomains struct {
	open  func(name string) *Counter // Registry.Counter
	stats ruleStats                  // of all these domains together

	mu     sync.Mutex          // guards the fields below
	byName map[string]*Counter // at most maxUnknownDomains
	others *Counter            // of otherDomains; nil before its first use
}

// counter returns the counter of a domain. It allocates only when it creates a counter.
func (u *unknownDomains) counter(domain []byte) *Counter {
	u.mu.Lock()
	defer u.mu.Unlock()
	if c := u.byName[string(domain)]; c != nil {
		return c
	}
	if len(u.byName) < maxUnknownDomains && len(domain) <= maxName {
		c := u.open(notFoundName(string(domain)))
		u.byName[string(domain)] = c
		return c
	}
	if u.others == nil {
		u.others = u.open(notFoundName(otherDomains))
	}
	return u.others
}

func notFoundName(domain string) string { return clientPrefix(domain) + "domain_not_found" }
