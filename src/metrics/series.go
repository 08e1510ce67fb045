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

// nameCache holds the names that contain text from clients. When it is full, it evicts the least recently used name.
// Names are found by their hash: a lookup builds the name on the stack and allocates nothing.
type nameCache struct {
	seed      maphash.Seed
	namedHits *namedHitTable
	dot       byte    // stands for each dot within a key or a value.
	Evicted   Counter // counts the names that made room for others.
	shards    []nameCacheShard
}

// nameCacheShardCount is the number of shards. Requests of different shards do not share a lock.
const nameCacheShardCount = 16

type nameCacheShard struct {
	maxNames int // bounds byHash.

	mu          sync.Mutex               // guards the fields below.
	byHash      map[uint64]*list.Element // finds the elements of recentNames.
	recentNames list.List                // *cachedName, the most recently used first.
}

type cachedName struct {
	nameHash uint64 // of the name with nameCache.seed.
	hits     *namedHits
}

func newNameCache(most int, n *namedHitTable, dot byte) *nameCache {
	c := &nameCache{
		seed: maphash.MakeSeed(), namedHits: n, dot: dot,
		shards: make([]nameCacheShard, min(most, nameCacheShardCount)),
	}
	for i := range c.shards {
		c.shards[i].maxNames = most / len(c.shards)
		c.shards[i].byHash = make(map[uint64]*list.Element)
	}
	return c
}

// stackNameBytes is the longest name, in bytes, that a lookup builds without an allocation.
const stackNameBytes = 256

// perValueCounts returns the counters of a rule whose name contains values of the request.
func (c *nameCache) perValueCounts(rule *rules.Rule, entries []rules.Entry) *hitCounts {
	var stack [stackNameBytes]byte
	return c.countsOf(rule.AppendMetricName(stack[:0], entries, c.dot))
}

// requestLimitCounts returns the counters of a limit that came with a request. In domain d, the
// entries user=ann and plan are named d.user_ann.plan.
func (c *nameCache) requestLimitCounts(domain []byte, entries []rules.Entry) *hitCounts {
	var stack [stackNameBytes]byte
	name := append(stack[:0], domain...)
	for i := range entries {
		name = append(name, '.')
		start := len(name)
		name = append(name, entries[i].Key...)
		if len(entries[i].Value) > 0 {
			name = append(name, '_')
			name = append(name, entries[i].Value...)
		}
		rules.ReplaceDots(name[start:], c.dot)
	}
	return c.countsOf(name)
}

// maxNameBytes bounds names that contain text from clients, in bytes.
const maxNameBytes = 1024

// boundedName returns name. It replaces the part behind maxNameBytes by a hash of the whole name.
func boundedName(name []byte) string {
	text := string(name) // The copy lets name stay on the caller's stack.
	if len(text) <= maxNameBytes {
		return text
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, text) // Writing to a hash never fails.
	return fmt.Sprintf("%s_%016x", text[:maxNameBytes], h.Sum64())
}

// countsOf returns the counters of a name and marks it as the most recently used.
func (c *nameCache) countsOf(name []byte) *hitCounts {
	hash := maphash.Bytes(c.seed, name)
	shard := &c.shards[hash%uint64(len(c.shards))]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if e := shard.byHash[hash]; e != nil {
		shard.recentNames.MoveToFront(e)
		return &e.Value.(*cachedName).hits.hitCounts
	}
	s := &cachedName{hash, c.namedHits.acquireName(clientPrefix(boundedName(name)))}
	if len(shard.byHash) >= shard.maxNames {
		oldest := shard.recentNames.Remove(shard.recentNames.Back()).(*cachedName)
		delete(shard.byHash, oldest.nameHash)
		c.namedHits.releaseName(oldest.hits)
		c.Evicted.Add(1)
	}
	shard.byHash[hash] = shard.recentNames.PushFront(s)
	return &s.hits.hitCounts
}

// Len returns the number of cached names.
func (c *nameCache) Len() (n int) {
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

// otherDomainsName names the counter that all further domains share.
const otherDomainsName = "other_domains"

// unknownDomains counts descriptors of domains without rules.
type unknownDomains struct {
	newCounter func(name string) *Counter // Registry.Counter.
	totalStats ruleStats                  // the outcomes of all domains without rules together.

	mu             sync.Mutex          // guards countersByName.
	countersByName map[string]*Counter // maxUnknownDomains domains and otherDomainsName.
}

// counterOf returns the counter of a domain. It allocates only when it creates a counter.
func (u *unknownDomains) counterOf(domain []byte) *Counter {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.countersByName[string(domain)] == nil &&
		(len(u.countersByName) >= maxUnknownDomains || len(domain) > maxNameBytes) {
		domain = []byte(otherDomainsName)
	}
	c := u.countersByName[string(domain)]
	if c == nil {
		c = u.newCounter(clientPrefix(string(domain)) + "domain_not_found")
		u.countersByName[string(domain)] = c
	}
	return c
}
