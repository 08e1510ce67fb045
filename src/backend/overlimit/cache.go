// Package overlimit stands in front of a remote store, and refuses hits on full counters without
// asking the store. A counter is full for as long as, by the store's last verdict, not even one unit passes.
//
// Hits that the cache refuses are not counted. So with CountBlocked a count stops growing once it exceeds the limit,
// and a refund makes room sooner. It caches nothing of sliding window counters, of limits with a MinInterval, or of
// limits with CountBlocked other than fixed windows; see newEntry.
//
// A refund or a forced hit through this cache drops the counter's entry. If another replica
// sends the refund, the entry lives on to its end, which is at most one window later. A change
// by an operator clears the cache of every replica; see Clear.
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
	nextStore      backend.Backend
	entries        *freecache.Cache
	idHasher       idHasher
	evictionGuards [numGuards]evictionGuard
	generation     atomic.Uint64 // counts calls of Clear. Entries of an earlier generation are invalid.
	// largeBatchPool is for large batches, so that the many small batches that may wait for the
	// next store do not hold large scratches.
	smallBatchPool, largeBatchPool scratchPool
}

// numGuards is the number of evictionGuards of a Cache.
const numGuards = 64

// evictionGuard prevents that a verdict from before a refund becomes an entry after it. Each guard serves a 64th of the
// counters.
type evictionGuard struct {
	mu            sync.Mutex    // is held while an entry is stored or evicted
	evictionCount atomic.Uint64 // counts evictions. It is written only while mu is held.
	_             [48]byte      // The padding makes a guard as large as a cache line.
}

// New returns an empty cache in front of next. bytes is the memory for entries, at least MinBytes, which is allocated
// at once. An entry takes 72 bytes, and that of a first-hit window 80. When the memory is used up, new entries replace
// about the least used. The index takes more memory: half of bytes at 64 MiB, as much as bytes at 8 MiB, and 2.8 MB at
// MinBytes.
func New(next backend.Backend, bytes int) *Cache {
	return &Cache{
		nextStore:      next,
		entries:        freecache.NewCache(max(bytes, MinBytes)),
		idHasher:       newIDHasher(),
		smallBatchPool: newScratchPool(2 * smallBatchHits),
		largeBatchPool: newScratchPool(backend.MaxPooledHits),
	}
}

// Stats holds the figures of a Cache. All but Entries and AverageAccessTime count since the start.
type Stats struct {
	// Entries counts the entries, including ended ones that were not looked up since.
	Entries int64
	// Hits counts the lookups that found an entry, Misses the others, Lookups both. An
	// entry that was found may be of an old rule.
	Hits, Misses, Lookups int64
	// Overwrites counts the entries that replaced one of the same counter.
	Overwrites int64
	// Evacuated counts live entries that were moved or dropped to make room. Expired
	// counts entries that were looked up after their end.
	Evacuated, Expired int64
	// AverageAccessTime is when entries were last used on average, in seconds since the Unix epoch.
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

// Take refuses the hits on counters that the cache knows to be full, and sends the others on in
// one batch; see backend.Backend. If it refuses none, it sends b itself.
//
// If a hit that it refuses refuses its atomic group, it sends the other atomic hits of the group as looks.
func (c *Cache) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	pool := &c.smallBatchPool
	if len(b.Hits) > smallBatchHits {
		pool = &c.largeBatchPool
	}
	s := pool.Get().(*scratch)
	defer pool.release(s)
	now := b.UnixNano()
	b.DecidedAt = now
	err := error(nil)
	if c.refuseFullCounters(s, b, now) {
		for i := range b.Hits {
			if action := s.lookups[i].action; action != actionRefuse {
				s.forwardedHits.Add(b, i, action == actionForwardAsLook)
			}
		}
		err = s.forwardedHits.Send(ctx, c.nextStore, b)
	} else {
		err = c.nextStore.Take(ctx, b)
	}
	if err == nil {
		c.storeEntries(s, b, now)
	}
	return err
}

// refuseFullCounters sets the verdicts of the hits that entries refuse, and reports whether there are any.
func (c *Cache) refuseFullCounters(s *scratch, b *backend.Batch, now int64) (any bool) {
	for i := 0; i < len(b.Hits); {
		start, end, refused := i, b.GroupEnd(i), false
		for ; i < end; i++ {
			h := &b.Hits[i]
			l := s.addLookup(c.idHasher.counterIDOf(h), len(b.Hits))
			l.evictionsBefore = c.guardOf(l.id).evictionCount.Load()
			l.counterWritten = !h.Op.CanBeRefused() ||
				l.previousLookup >= 0 && s.lookups[l.previousLookup].counterWritten
			if l.counterWritten {
				continue // the store must decide a hit on a counter that the batch has written
			}
			if v, ok := c.findRefusal(s, l.id, h, now); ok {
				b.Verdicts[i], l.action, refused = v, actionRefuse, true
			}
		}
		any = refused && setGroupActions(b.Hits[start:end], s.lookups[start:end], start) || any
	}
	return any
}

