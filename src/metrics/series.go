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

// seriesCache finds the names that clients chose, by a hash of the name. It builds a
// name on the stack, so that a request allocates nothing. When it is full, the least
// recently used name makes room.
type seriesCache struct {
	seed    maphash.Seed
	names   *names
	evicted Counter
	shards  []seriesShard
}

// seriesShards is how many shards the cache has. More would share its size less evenly;
// with fewer, more requests would wait for each other.
const seriesShards = 16

type seriesShard struct {
	max int

	mu   sync.Mutex // guards what follows
	find map[uint64]*list.Element
	used list.List // of *series, the most recently used first
}

type series struct {
	hash uint64
	name *name
}

func newSeriesCache(most int, n *names) *seriesCache {
	c := &seriesCache{seed: maphash.MakeSeed(), names: n, shards: make([]seriesShard, min(most, seriesShards))}
	for i := range c.shards {
		c.shards[i].max = most / len(c.shards)
		c.shards[i].find = make(map[uint64]*list.Element)
	}
	return c
}

// stackName is how long a name may be before it costs an allocation.
const stackName = 256

// perValue returns the counters of a rule that shows values of the request. Requests
// with the same name share them.
func (c *seriesCache) perValue(rule *rules.Rule, entries []rules.Entry) *hits {
	var stack [stackName]byte
	return c.get(rule.AppendName(stack[:0], entries))
}

// requestLimit returns the counters of a limit that came with a request.
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

// maxName bounds the length of a name that a client chose; a longer one is cut and ends
// in a hash.
const maxName = 1024

func bounded(name []byte) string {
	text := string(name) // a copy: name stays on the caller's stack
	if len(text) <= maxName {
		return text
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, text) // never fails
	return fmt.Sprintf("%s_%016x", text[:maxName], h.Sum64())
}

// get returns the counters of that name and makes it the most recently used.
func (c *seriesCache) get(name []byte) *hits {
	hash := maphash.Bytes(c.seed, name)
	shard := &c.shards[hash%uint64(len(c.shards))]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if e := shard.find[hash]; e != nil {
		shard.used.MoveToFront(e)
		return &e.Value.(*series).name.hits
	}
	s := &series{hash, c.names.open(chosenPrefix(bounded(name)))}
	if len(shard.find) >= shard.max {
		oldest := shard.used.Remove(shard.used.Back()).(*series)
		delete(shard.find, oldest.hash)
		c.names.close(oldest.name)
		c.evicted.Add(1)
	}
	shard.find[hash] = shard.used.PushFront(s)
	return &s.name.hits
}

func (c *seriesCache) len() (n int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.find)
		s.mu.Unlock()
	}
	return n
}

// maxUnknownDomains is how many domains without rules have a counter of their own. A few
// are mistakes in the configuration of Envoy, and their names help; many are invented by
// a client, and share the counter of otherDomains.
const maxUnknownDomains = 10

const otherDomains = "other_domains"

// unknownDomains counts descriptors of domains without rules.
type unknownDomains struct {
	open  func(name string) *Counter
	stats ruleStats // of all of them

	mu     sync.Mutex // guards what follows
	byName map[string]*Counter
	others *Counter // nil: not needed yet
}

// counter returns the counter of a domain. It allocates only for the first domains.
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

func notFoundName(domain string) string { return chosenPrefix(domain) + "domain_not_found" }
