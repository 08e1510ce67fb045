package metrics

import (
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"io"
	"sync"

	"ratelimit/src/rules"
)

// seriesCache holds the counters whose names clients chose, at most max of
// them: the least recently used go to the registry's retired ones. They are
// found by a hash of the name, which is put together on the stack, so that a
// request makes no text.
type seriesCache struct {
	seed    maphash.Seed
	retired *retired
	shards  []seriesShard
}

// seriesShards is a compromise: more would share the cap less evenly, fewer
// would make more requests wait for each other.
const seriesShards = 16

type seriesShard struct {
	max int

	mu   sync.Mutex
	find map[uint64]*series
	root series // the ring's anchor: next is the most recently used
}

// series is one name, in a ring by last use.
type series struct {
	prev, next *series
	hash       uint64
	hits       namedHits
}

func newSeriesCache(most int, gone *retired) *seriesCache {
	n := min(most, seriesShards)
	c := &seriesCache{seed: maphash.MakeSeed(), retired: gone, shards: make([]seriesShard, n)}
	for i := range c.shards {
		s := &c.shards[i]
		s.max = most / n
		s.find = make(map[uint64]*series)
		s.root.prev, s.root.next = &s.root, &s.root
	}
	return c
}

// stackName is how long a name may be before it costs an allocation.
const stackName = 256

// perValue returns the counters of a rule that shows values of the request.
// Requests whose names are the same share them, whatever else differs.
func (c *seriesCache) perValue(rule *rules.Rule, entries []rules.Entry) *hits {
	var stack [stackName]byte
	return c.get(rule.AppendName(stack[:0], entries))
}

// requestLimit returns the counters of a limit that came with a request.
func (c *seriesCache) requestLimit(domain []byte, entries []rules.Entry) *hits {
	var stack [stackName]byte
	name := append(stack[:0], domain...)
	name = append(name, '.')
	for i := range entries {
		if i > 0 {
			name = append(name, '.')
		}
		name = append(name, entries[i].Key...)
		if len(entries[i].Value) > 0 {
			name = append(name, '_')
			name = append(name, entries[i].Value...)
		}
	}
	return c.get(name)
}

// maxName bounds the length of a name that a client chose; a longer one is cut
// and ends in a hash.
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

// get returns the counters of that name and makes them the most recently used.
func (c *seriesCache) get(name []byte) *hits {
	hash := maphash.Bytes(c.seed, name)
	shard := &c.shards[hash%uint64(len(c.shards))]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s := shard.find[hash]
	if s == nil {
		s = &series{hash: hash, hits: newChosenHits(bounded(name))}
		if back := c.retired.back(s.hits.prefix); back != nil {
			s.hits.hits = back
		}
		if len(shard.find) >= shard.max {
			oldest := shard.root.prev
			oldest.unlink()
			delete(shard.find, oldest.hash)
			c.retired.add(oldest.hits, true)
		}
		shard.find[hash] = s
	} else {
		s.unlink()
	}
	s.prev, s.next = &shard.root, shard.root.next
	s.prev.next, s.next.prev = s, s
	return s.hits.hits
}

func (s *series) unlink() { s.prev.next, s.next.prev = s.next, s.prev }

func (c *seriesCache) len() (n int) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		n += len(s.find)
		s.mu.Unlock()
	}
	return n
}

// each calls do for all counters.
func (c *seriesCache) each(do func(namedHits)) {
	for i := range c.shards {
		shard := &c.shards[i]
		shard.mu.Lock()
		for s := shard.root.next; s != &shard.root; s = s.next {
			do(s.hits)
		}
		shard.mu.Unlock()
	}
}