// findRefusal returns the verdict on h if an entry refuses it.
func (c *Cache) findRefusal(s *scratch, id counterID, h *backend.Hit, now int64) (v backend.Verdict, ok bool) {
	s.idBuffer = id
	value, err := c.entries.GetWithBuf(s.idBuffer[:], s.entryBuffer[:0])
	if err != nil {
		return v, false
	}
	e := decodeEntry(value)
	switch {
	// Before validSince, a clock was set back.
	case now < e.validSince, now >= e.validUntil, e.ruleHash != c.ruleHash(h):
		c.entries.Del(s.idBuffer[:])
		return v, false
	}
	return e.verdict(h, now)
}

// storeEntries makes entries from the verdicts of the next store, in the order of the batch: a
// refund drops the entries that the hits before it made. since is when the store was asked.
func (c *Cache) storeEntries(s *scratch, b *backend.Batch, since int64) {
	for i := range b.Hits {
		h, l := &b.Hits[i], &s.lookups[i]
		l.entryStored = l.previousLookup >= 0 && s.lookups[l.previousLookup].entryStored
		if !h.Op.CanBeRefused() {
			c.evictEntry(s, l.id) // even if the verdict has an Err, since the store may have written the counter
			continue
		}
		if l.action == actionRefuse {
			continue
		}
		if e, ok := newEntry(h, &b.Verdicts[i], since); ok && b.UnixNano() < e.validUntil {
			e.ruleHash = c.ruleHash(h)
			c.storeEntry(s, l, e, !b.Now.IsZero())
			l.entryStored = true
		} else if l.entryStored {
			c.evictEntry(s, l.id) // another rule with a larger limit uses this counter, too
		}
	}
}

// ruleHash returns the ruleHash of an entry of this generation for a counter with h's limit.
func (c *Cache) ruleHash(h *backend.Hit) uint64 {
	return c.idHasher.ruleHash(h.Limit) + c.generation.Load()
}

func (c *Cache) guardOf(id counterID) *evictionGuard { return &c.evictionGuards[guardIndex(id)] }

func guardIndex(id counterID) uint8 { return id[0] % numGuards }

// storeEntry stores e, unless another batch has made the counter's guard evict an entry since the store was asked. The
// evictions of this batch do not matter, because they happen in the order of its hits.
func (c *Cache) storeEntry(s *scratch, l *hitLookup, e cacheEntry, virtualTime bool) {
	s.idBuffer = l.id
	value := e.encode(&s.entryBuffer)
	g := c.guardOf(l.id)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.evictionCount.Load() == l.evictionsBefore+s.ownEvictions[guardIndex(l.id)] {
		// Set fails only for large entries
		_ = c.entries.Set(s.idBuffer[:], value, e.expirySeconds(virtualTime))
	}
}

// evictEntry drops the counter's entry.
func (c *Cache) evictEntry(s *scratch, id counterID) {
	s.idBuffer = id
	g := c.guardOf(id)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.evictionCount.Add(1)
	s.ownEvictions[guardIndex(id)]++
	s.hasEvicted = true
	c.entries.Del(s.idBuffer[:])
}

// Clear makes all entries invalid. A verdict of the next store on a question from before Clear does not become a valid
// entry. Callers change the counters in the store first, and then call Clear.
func (c *Cache) Clear() {
	for i := range c.evictionGuards {
		g := &c.evictionGuards[i]
		g.mu.Lock()
		g.evictionCount.Add(1)
		g.mu.Unlock()
	}
	// This comes second: an entry that has the new generation although its question is older is now refused by its
	// guard.
	c.generation.Add(1)
}

// SetCounts changes the counters in the next store and clears the cache; see backend.Editor. It drops all, because a
// counter may have an entry for each rule that uses it.
func (c *Cache) SetCounts(ctx context.Context, b *backend.Batch) error {
	defer c.Clear() // After an error, some counters may have been changed.
	return backend.EditorOf(c.nextStore).SetCounts(ctx, b)
}

// ResetPrefixes resets the counters in the next store and clears the cache; see backend.Editor.
func (c *Cache) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func(names [][]byte),
) error {
	if !dryRun {
		defer c.Clear()
	}
	return backend.EditorOf(c.nextStore).ResetPrefixes(ctx, prefixes, dryRun, found)
}
