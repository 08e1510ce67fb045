// Package memory keeps the counters in this process: the default store, and
// the one for embedding. It is exact under concurrency, needs no goroutine and
// no timer, and keeps to a byte cap.
package memory

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
)

// Config says how large a Store may grow.
type Config struct {
	// MaxBytes caps the memory of all counters. A counter takes 32 bytes and
	// the table around it is at most three quarters full; a sliding window
	// takes 40 bytes more, and 16 to 32 for each hit it remembers. Beyond the cap
	// the counters that have been idle longest are dropped; for a moment it may
	// be exceeded by as much as one key takes. A sliding window that alone takes
	// more than half of it is dropped, too, and begins anew: with the default that
	// needs ten times the hits that a limit can have. Defaults to 256 MiB; the
	// smallest cap is MinBytes.
	MaxBytes int64
	// Grace is how long a counter outlives its use at least. A clock that steps
	// back further may find it or not. Defaults to DefaultGrace; MaxGrace is the
	// most.
	Grace time.Duration
}

// DefaultMaxBytes is the cap when none is asked for.
const DefaultMaxBytes = 256 << 20

// MinBytes is the smallest cap there is: 16 slots in each shard.
const MinBytes = shardCount * minSlots * slotBytes

// shardCount is the number of locks. With 256 the chance that two of 64 cores
// meet on a shard at the same time is small, and the table of shards 16 KiB.
const shardCount = 256

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
	shards [shardCount]shard
	budget budget

	swept      atomic.Uint32 // shard that was swept last
	reclaiming sync.Mutex
	next       uint // shard to give memory back; guarded by reclaiming
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
	s := &Store{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
	s.budget.max, s.budget.grace = cfg.MaxBytes, cfg.Grace
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
	st := Stats{Bytes: s.budget.total.Load(), Evicted: s.budget.evicted.Load()}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		st.Keys += int64(sh.taken)
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
	due := v.Charged && sh.due()
	sh.mu.Unlock()
	if due || s.budget.over(0) {
		s.tidy(due, now)
	}
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
	due := s.shard(trials[0].id).due()
	vetoed := false
	for i := range hits {
		verdicts[i] = s.try(hits, trials, i, now)
		vetoed = vetoed || verdicts[i].Over && !hits[i].NoVeto
	}
	for i := range hits {
		h, id := &hits[i], trials[i].id
		if !vetoed || !h.Atomic {
			verdicts[i] = s.shard(id).apply(h, id, now)
		} else {
			verdicts[i] = algorithm.Uncharged(s.shard(id).refuse(h, id, now), verdicts[i])
		}
	}
	s.unlock(&held)
	s.tidy(due, now)
}

// trial is a counter as it would be after a hit of a group.
type trial struct {
	id    id
	state state
}

// try judges hit i of a group as if those before it had been charged.
func (s *Store) try(hits []algorithm.Hit, trials []trial, i int, now int64) algorithm.Verdict {
	h, t := &hits[i], &trials[i]
	if before := last(trials[:i], t.id); before >= 0 {
		t.state = trials[before].state // also its log, which is a clone
		return t.state.take(h.Limit, now, h.Op, h.Amount)
	}
	t.state = s.shard(t.id).state(h.Limit, t.id, now)
	if h.Limit.Kind != algorithm.SlidingWindow {
		return t.state.take(h.Limit, now, h.Op, h.Amount)
	}
	if last(trials[i+1:], t.id) >= 0 {
		log := new(algorithm.Log)
		if t.state.log != nil {
			*log = t.state.log.Clone()
		}
		t.state.log = log
		return t.state.take(h.Limit, now, h.Op, h.Amount)
	}
	// Nobody asks what would become of the log, which may be long. Whether the
	// hit is over a look tells as well.
	if h.Op == algorithm.Refund || h.Op == algorithm.Force {
		return algorithm.Verdict{}
	}
	return t.state.take(h.Limit, now, algorithm.Look, h.Amount)
}

// last is the index of the last trial on id, -1 if there is none.
func last(trials []trial, id id) int {
	for i := len(trials) - 1; i >= 0; i-- {
		if trials[i].id == id {
			return i
		}
	}
	return -1
}

// id is what a counter is found under: 94 bits of keyed hash over the key, the
// kind and length of its window, and where the window starts if that is fixed.
// Among 10 million counters two share an id with a probability of about 10^-15.
type id struct {
	hash uint64
	tag  uint32 // without the form
}

func (s *Store) id(h *algorithm.Hit, now int64) id {
	window := uint64(h.Limit.Period)<<3 + uint64(h.Limit.Kind)
	if h.Limit.Kind == algorithm.FixedWindow {
		start, _ := algorithm.Window(now, h.Limit.Period)
		window += uint64(start) * 0x9E3779B97F4A7C15
	}
	return id{
		hash: mix(maphash.Bytes(s.seeds[0], h.Key) ^ mix(window)),
		tag:  uint32(mix(maphash.Bytes(s.seeds[1], h.Key)+mix(window^0xD1B54A32D192ED03))) &^ formBits,
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
