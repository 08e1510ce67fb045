// Package memory keeps counters in this process. It is exact under concurrency, needs no
// goroutine or timer, and stays within a byte cap.
package memory

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/siphash"
)

// Config configures a Store.
type Config struct {
	// MaxBytes caps the memory of all counters. A counter takes 32 bytes in a table that is at most four fifths full. A
	// sliding window takes 40 bytes more, and 16 to 32 for each hit. A counter with holds takes 232 bytes more, and what
	// HoldSet documents. At the cap counters are evicted in the order that rank documents; for a moment the cap may be
	// exceeded by the size of one key. A sliding window or a counter with holds that takes more than half of it is
	// dropped, too. Locks take 64 bytes more for each 128 KiB of the cap, and 144 with names. Defaults to DefaultMaxBytes;
	// the smallest cap is MinBytes.
	MaxBytes int64
	// ExpiryGrace is for how long an expired counter is kept at least. A clock that is set back further may or may not
	// find it. Defaults to a second: enough for a request that reads the clock just before the edge of a window and gets
	// the lock just after it. At most MaxExpiryGrace.
	ExpiryGrace time.Duration
	// KeepNames keeps the names of counters for ResetPrefixes and for snapshots. The name of a counter takes what its
	// key does not share with others of its rule and some 8 bytes. Names that are no longer needed take up to as much
	// again.
	KeepNames bool
}

// DefaultMaxBytes is the default of Config.MaxBytes.
const DefaultMaxBytes = 256 << 20

// MinBytes is the smallest cap: 16 slots in each shard.
const MinBytes = minShards * 16 * slotBytes

// A shard has a lock and a table. No call rebuilds or evicts from more than maxTableSlots slots at a time, so each call
// is short and leaves little garbage. With 256 shards two of 64 cores rarely need the same lock at the same time.
const (
	minShards     = 256
	maxTableSlots = 4096 // 128 KiB. With millions of counters most tables are larger than a page; see roundToBlock.
)

// MaxExpiryGrace keeps all instants in the range of int64 nanoseconds.
const MaxExpiryGrace = 10 * 365 * 24 * time.Hour

// Store is a backend.Backend. Its zero value is not usable; see New.
type Store struct {
	// hashKey is secret, so that a caller cannot choose keys whose hashes collide, or that fill one shard. It must not
	// change while there are counters.
	hashKey        siphash.Key
	shards         []shard
	budget         memoryBudget
	groupScratches sync.Pool // contains *groupScratch.

	sweptShardCount atomic.Uint32 // counts the shards that were swept. They are visited in turn.
	dueSlots        atomic.Int64  // how many slots the next sweep must check. It is negative after a large shard.
	reclaimMu       sync.Mutex
	reclaimState    reclaimState // guarded by reclaimMu.
}

// New returns an empty store.
func New(cfg Config) (*Store, error) {
	cfg.MaxBytes, cfg.ExpiryGrace = cmp.Or(cfg.MaxBytes, DefaultMaxBytes), cmp.Or(cfg.ExpiryGrace, time.Second)
	if cfg.ExpiryGrace < 0 || cfg.ExpiryGrace > MaxExpiryGrace {
		return nil, fmt.Errorf("memory: a grace of %v is not between 0 and %v", cfg.ExpiryGrace, MaxExpiryGrace)
	}
	if cfg.MaxBytes < MinBytes {
		return nil, fmt.Errorf("memory: a cap of %d bytes is below the smallest, %d", cfg.MaxBytes, MinBytes)
	}
	s := &Store{
		hashKey: siphash.RandomKey(),
		// as many as there is memory for full tables
		shards:         make([]shard, max(cfg.MaxBytes/(maxTableSlots*slotBytes), minShards)),
		groupScratches: sync.Pool{New: func() any { return new(groupScratch) }},
	}
	s.budget.maxBytes, s.budget.graceNanos, s.budget.numShards = cfg.MaxBytes, int64(cfg.ExpiryGrace), int64(len(s.shards))
	s.budget.nameOrders.New = func() any { return new(nameOrder) }
	for i := range s.shards {
		// Different counts spread the sweeps evenly from the start.
		s.shards[i].budget, s.shards[i].writeCount = &s.budget, uint8(i)
		if cfg.KeepNames {
			s.shards[i].names = new(nameLog)
		}
	}
	return s, nil
}

