// Package overlimit stands in front of a remote store, and refuses hits on counters that it
// knows to be full without asking the store: for as long as, by the store's last verdict, not
// even one unit passes.
//
// Hits that it refuses are not counted. So with CountBlocked a count stops growing once it
// exceeds the limit, and a refund makes room sooner. It caches nothing of sliding window
// counters, of limits with a MinInterval, or of limits with CountBlocked other than fixed
// windows; see newEntry.
//
// A refund or a forced hit through this cache drops the counter's entry. If another replica
// sends it, the entry lives on to its end, which is at most one window later.
package overlimit

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/coocood/freecache"

	"ratelimit/src/backend"
)

// MinBytes is the smallest cache. It holds about 7,000 entries.
const MinBytes = 512 << 10

// Cache is a backend.Backend in front of another one. Its zero value is not usable; see New.
type Cache struct {
	next    backend.Backend
	entries *freecache.Cache
	hasher  hasher
	guards  [64]guard
	// Large batches have their own pool, so that the many small batches that may wait for
	// the next store do not hold large scratches.
	pool, largePool sync.Pool // of *scratch
}

// guard prevents that a verdict from before a refund becomes an entry after it. Each guard
// serves a 64th of the counters.
type guard struct {
	mu        sync.Mutex    // held while an entry is stored or evicted
	evictions atomic.Uint64 // written under mu
	_         [48]byte      // a cache line for each
}

// New returns an empty cache in front of next. bytes is the memory for entries, allocated at
// once; fewer than MinBytes are MinBytes. An entry takes 72 bytes. When the memory is used up,
// new entries replace about the least used. The index comes on top: half of bytes at 64 MiB,
// as much as bytes at 8 MiB, and 2.8 MB at MinBytes.
func New(next backend.Backend, bytes int) *Cache {
	return &Cache{
		next:      next,
		entries:   freecache.NewCache(max(bytes, MinBytes)),
		hasher:    newHasher(),
		pool:      sync.Pool{New: newScratch},
		largePool: sync.Pool{New: newScratch},
	}
}

// Stats holds the figures of a Cache. All but Entries and AverageAccessTime count since the
// start.
type Stats struct {
	// Entries counts the entries held, including ended ones that were not looked up since.
	Entries int64
	// Hits counts the lookups that found an entry, Misses the others, Lookups both. An
	// entry that was found may be of an old rule.
	Hits, Misses, Lookups int64
	// Overwrites counts the entries that replaced one of the same counter.
	Overwrites int64
	// Evacuated counts live entries that were moved or dropped to make room. Expired
	// counts entries that were looked up after their end.
	Evacuated, Expired int64
	// AverageAccessTime is when entries were last used on average, in seconds since the
	// Unix epoch.
	AverageAccessTime int64
}

// Stats returns the current figures.
func (c *Cache) Stats() Stats {
	hits, misses := c.entries.HitCount(), c.entries.MissCount()
	return Stats{
		Entries:           c.entries.EntryCount(),
		Hits:              hits,
		Misses:            misses,
		Lookups:           hits + misses,
		Overwrites:        c.entries.OverwriteCount(),
		Evacuated:         c.entries.EvacuateCount(),
		Expired:           c.entries.ExpiredCount(),
		AverageAccessTime: c.entries.AverageAccessTime(),
	}
}

// Take refuses the hits that the cache knows to be over, and sends the others on in one
// batch; see backend.Backend. If the cache knows nothing, it sends b itself.
//
// If a refused hit refuses its atomic group, the other atomic hits of the group are sent as
// looks.
func (c *Cache) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	pool, most := c.poolFor(len(b.Hits))
	s := pool.Get().(*scratch)
	defer s.release(pool, most)
	now := b.UnixNano()
	err := error(nil)
	if c.answerKnown(s, b, now) {
		s.addUnknown(b)
		err = s.rest.Send(ctx, c.next, b)
	} else {
		err = c.next.Take(ctx, b)
	}
	if err == nil {
		c.learn(s, b, now)
	}
	return err
}

// answerKnown sets the verdicts of the hits that are known to be over, and reports whether
// there are any.
func (c *Cache) answerKnown(s *scratch, b *backend.Batch, now int64) (any bool) {
	for i := 0; i < len(b.Hits); {
		start, end, known := i, b.GroupEnd(i), false
		for ; i < end; i++ {
			h := &b.Hits[i]
			m := s.add(c.hasher.id(h), len(b.Hits))
			m.evictions = c.guard(m.id).evictions.Load()
			if m.written = !h.Op.Asks() || m.before >= 0 && s.marks[m.before].written; m.written {
				continue // later hits see what the batch writes before them
			}
			if v, ok := c.lookUp(s, m.id, h, now); ok {
				b.Verdicts[i], m.fate, known = v, answered, true
			}
		}
		any = known && completeGroup(b.Hits[start:end], s.marks[start:end], start) || any
	}
	return any
}

// lookUp returns the verdict on h if the cache knows that it is over.
func (c *Cache) lookUp(s *scratch, id id, h *backend.Hit, now int64) (v backend.Verdict, ok bool) {
	s.id = id
	value, err := c.entries.GetWithBuf(s.id[:], s.value[:0])
	if err != nil {
		return v, false
	}
	e := decode(value)
	switch {
	case now < e.since:
		return v, false // a clock was set back
	case now >= e.until || e.rule != c.hasher.rule(h.Limit):
		c.entries.Del(s.id[:])
		return v, false
	}
	return e.verdict(h, now)
}

// learn stores entries from the verdicts of the next store, in the order of the batch: a
// refund drops the entries of the hits before it. since is when the store was asked.
func (c *Cache) learn(s *scratch, b *backend.Batch, since int64) {
	for i := range b.Hits {
		h, m := &b.Hits[i], &s.marks[i]
		m.stored = m.before >= 0 && s.marks[m.before].stored
		if !h.Op.Asks() {
			c.evict(s, m.id) // also with an Err: it may have been written
			continue
		}
		if m.fate == answered {
			continue
		}
		if e, ok := newEntry(h, &b.Verdicts[i], since); ok && b.UnixNano() < e.until {
			e.rule = c.hasher.rule(h.Limit)
			c.store(s, m, e, !b.Now.IsZero())
			m.stored = true
		} else if m.stored {
			c.evict(s, m.id) // another rule with a larger limit uses this counter, too
		}
	}
}

func (c *Cache) guard(id id) *guard { return &c.guards[id[0]%uint8(len(c.guards))] }

// store stores e, unless the counter's guard has seen an eviction since the store was asked.
func (c *Cache) store(s *scratch, m *mark, e entry, virtual bool) {
	s.id = m.id
	e.encode(&s.value)
	g := c.guard(m.id)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.evictions.Load() == m.evictions {
		_ = c.entries.Set(s.id[:], s.value[:], e.seconds(virtual)) // fails only for large entries
	}
}

// evict drops the counter's entry.
func (c *Cache) evict(s *scratch, id id) {
	s.id = id
	g := c.guard(id)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.evictions.Add(1)
	c.entries.Del(s.id[:])
}
