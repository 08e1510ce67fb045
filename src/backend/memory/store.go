// Package memory keeps the counters in this process: the default store, and
// the one for embedding. It is exact under concurrency, needs no goroutine and
// no timer, and never holds more than its byte cap.
package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
)

// Config says how large a Store may grow.
type Config struct {
	// MaxBytes caps the memory of all counters. A counter takes 32 bytes and
	// the table around it is at most three quarters full. Beyond the cap the
	// counters that have been idle longest are dropped. Defaults to 256 MiB;
	// the smallest cap is MinBytes.
	MaxBytes int64
}

// DefaultMaxBytes is the cap when none is asked for.
const DefaultMaxBytes = 256 << 20

// MinBytes is the smallest cap there is: 16 slots in each shard.
const MinBytes = shardCount * minSlots * slotBytes

// shardCount is the number of locks. With 256 the chance that two of 64 cores
// meet on a shard at the same time is small, and the table of shards 16 KiB.
const shardCount = 256

// grace is how long a window's counter outlives the window, so that a request
// which read the clock just before the edge still finds it just after.
const grace = time.Second

// Store is a limiter.Backend. Its zero value is not usable; see New.
type Store struct {
	seeds   [2]maphash.Seed
	shards  [shardCount]shard
	evicted atomic.Int64
}

// New returns an empty store.
func New(cfg Config) (*Store, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	if cfg.MaxBytes < MinBytes {
		return nil, fmt.Errorf("memory: a cap of %d bytes is below the smallest, %d", cfg.MaxBytes, MinBytes)
	}
	s := &Store{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	for i := range s.shards {
		s.shards[i].maxSlots = int(cfg.MaxBytes / slotBytes / shardCount)
		s.shards[i].evicted = &s.evicted
	}
	return s, nil
}

// Stats is what a Store says of itself.
type Stats struct {
	// Keys counts the counters held, expired ones that nobody has swept yet
	// included.
	Keys int64
	// Bytes is the size of all tables.
	Bytes int64
	// Evicted counts live counters dropped for want of room, since the start.
	Evicted int64
}

// Stats reads the store's figures, one shard after the other.
func (s *Store) Stats() Stats {
	st := Stats{Evicted: s.evicted.Load()}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		st.Keys += int64(sh.taken)
		st.Bytes += int64(len(sh.slots)) * slotBytes
		sh.mu.Unlock()
	}
	return st
}

// Take charges every hit of b; see limiter.Backend. It never waits, so ctx is
// not looked at, and no verdict has an Err.
func (s *Store) Take(_ context.Context, b *algorithm.Batch) error {
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
		if hits := b.Hits[i:end]; algorithm.AnyAtomic(hits) {
			s.takeGroup(hits, b.Verdicts[i:end], now)
		} else {
			for j := range hits {
				b.Verdicts[i+j] = s.takeOne(&hits[j], now)
			}
		}
		i = end
	}
	return nil
}

func (s *Store) takeOne(h *algorithm.Hit, now int64) algorithm.Verdict {
	id := s.id(h, now)
	sh := s.shard(id)
	sh.mu.Lock()
	v := sh.apply(h, id, now)
	sh.mu.Unlock()
	return v
}

// takeGroup charges hits of which at least one is atomic, under the locks of
// all their shards. First it judges as if all would pass, writing nothing: a
// refused group must not make counters that drive out others. If nobody
// refuses, all are charged, else only what is not atomic.
func (s *Store) takeGroup(hits []algorithm.Hit, verdicts []algorithm.Verdict, now int64) {
	var held shardSet
	var few [8]trial
	trials := few[:0]
	for i := range hits {
		id := s.id(&hits[i], now)
		held.add(id)
		trials = append(trials, trial{id: id})
	}
	s.lock(&held)
	defer s.unlock(&held)

	vetoed := false
	for i := range hits {
		count := s.triedCount(trials[:i], trials[i].id, now)
		trials[i].count, verdicts[i] = algorithm.TakeFixed(hits[i].Limit, count, now, hits[i].Op, hits[i].Amount)
		vetoed = vetoed || verdicts[i].Over && !hits[i].NoVeto
	}
	for i := range hits {
		h, id := &hits[i], trials[i].id
		if !vetoed || !h.Atomic {
			verdicts[i] = s.shard(id).apply(h, id, now)
			continue
		}
		_, look := algorithm.TakeFixed(h.Limit, s.shard(id).count(id, now), now, algorithm.Look, h.AsLook().Amount)
		verdicts[i] = algorithm.Uncharged(look, verdicts[i])
	}
}

// trial is a counter as it would be after a hit of a group.
type trial struct {
	id    id
	count uint64
}

// triedCount is the count of id after the trials before it.
func (s *Store) triedCount(before []trial, id id, now int64) uint64 {
	for i := len(before) - 1; i >= 0; i-- {
		if before[i].id == id {
			return before[i].count
		}
	}
	return s.shard(id).count(id, now)
}

// id is what a counter is found under: 95 bits of keyed hash over the key, the
// kind and length of its window, and where the window starts. Among 10 million
// counters two share an id with a probability of about 10^-15.
type id struct {
	hash uint64
	tag  uint32 // never 0
}

func (s *Store) id(h *algorithm.Hit, now int64) id {
	start, _ := algorithm.Window(now, h.Limit.Period)
	window := uint64(start)*0x9E3779B97F4A7C15 + uint64(h.Limit.Period)<<3 + uint64(h.Limit.Kind)
	return id{
		hash: mix(maphash.Bytes(s.seeds[0], h.Key) ^ mix(window)),
		tag:  uint32(mix(maphash.Bytes(s.seeds[1], h.Key)+mix(window^0xD1B54A32D192ED03))) | 1,
	}
}

// mix is a bijection in which each bit of x moves every bit of the result: the
// finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// shard picks by the low bits of the hash; places within a shard come from the
// high ones.
func (s *Store) shard(id id) *shard { return &s.shards[id.hash%shardCount] }

// shardSet is a set of shards, locked in one order by everybody.
type shardSet [shardCount / 64]uint64

func (set *shardSet) add(id id) {
	n := id.hash % shardCount
	set[n/64] |= 1 << (n % 64)
}

func (s *Store) lock(set *shardSet) { s.each(set, func(sh *shard) { sh.mu.Lock() }) }

func (s *Store) unlock(set *shardSet) { s.each(set, func(sh *shard) { sh.mu.Unlock() }) }

func (s *Store) each(set *shardSet, do func(*shard)) {
	for i, word := range set {
		for ; word != 0; word &= word - 1 {
			do(&s.shards[i*64+bits.TrailingZeros64(word)])
		}
	}
}