// Stats holds the figures of a Store.
type Stats struct {
	// Keys counts the counters, including expired ones that were not swept yet.
	Keys int64
	// Bytes is the size of all tables, of their overflows and of the names.
	Bytes int64
	// EvictedKeys counts the live counters dropped for lack of room since the start.
	EvictedKeys int64
}

// Stats returns the current figures. It locks one shard after the other.
func (s *Store) Stats() Stats {
	st := Stats{Bytes: s.Bytes(), EvictedKeys: s.budget.evictedCounters.Load()}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		st.Keys += int64(sh.takenSlots)
		sh.mu.Unlock()
	}
	return st
}

// Bytes returns Stats.Bytes without locking.
func (s *Store) Bytes() int64 { return s.budget.usedBytes.Load() }

// Take charges every hit of b; see backend.Backend. It never waits, so it ignores ctx, and no verdict has an Err.
func (s *Store) Take(_ context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	now := b.UnixNano()
	b.DecidedAt = now
	if !b.Now.IsZero() && !s.budget.usesVirtualTime.Load() {
		s.budget.usesVirtualTime.Store(true)
	}
	if !backend.AnyAtomic(b.Hits) {
		s.takeHits(b.Hits, b.Verdicts, now)
		return nil
	}
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		if hits := b.Hits[i:end]; backend.AnyAtomic(hits) {
			s.takeGroup(hits, b.Verdicts[i:end], now)
		} else {
			s.takeHits(hits, b.Verdicts[i:end], now)
		}
		i = end
	}
	return nil
}

// takeHits charges hits of which none is atomic. The counters of a large store are rarely in the processor's cache, so
// takeHits prefetches those of several hits at a time, instead of waiting for one after the other.
func (s *Store) takeHits(hits []backend.Hit, verdicts []backend.Verdict, now int64) {
	if len(hits) == 1 {
		verdicts[0] = backend.Verdict{Outcome: s.takeHit(&hits[0], s.counterIDOf(&hits[0], now), now)}
		return
	}
	var ids [prefetchedHits]counterID
	for len(hits) > 0 {
		n := min(len(hits), len(ids))
		for i := range n {
			ids[i] = s.counterIDOf(&hits[i], now)
			prefetchShard(s.shardOf(ids[i].hash & math.MaxUint32))
		}
		for i := range n {
			prefetchSlot(s.shardOf(ids[i].hash&math.MaxUint32), ids[i].hash)
		}
		for i := range n {
			verdicts[i] = backend.Verdict{Outcome: s.takeHit(&hits[i], ids[i], now)}
		}
		hits, verdicts = hits[n:], verdicts[n:]
	}
}

// prefetchedHits is how many counters are prefetched at a time: what stays in the nearest cache.
const prefetchedHits = 32

func (s *Store) takeHit(h *backend.Hit, id counterID, now int64) algorithm.Outcome {
	sh := s.shardOf(id.hash & math.MaxUint32)
	sh.mu.Lock()
	v := sh.applyHit(h, id, now)
	sweep := v.Charged && sh.countWrite()
	sh.mu.Unlock()
	if sweep || s.budget.isExceeded(0) {
		s.freeMemory(sweep, now)
	}
	return v
}

// counterID identifies a counter: 91 bits of keyed hash over the key, the kind, period and calendar of its window, and
// the start of a fixed window. A counter with holds has one id in all windows, since holds outlive them. Two of 10
// million counters share an id with a probability of about 10^-14.
type counterID struct {
	hash uint64
	tag  uint32 // slot.tagFormRank without the form and the rank.
}

func (s *Store) counterIDOf(h *backend.Hit, now int64) counterID {
	w := h.Limit.Window()
	window := uint64(w.Period)<<3 + uint64(w.Kind) + w.CalendarID
	switch {
	case w.IsHeld:
		window = ^window // Periods are whole microseconds, so no id of another limit has these low bits.
	case w.Kind == algorithm.FixedWindow:
		start, _ := h.Limit.WindowBounds(now)
		window += uint64(start) * 0x9E3779B97F4A7C15
	}
	hash, tag := s.hashKey.Sum128(window, h.Key)
	return counterID{hash, uint32(tag) &^ (formMask | rankMask)}
}

// shardOf returns the shard for the low half of a hash. The larger the half, the later the shard.
// The slot in the shard depends on the high half.
func (s *Store) shardOf(low uint64) *shard { return &s.shards[low*uint64(len(s.shards))>>32] }
