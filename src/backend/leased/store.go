package leased

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Config configures a Store.
type Config struct {
	// Next is the store that replicas share; see also backend.Hit.Window.
	Next backend.Backend
	// Replicas returns how many processes share Next, at least 1.
	Replicas func() int
	// Tell tells the other replicas which counters are contended, by calling their Heard with text. Nil: nobody is told,
	// and replicas keep their units until they expire.
	Tell func(ctx context.Context, text []byte) error
	// MaxBytes caps the memory of leases and of their limits. Defaults to DefaultMaxBytes. Counters without room for a
	// lease are counted exactly. Less than 700,000 bytes have no room for any.
	MaxBytes int
	// Now returns the time on both clocks; for tests. Defaults to the clocks of this process.
	Now func() (wall time.Time, sinceStart time.Duration)
}

// DefaultMaxBytes is room for about 700,000 leases with keys of 14 bytes.
const DefaultMaxBytes = 64 << 20

// Store is a backend.Backend in front of another one. Its zero value is not usable; see New.
type Store struct {
	cfg         Config
	started     time.Time
	seeds       hashSeeds
	shards      [numShards]shard
	limits      limitTable
	scratchPool sync.Pool // contains *scratch

	refills   chan refill
	ahead     aheadReplies
	returns   returnQueue
	contended contendedLeases
	figures   figures
	uses      uses
	wake      chan struct{} // wakes Run, to tell or to give back at once
	sleep     func(ctx context.Context, d time.Duration) bool
}

// New returns a store in front of cfg.Next without leases. Run takes and gives back units.
func New(cfg Config) *Store {
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = DefaultMaxBytes
	}
	s := &Store{
		cfg: cfg, started: time.Now(), seeds: hashSeeds{maphash.MakeSeed(), maphash.MakeSeed()},
		refills: make(chan refill, maxRefills), wake: make(chan struct{}, 1), sleep: sleep,
	}
	s.scratchPool.New = func() any { return new(scratch) }
	s.limits.init()
	for i := range s.shards {
		s.shards[i].limits = &s.limits
		s.shards[i].tables.Store(new(tables))
	}
	return s
}

// now returns the time on both clocks.
func (s *Store) now() instant {
	if s.cfg.Now != nil {
		wall, since := s.cfg.Now()
		return instant{wall.UnixNano(), int64(since) + 1}
	}
	t := time.Now()
	return instant{t.UnixNano(), int64(t.Sub(s.started)) + 1}
}

// tick is the time in which a replica gives back what it did not need in the one before.
const tick = 100 * time.Millisecond

func tickOf(t instant) uint32 { return uint32(t.mono / int64(tick)) }

// replicas returns how many processes share the store.
func (s *Store) replicas() int { return max(s.cfg.Replicas(), 1) }

// scratch is the memory of one Take.
type scratch struct {
	forwarded backend.SubBatch // the hits that go to the store
	asks      []ask            // of forwarded hits
	reserved  []reservation    // units for hits of groups that the store must decide, too
	places    places
	locked    *shard // the shard of the last hit, while takeGroups decides; nil if none is locked
	retried   []int  // the indexes of the hits that are sent again
}

// lock locks sh, and unlocks the shard that was locked before. Neighbouring hits of one shard need one lock.
func (t *scratch) lock(sh *shard) {
	if t.locked == sh {
		return
	}
	t.unlock()
	sh.mu.Lock()
	t.locked = sh
}

func (t *scratch) unlock() {
	if t.locked != nil {
		t.locked.mu.Unlock()
		t.locked = nil
	}
}

// ask is a leased hit that goes to the store.
type ask struct {
	hit    int    // the index in the batch
	amount uint64 // the units that the store is asked for, at least those of the hit
	ref    ref    // without a shard if there is no room for a lease
	// asLook says that the store is asked whether the hit would pass: the last reply said that nothing is left, and a
	// refused hit must not count, so that units that other replicas give back can be used.
	asLook bool
}

// isOfMore reports whether the store decides on more units than those of h, all or none.
func (a *ask) isOfMore(h *backend.Hit) bool { return a.amount > h.Amount && !h.Limit.CountBlocked }

// reservation is a hit that was decided here, before the store has decided its group.
type reservation struct {
	hit       int
	ref       ref
	windowEnd int64 // the Outcome.WindowEnd of its units
	end       int64 // the state.end of its units
}

// maxPooledHits is the most hits for which a pooled scratch keeps memory.
const maxPooledHits = 256

func (s *Store) release(t *scratch) {
	clear(t.asks)
	clear(t.reserved)
	t.asks, t.reserved, t.retried = t.asks[:0], t.reserved[:0], t.retried[:0]
	if t.forwarded.Reset(maxPooledHits) && cap(t.asks) <= maxPooledHits && cap(t.reserved) <= maxPooledHits {
		s.scratchPool.Put(t)
	}
}

// Take decides the leased hits of b for which this replica holds the units, and sends the others to the store in one
// batch; see backend.Backend. Batches in virtual time have no leases.
func (s *Store) Take(ctx context.Context, b *backend.Batch) error {
	if !b.Now.IsZero() || !anyLeased(b.Hits) {
		return s.cfg.Next.Take(ctx, b)
	}
	if err := b.Validate(); err != nil {
		return err
	}
	t := s.scratchPool.Get().(*scratch)
	defer s.release(t)
	now := s.now()
	b.DecidedAt = now.wall
	s.takeGroups(b, t, now)
	if len(t.forwarded.Hits) == 0 {
		return nil
	}
	s.figures.sent.Add(uint64(len(t.asks)))
	if err := t.forwarded.Send(ctx, s.cfg.Next, b); err != nil {
		s.stopAsking(t)
		return err
	}
	if until := s.learnAll(b, t, now, true); len(t.retried) > 0 {
		return s.retry(ctx, b, t, until)
	}
	return nil
}

