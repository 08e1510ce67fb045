// Package memory keeps the counters in this process: the default store, and
// the one for embedding. It is exact under concurrency, needs no goroutine and
// no timer, and keeps to a byte cap.
package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Config says how large a Store may grow.
type Config struct {
	// MaxBytes caps the memory of all counters. A counter takes 32 bytes and
	// the table around it is at most three quarters full; a sliding window
	// takes 40 bytes more, and 16 to 32 for each hit it remembers. At the cap
	// counters are evicted in the order that rank documents; for a moment it may
	// be exceeded by as much as one key takes. A sliding window that alone takes
	// more than half of it is dropped, too, and starts again: with the default that
	// needs ten times the hits that a limit can have. The locks take 64 bytes more
	// for each 32 KiB of the cap. Defaults to 256 MiB; the smallest cap is MinBytes.
	MaxBytes int64
	// Grace is how long a counter outlives its use at least. A clock that steps
	// back further may find it or not. Defaults to DefaultGrace; MaxGrace is the
	// most.
	Grace time.Duration
}

// DefaultMaxBytes is the cap when none is asked for.
const DefaultMaxBytes = 256 << 20

// MinBytes is the smallest cap there is: 16 slots in each shard.
const MinBytes = minShards * 16 * slotBytes

// A shard has a lock and a table. Small tables make every step short: no call
// rebuilds or evicts from more than maxSlots slots at a time. They also leave
// little garbage behind, and each power of two up to maxSlots slots fills an
// allocation of the runtime exactly. With 256 shards the chance that two of 64
// cores meet on one at the same time is small.
const (
	minShards = 256
	maxSlots  = 1024 // 32 KiB, the largest object that the runtime does not round up to pages
)

// shardsFor returns the number of shards of a store with that cap: so many that
// the cap is used up when all tables have maxSlots.
func shardsFor(maxBytes int64) int { return int(max(maxBytes/(maxSlots*slotBytes), minShards)) }

// DefaultGrace lets a request that read the clock just before the edge of a
// window find its counter just after. MaxGrace keeps all instants in the range of
// int64 nanoseconds.
const (
	DefaultGrace = time.Second
	MaxGrace     = 10 * 365 * 24 * time.Hour
)

// Store is a limiter.Backend. Its zero value is not usable; see New.
type Store struct {
	seeds  [2]maphash.Seed
	shards []shard
	budget budget
	groups sync.Pool // of *group

	swept      atomic.Uint32 // shard that was swept last
	reclaiming sync.Mutex
	reclaimer  reclaimer // guarded by reclaiming
}

// New returns an empty store.
func New(cfg Config) (*Store, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.MaxBytes < MinBytes {
		return nil, fmt.Errorf("memory: a cap of %d bytes is below the smallest, %d", cfg.MaxBytes, MinBytes)
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Grace < 0 || cfg.Grace > MaxGrace {
		return nil, fmt.Errorf("memory: a grace of %v is not between 0 and %v", cfg.Grace, MaxGrace)
	}
	s := &Store{
		seeds:  [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		shards: make([]shard, shardsFor(cfg.MaxBytes)),
		groups: sync.Pool{New: func() any { return new(group) }},
	}
	s.budget.max, s.budget.grace, s.budget.shards = cfg.MaxBytes, cfg.Grace, int64(len(s.shards))
	for i := range s.shards {
		s.shards[i].budget = &s.budget
	}
	return s, nil
}

// Stats is what a Store says of itself.
type Stats struct {
	// Keys counts the counters held, expired ones that nobody has swept yet
	// included.
	Keys int64
	// Bytes is the size of all tables and of the logs of sliding windows.
	Bytes int64
	// Evicted counts live counters dropped for want of room, since the start.
	Evicted int64
}

// Stats reads the store's figures, one shard after the other.
func (s *Store) Stats() Stats {
	st := Stats{Bytes: s.Bytes(), Evicted: s.budget.evicted.Load()}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		st.Keys += int64(sh.taken)
		sh.mu.Unlock()
	}
	return st
}

// Bytes returns the size of all tables and of what is beside them, as in Stats,
// and locks nothing.
func (s *Store) Bytes() int64 { return s.budget.total.Load() }

// Take charges every hit of b; see limiter.Backend. It never waits, so ctx is
// not looked at, and no verdict has an Err.
func (s *Store) Take(_ context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	var now int64
	if b.Now.IsZero() {
		now = time.Now().UnixNano()
	} else {
		now = b.Now.UnixNano()
	}
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		if hits := b.Hits[i:end]; backend.AnyAtomic(hits) {
			s.takeGroup(hits, b.Verdicts[i:end], now)
		} else {
			for j := range hits {
				b.Verdicts[i+j] = backend.Verdict{Outcome: s.takeOne(&hits[j], now)}
			}
		}
		i = end
	}
	return nil
}

func (s *Store) takeOne(h *backend.Hit, now int64) algorithm.Outcome {
	id := s.id(h, now)
	sh := s.shard(id)
	sh.mu.Lock()
	v := sh.apply(h, id, now)
	due := v.Charged && sh.due()
	sh.mu.Unlock()
	if due || s.budget.over(0) {
		s.tidy(due, now)
	}
	return v
}

// counterID is what a counter is found under: 92 bits of keyed hash over the key, the
// kind and length of its window, and where the window starts if that is fixed.
// Among 10 million counters two share an id with a probability of about 10^-14.
type counterID struct {
	hash uint64
	tag  uint32 // without form and rank
}

func (s *Store) id(h *backend.Hit, now int64) counterID {
	window := uint64(h.Limit.Period)<<3 + uint64(h.Limit.Kind)
	if h.Limit.Kind == algorithm.FixedWindow {
		start, _ := algorithm.Window(now, h.Limit.Period)
		window += uint64(start) * 0x9E3779B97F4A7C15
	}
	return counterID{
		hash: mix(maphash.Bytes(s.seeds[0], h.Key) ^ mix(window)),
		tag:  uint32(mix(maphash.Bytes(s.seeds[1], h.Key)+mix(window^0xD1B54A32D192ED03))) &^ (formBits | rankBits),
	}
}

// mix is a bijection in which each bit of x moves every bit of the result: the
// finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// shardOf picks by the low half of the hash, and keeps its order; places within a
// shard come from the high bits.
func (s *Store) shardOf(low uint64) *shard { return &s.shards[low*uint64(len(s.shards))>>32] }

func (s *Store) shard(id counterID) *shard { return s.shardOf(id.hash & math.MaxUint32) }
