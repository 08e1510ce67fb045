package metrics

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"sync"

	"ratelimit/src/rules"
)

// seriesCache holds the counters whose names clients chose, at most max of
// them: the least recently used are forgotten. Known ones are found by a hash
// over the parts of their name, so that a request formats no text.
type seriesCache struct {
	seed    maphash.Seed
	evicted Counter
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
	_    [16]byte
}

// series is one name, in a ring by last use.
type series struct {
	prev, next *series
	hash       uint64
	hits       *hits
	notFound   *notFound
}

// notFound counts descriptors of one unknown domain.
type notFound struct {
	name string
	Counter
}

func newSeriesCache(most int) *seriesCache {
	n := min(most, seriesShards)
	c := &seriesCache{seed: maphash.MakeSeed(), shards: make([]seriesShard, n)}
	for i := range c.shards {
		s := &c.shards[i]
		s.max = most / n
		s.find = make(map[uint64]*series)
		s.root.prev, s.root.next = &s.root, &s.root
	}
	return c
}

// What a hash begins with, so that names of different kinds keep apart.
const (
	seriesPerValue = iota
	seriesRequestLimit
	seriesNotFound
)

// perValue returns the counters of a rule that shows values of the request.
func (c *seriesCache) perValue(rule *rules.Rule, entries []rules.Entry) *hits {
	var h maphash.Hash
	c.begin(&h, seriesPerValue)
	part(&h, rule.Key)
	for i := range rule.Path { // what the name is made of may change with a reload
		flags := byte(0)
		if rule.Detailed {
			flags |= 1
		}
		if rule.Path[i].ValueToMetric {
			flags |= 2
		}
		if rule.Path[i].ShareThreshold {
			flags |= 4
		}
		_ = h.WriteByte(flags) // never fails
	}
	hashEntries(&h, entries)
	return c.get(h.Sum64(), func(s *series) {
		s.hits = newHits(bounded(rule.AppendName(nil, entries), s.hash))
	}).hits
}

// requestLimit returns the counters of a limit that came with a request.
func (c *seriesCache) requestLimit(domain []byte, entries []rules.Entry) *hits {
	var h maphash.Hash
	c.begin(&h, seriesRequestLimit)
	part(&h, domain)
	hashEntries(&h, entries)
	return c.get(h.Sum64(), func(s *series) {
		name := append([]byte(nil), domain...)
		for i := range entries {
			name = append(name, '.')
			name = append(name, entries[i].Key...)
			if len(entries[i].Value) > 0 {
				name = append(name, '_')
				name = append(name, entries[i].Value...)
			}
		}
		s.hits = newHits(bounded(name, s.hash))
	}).hits
}

// domainNotFound returns the counter of an unknown domain.
func (c *seriesCache) domainNotFound(domain []byte) *Counter {
	var h maphash.Hash
	c.begin(&h, seriesNotFound)
	part(&h, domain)
	return &c.get(h.Sum64(), func(s *series) {
		s.notFound = &notFound{name: rulePrefix + sanitize(bounded(domain, s.hash)) + ".domain_not_found"}
	}).notFound.Counter
}

func (c *seriesCache) begin(h *maphash.Hash, kind byte) {
	h.SetSeed(c.seed)
	_ = h.WriteByte(kind) // never fails, as all writes to it
}

// part adds b such that it cannot run into the next part.
func part[T string | []byte](h *maphash.Hash, b T) {
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(b)))
	_, _ = h.Write(size[:])
	switch b := any(b).(type) {
	case string:
		_, _ = h.WriteString(b)
	case []byte:
		_, _ = h.Write(b)
	}
}

func hashEntries(h *maphash.Hash, entries []rules.Entry) {
	for i := range entries {
		part(h, entries[i].Key)
		part(h, entries[i].Value)
	}
}

// maxName bounds the length of a name that a client chose; a longer one is cut
// and ends in a hash.
const maxName = 1024

func bounded(name []byte, hash uint64) string {
	if len(name) <= maxName {
		return string(name)
	}
	return fmt.Sprintf("%s_%016x", name[:maxName], hash)
}

// get returns the series of that hash and makes it the most recently used. fill
// completes a new one.
func (c *seriesCache) get(hash uint64, fill func(*series)) *series {
	shard := &c.shards[hash%uint64(len(c.shards))]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s := shard.find[hash]
	if s == nil {
		s = &series{hash: hash}
		fill(s)
		if len(shard.find) >= shard.max {
			oldest := shard.root.prev
			oldest.unlink()
			delete(shard.find, oldest.hash)
			c.evicted.Add(1)
		}
		shard.find[hash] = s
	} else {
		s.unlink()
	}
	s.prev, s.next = &shard.root, shard.root.next
	s.prev.next, s.next.prev = s, s
	return s
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

func (c *seriesCache) stats(add func(Stat)) {
	for i := range c.shards {
		shard := &c.shards[i]
		shard.mu.Lock()
		for s := shard.root.next; s != &shard.root; s = s.next {
			if s.hits != nil {
				s.hits.stats(add)
			} else {
				add(Stat{s.notFound.name, KindCounter, int64(s.notFound.Value())})
			}
		}
		shard.mu.Unlock()
	}
}