// takeGroups decides the leased hits of b for which this replica holds the units, and adds the others to t.
func (s *Store) takeGroups(b *backend.Batch, t *scratch, now instant) {
	t.places.located = 0
	defer t.unlock()
	tickNow := tickOf(now)
	for i := 0; i < len(b.Hits); {
		i = s.takeGroup(b, t, i, now, tickNow)
	}
}

func anyLeased(hits []backend.Hit) bool {
	for i := range hits {
		if hits[i].Counting == backend.Leased {
			return true
		}
	}
	return false
}

// canLease reports whether units for h can be taken ahead.
func canLease(h *backend.Hit) bool {
	return h.Counting == backend.Leased && len(h.Key) <= maxKeyBytes && !h.StoresRemaining && h.Limit.CanLease()
}

// takeGroup decides the hits of the group that begins with hit i, or adds them to those that go to the store. It
// returns the index behind the group.
func (s *Store) takeGroup(b *backend.Batch, t *scratch, i int, now instant, tickNow uint32) (end int) {
	end = b.GroupEnd(i)
	forwarded, isGroup := len(t.forwarded.Hits), end > i+1 && backend.AnyAtomic(b.Hits[i:end])
	first := len(t.reserved)
	for ; i < end; i++ {
		if i%placesAhead == 0 {
			t.unlock()
		}
		h, p := &b.Hits[i], t.places.of(s, b.Hits, i)
		if !p.isLeased {
			t.forwarded.Add(b, i, false)
			continue
		}
		sh := &s.shards[p.hash.shard]
		t.lock(sh)
		a := s.serve(sh, h, &b.Verdicts[i], p, now, tickNow, !isGroup)
		a.hit = i
		if a.amount != served {
			t.forwarded.Add(b, i, false)
			asked := &t.forwarded.Hits[len(t.forwarded.Hits)-1]
			if asked.Amount = a.amount; a.asLook {
				asked.Op = algorithm.Look
			}
			t.asks = append(t.asks, a)
		} else if isGroup && h.Atomic && h.Op != algorithm.Look {
			l := a.ref.lease()
			t.reserved = append(t.reserved, reservation{i, a.ref, l.windowEnd, l.end})
		}
	}
	if len(t.forwarded.Hits) == forwarded { // The whole group was decided here.
		t.reserved = t.reserved[:first]
	}
	return end
}

// served is the ask.amount of a hit that this replica has decided.
const served = 1<<64 - 1

// serve decides h with the units that are held, or returns what the store must be asked for. If mayLease is not set,
// it asks for the units of h only. The caller holds mu of sh.
func (s *Store) serve(
	sh *shard, h *backend.Hit, v *backend.Verdict, p *place, now instant, tickNow uint32, mayLease bool,
) (a ask) {
	l, slot, mayAdd := sh.find(&p.hash, p.guess, h)
	if l.isNone() {
		if mayAdd {
			l, slot = s.add(sh, &p.hash, h, now, tickNow)
		}
		if l.isNone() {
			return ask{amount: h.Amount}
		}
	} else if !sameLimit(l.limit, h.Limit) {
		l = s.changeLimit(sh, l, h, now)
	}
	a = ask{ref: ref{sh, slot, l.generation}, amount: h.Amount}
	if !l.contains(now) {
		s.learnAhead(a.ref, now)
	}
	held := uint64(l.held)
	if back := l.expire(now); back > 0 {
		s.returnUnits(sh, l, back)
	}
	isServed := false
	switch h.Op {
	case algorithm.Charge, algorithm.Force:
		isServed = l.use(h.Amount, now, tickNow)
	case algorithm.Refund:
		// While others need units, refunds go to the store. So do those of groups, which may be refused, and those of a
		// counter above its limit, because that was lowered, or by forced hits: the units must not be used once more.
		if mayLease && !l.isContended() && l.end > 0 && uint64(l.taken) <= l.limit.Capacity() {
			given := l.giveBack(h.Amount, now)
			isServed = given == h.Amount
			a.amount -= given
		}
	}
	sh.held += uint64(l.held) - held
	if !isServed {
		if h.Op != algorithm.Charge || !mayLease || h.Amount == 0 {
			return a
		}
		if a.asLook = h.Limit.CountBlocked && l.left(now) == 0; !a.asLook && !l.isAsking() && !l.hasAskedFor(now) {
			a.amount = l.wanted(h.Amount, s.replicas(), now)
			l.setAsking(a.amount > h.Amount)
		}
		return a
	}
	sh.served++
	*v = backend.Verdict{}
	l.setOutcome(&v.Outcome, h.Op, h.Amount, now)
	if !l.isAsking() && h.Op != algorithm.Refund && l.isUp(now) && l.wanted(0, s.replicas(), now) > 1 {
		s.askForMore(a.ref, l)
	}
	if l.isEnding(now) {
		s.askAhead(a.ref, l)
	}
	a.amount = served
	return a
}

// sleep waits for d. It returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
