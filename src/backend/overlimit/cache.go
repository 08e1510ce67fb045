// Package overlimit stands in front of a store that is far away, and refuses
// what is known to be over its limit without asking there: a counter that was
// found full, for as long as the store says that not even one unit passes.
//
// What it refuses it does not count: the counter of a limit with CountBlocked
// stops growing once it is beyond the limit. No answer depends on that growth,
// but that a refund makes room sooner.
//
// Of a sliding window counter it knows nothing, nor of limits with a MinInterval
// or, fixed windows canary, CountBlocked; see learnt.
//
// A refund or a forced hit through this cache ends the counter's entry at
// once. One that another replica sends is seen when the entry ends by itself,
// which is at most one window later.
package overlimit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coocood/freecache"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Config says how large a Cache is.
type Config struct {
	// Bytes is the size of the memory for the entries, which is taken at once
	// and never grows; at least MinBytes, whatever is asked for. An entry takes
	// 72 bytes of it; when they are used up, entries make room for new ones,
	// about the least used first. The index comes on top of it, when it is
	// needed: half as much again at 64 MiB, as much again at 8 MiB, and 2.8 MB
	// at MinBytes.
	Bytes int
}

// MinBytes is the smallest cache there is. It holds about 7,000 entries.
const MinBytes = 512 << 10

// Cache is a limiter.Backend in front of another one. Its zero value is not
// usable; see New.
type Cache struct {
	next    backend.Backend
	entries *freecache.Cache
	hasher  hasher
	guards  [64]guard
	pool    sync.Pool // of *scratch
	// largePool is of those for many hits.
	largePool sync.Pool
}

// guard keeps an answer that is older than a refund from becoming an entry
// after it. Each watches over a share of the counters.
type guard struct {
	mu        sync.Mutex    // held while an entry is stored or evicted
	evictions atomic.Uint64 // written under mu
	_         [48]byte      // a cache line for each
}

// New returns an empty cache in front of next.
func New(next backend.Backend, cfg Config) *Cache {
	return &Cache{
		next:    next,
		entries: freecache.NewCache(max(cfg.Bytes, MinBytes)),
		hasher:  newHasher(),
		pool:    sync.Pool{New: func() any { return new(scratch) }},

		largePool: sync.Pool{New: func() any { return &scratch{large: true} }},
	}
}

// Stats is what a Cache says of itself. All but Entries and AverageAccessTime
// count since the start.
type Stats struct {
	// Entries counts what is held, ended entries that nobody has met since
	// included.
	Entries int64
	// Hits counts the lookups that found an entry, Misses those that did not,
	// Lookups both. A few hits do not help: the entry's rule has changed.
	Hits, Misses, Lookups int64
	// Overwrites counts the entries that were stored over one of the same
	// counter.
	Overwrites int64
	// Evacuated counts live entries that were moved or dropped to make room,
	// Expired those that were met after their end.
	Evacuated, Expired int64
	// AverageAccessTime is when entries were last used on average, in seconds
	// since the Unix epoch.
	AverageAccessTime int64
}

// Stats reads the cache's figures.
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

// Take answers what the cache knows and sends the rest on in one batch; see
// limiter.Backend. If nothing is known, b itself goes on.
//
// An atomic group is refused if a hit that may veto is known to be over: then
// its other atomic hits go on as looks.
func (c *Cache) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	s := c.scratchFor(len(b.Hits))
	now := instant(b.Now)
	var err error
	if c.judge(s, b, now) {
		s.gather(b)
		if len(s.on.Hits) > 0 {
			err = c.next.Take(ctx, &s.on.Batch)
		}
		s.on.Return(b)
	} else {
		err = c.next.Take(ctx, b)
	}
	if err == nil {
		c.learn(s, b, now)
	}
	c.release(s)
	return err
}

// judge decides the fate of every hit, fills in the verdicts of those that are
// answered here, and says whether there are any.
func (c *Cache) judge(s *scratch, b *backend.Batch, now int64) bool {
	total := 0
	for i := 0; i < len(b.Hits); {
		start, end, known := i, b.GroupEnd(i), 0
		for ; i < end; i++ {
			h := &b.Hits[i]
			m := s.add(c.hasher.id(h), len(b.Hits))
			m.evictions = c.guard(m.id).evictions.Load()
			if m.written = m.before >= 0 && s.marks[m.before].written; m.written {
				continue // it sees what the batch writes before it
			}
			if h.Op == algorithm.Refund || h.Op == algorithm.Force {
				m.written = true
				continue
			}
			if v, ok := c.answer(s, m.id, h, now); ok {
				b.Verdicts[i], m.fate = v, answered
				known++
			}
		}
		if known > 0 && settle(b.Hits[start:end], s.marks[start:end], start) {
			total += known
		}
	}
	return total > 0
}

// answer is the verdict on h if the cache knows that it is over.
func (c *Cache) answer(s *scratch, id id, h *backend.Hit, now int64) (backend.Verdict, bool) {
	s.id = id
	value, err := c.entries.GetWithBuf(s.id[:], s.value[:0])
	if err != nil {
		return backend.Verdict{}, false
	}
	e := decode(value)
	switch {
	case now < e.since:
		return backend.Verdict{}, false // a clock went back
	case now >= e.until || e.rule != c.hasher.rule(h.Limit):
		c.entries.Del(s.id[:])
		return backend.Verdict{}, false
	}
	return e.verdict(h, now)
}

// learn stores what the verdicts of the next store tell, in the order of the
// batch: a refund undoes what was learnt from the hits before it. The store was
// asked at the instant since.
func (c *Cache) learn(s *scratch, b *backend.Batch, since int64) {
	for i := range b.Hits {
		h, m := &b.Hits[i], &s.marks[i]
		m.stored = m.before >= 0 && s.marks[m.before].stored
		if h.Op == algorithm.Refund || h.Op == algorithm.Force {
			c.evict(s, m.id) // also with an Err: it may have been written
			continue
		}
		if m.fate == answered {
			continue
		}
		if e, ok := learnt(h, &b.Verdicts[i], since); ok && instant(b.Now) < e.until {
			e.rule = c.hasher.rule(h.Limit)
			c.store(s, m, e, !b.Now.IsZero())
			m.stored = true
		} else if m.stored {
			c.evict(s, m.id) // of two limits on one counter, the larger one
		}
	}
}

func (c *Cache) guard(id id) *guard { return &c.guards[id[0]%uint8(len(c.guards))] }

// store makes e the counter's entry, unless the counter was written since the
// store was asked.
func (c *Cache) store(s *scratch, m *mark, e entry, virtual bool) {
	s.id = m.id
	e.encode(&s.value)
	g := c.guard(m.id)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.evictions.Load() == m.evictions {
		// It fails for entries that are too large, and this one is small.
		_ = c.entries.Set(s.id[:], s.value[:], e.seconds(virtual))
	}
}

// evict ends the counter's entry, and sees to it that no answer from before
// becomes one.
func (c *Cache) evict(s *scratch, id id) {
	s.id = id
	g := c.guard(id)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.evictions.Add(1)
	c.entries.Del(s.id[:])
}

// instant is now in nanoseconds since the Unix epoch; zero is the clock's.
func instant(now time.Time) int64 {
	if now.IsZero() {
		now = time.Now()
	}
	return now.UnixNano()
}
