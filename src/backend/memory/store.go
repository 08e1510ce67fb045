// Package memory keeps counters in this process. It is exact under concurrency, needs no
// goroutine or timer, and stays within a byte cap.
package memory

import (
	"cmp"
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

// Config configures a Store.
type Config struct {
	// MaxBytes caps the memory of all counters. A counter takes 32 bytes in a table that is
	// at most three quarters full. A sliding window takes 40 bytes more, and 16 to 32 for
	// each hit. At the cap counters are evicted in the order that rank documents; for a
	// moment the cap may be exceeded by the size of one key. A sliding window that takes
	// more than half of it is dropped, too. Locks take 64 bytes more for each 32 KiB of the
	// cap. Defaults to DefaultMaxBytes; the smallest cap is MinBytes.
	MaxBytes int64
	// Grace is for how long an expired counter is kept at least. A clock that is set back
	// further may or may not find it. Defaults to a second: enough for a request that reads
	// the clock just before the edge of a window and gets the lock just after it. At most
	// MaxGrace.
	Grace time.Duration
}

// DefaultMaxBytes is the default of Config.MaxBytes.
const DefaultMaxBytes = 256 << 20

// MinBytes is the smallest cap: 16 slots in each shard.
const MinBytes = minShards * 16 * slotBytes

// A shard has a lock and a table. Small tables keep each step short: no call rebuilds or
// evicts from more than maxSlots slots at a time, which leaves little garbage. With 256
// shards two of 64 cores rarely need the same lock at the same time.
const (
	minShards = 256
	maxSlots  = 1024 // 32 KiB, the largest object that the runtime does not round up to pages
)

// MaxGrace keeps all instants in the range of int64 nanoseconds.
const MaxGrace = 10 * 365 * 24 * time.Hour

// Store is a backend.Backend. Its zero value is not usable; see New.
type Store struct {
	seeds  [2]maphash.Seed
	shards []shard
	budget budget
	groups sync.Pool // of *group

	swept      atomic.Uint32 // the shard that was swept last
	reclaiming sync.Mutex
	reclaimer  reclaimer // guarded by reclaiming
}

// New returns an empty store.
func New(cfg Config) (*Store, error) {
	cfg.MaxBytes, cfg.Grace = cmp.Or(cfg.MaxBytes, DefaultMaxBytes), cmp.Or(cfg.Grace, time.Second)
	if cfg.Grace < 0 || cfg.Grace > MaxGrace {
		return nil, fmt.Errorf("memory: a grace of %v is not between 0 and %v", cfg.Grace, MaxGrace)
	}
	if cfg.MaxBytes < MinBytes {
		return nil, fmt.Errorf("memory: a cap of %d bytes is below the smallest, %d", cfg.MaxBytes, MinBytes)
	}
	s := &Store{
		seeds:  [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		shards: make([]shard, max(cfg.MaxBytes/(maxSlots*slotBytes), minShards)), // as many full tables as fit
		groups: sync.Pool{New: func() any { return new(group) }},
	}
	s.budget.max, s.budget.grace, s.budget.shards = cfg.MaxBytes, int64(cfg.Grace), int64(len(s.shards))
	for i := range s.shards {
		s.shards[i].budget = &s.budget
	}
	return s, nil
}

// Stats holds the figures of a Store.
type Stats struct {
	// Keys counts the counters held, including expired ones that were not swept yet.
	Keys int64
	// Bytes is the size of all tables and of their overflows.
	Bytes int64
	// Evicted counts the live counters dropped for lack of room since the start.
	Evicted int64
}

// Stats returns the current figures. It locks one shard after the other.
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

// Bytes returns Stats.Bytes without locking.
func (s *Store) Bytes() int64 { return s.budget.total.Load() }

// Take charges every hit of b; see backend.Backend. It never waits, so it ignores ctx, and no
// verdict has an Err.
func (s *Store) Take(_ context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	now := b.UnixNano()
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
	sh := s.shardOf(id.hash & math.MaxUint32)
	sh.mu.Lock()
	v := sh.apply(h, id, now)
	due := v.Charged && sh.sweepDue()
	sh.mu.Unlock()
	if due || s.budget.exceeded(0) {
		s.tidy(due, now)
	}
	return v
}

// counterID identifies a counter: 92 bits of keyed hash over the key, the kind and period of
// its window, and the start of a fixed window. Two of 10 million counters share an id with a
// probability of about 10^-14.
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

// mix is the finalizer of SplitMix64, a bijection in which each bit of x affects every bit of
// the result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// shardOf returns the shard for the low half of a hash. Larger halves have later shards. The
// place within a shard depends on the high half.
func (s *Store) shardOf(low uint64) *shard { return &s.shards[low*uint64(len(s.shards))>>32] }
