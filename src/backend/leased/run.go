package leased

import (
	"context"
	"slices"
	"sync"
	"time"
	"unsafe"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const (
	maxRefills      = 8 << 10
	refillsPerBatch = 256
	refillers       = 4
	// refillPause is how long a refill waits for others, which share its round trip. Half of a lease is left meanwhile.
	refillPause = time.Millisecond
	// shortPeriod is the period below which replicas tell and give back more often than once a tick.
	shortPeriod, shortPause = 10 * time.Second, 20 * time.Millisecond
	minPause                = 10 * time.Millisecond // the shortest time between two ticks
	// sweptPerTick is how many shards are swept at each tick.
	sweptPerTick = 4
	// idleTicks is how many ticks a lease stays after its window has ended.
	idleTicks = 100
	// finishTimeout bounds how long Run gives back units at the end.
	finishTimeout = 2 * time.Second
)

// Pause returns how often replicas must read what others tell, and give back what they do not need.
func (s *Store) Pause() time.Duration {
	if s.figures.hasShortPeriods.Load() {
		return shortPause
	}
	return tick
}

// HoldsUnits reports whether this replica has leases, so that it must read what others tell.
func (s *Store) HoldsUnits() bool { return s.figures.counters.Load() > 0 }

// Run takes units before they are needed, and gives back those that others need, until ctx ends. Finish gives back all.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range refillers {
		wg.Go(func() { s.refillUntil(ctx) })
	}
	for next := 0; ctx.Err() == nil; {
		select {
		case <-time.After(s.Pause()):
		case <-s.wake:
		case <-ctx.Done():
		}
		s.Tick(ctx)
		for range sweptPerTick {
			s.sweep(&s.shards[next])
			next = (next + 1) % numShards
		}
		s.sleep(ctx, minPause)
	}
	wg.Wait()
	return nil
}

// wakeUp makes Run tell other replicas, or give back units, soon.
func (s *Store) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Tick tells other replicas which counters are contended, and gives back the units of such counters that this replica
// does not need. Run calls it.
func (s *Store) Tick(ctx context.Context) {
	s.tell(ctx)
	s.learnBegun(s.now())
	s.giveBackUnneeded(s.now())
	s.flushReturns(ctx)
}

// Finish gives back all units. No hit must come afterwards.
func (s *Store) Finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	s.returnAhead(ctx)
	now := s.now()
	s.forAll(func(sh *shard, l lease, _ uint32) { s.takeBack(sh, l, now) })
	s.flushReturns(ctx)
}

// takeBack queues the units that l holds. The caller holds mu of sh.
func (s *Store) takeBack(sh *shard, l lease, now instant) {
	units := l.usable(now)
	if l.limit.RefillsSteadily() {
		units = uint64(l.held)
	}
	s.returnUnits(sh, l, units)
	sh.held -= uint64(l.held)
	l.held = 0
}

// sweep removes the leases of a shard whose windows ended a while ago.
func (s *Store) sweep(sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	sh.forEach(func(l lease, slot uint32) {
		if held := uint64(l.held); held > 0 {
			s.returnUnits(sh, l, l.expire(now))
			sh.held += uint64(l.held) - held
		}
		if l.held == 0 && !l.isAsking() && now.forLimit(l.limit) >= l.end && l.idle(tickOf(now)) > idleTicks {
			s.remove(sh, l, slot)
		}
	})
}

func (s *Store) remove(sh *shard, l lease, slot uint32) {
	key, limitID := sh.key(l), l.limitID
	hash := s.seeds.of(key.bytes, l.limit.Kind, l.limit.Period, key.sharesKey)
	sh.remove(&hash, slot)
	s.limits.release(limitID)
	s.figures.counters.Add(-1)
}

// add makes a lease of the counter of h. If memory is short, it removes leases that were not used lately; without any
// it returns nil. The caller holds mu of sh, and has found no lease.
func (s *Store) add(sh *shard, hash *hash, h *backend.Hit, now instant, tickNow uint32) (l lease, slot uint32) {
	for sh.bytesWith(len(h.Key)) > s.maxShardBytes() {
		if !s.evict(sh, now, tickNow) {
			s.figures.noRoom.Add(1)
			return lease{}, 0
		}
	}
	l, slot = sh.add(hash, h, s.limits.intern(h.Limit, h.Owner))
	l.recentTick = uint16(tickNow)
	s.figures.counters.Add(1)
	if h.Limit.Period < shortPeriod {
		s.figures.hasShortPeriods.Store(true)
	}
	return l, slot
}

// maxShardBytes returns how much memory the leases of a shard may take.
func (s *Store) maxShardBytes() int {
	return (s.cfg.MaxBytes - int(unsafe.Sizeof(s.shards)) - int(s.limits.bytes())) / numShards
}

const (
	// evictionTries is how many slots one eviction looks at.
	evictionTries = 16
	// evictedTicks is how many ticks a lease must not have been used to be evicted.
	evictedTicks = 10
)

// evict gives back the units of a lease that was not used lately, and removes it.
func (s *Store) evict(sh *shard, now instant, tickNow uint32) bool {
	slots := uint32(sh.numSlots())
	for range min(evictionTries, slots) {
		sh.hand = sh.hand%slots + 1
		l := sh.at(sh.hand)
		if l.isNone() || l.isAsking() || l.idle(tickNow) < evictedTicks {
			continue
		}
		s.takeBack(sh, l, now)
		s.remove(sh, l, sh.hand)
		s.figures.evictions.Add(1)
		return true
	}
	return false
}

// changeLimit replaces the limit of l by that of h, after a reload or because two rules share a counter. The units that
// were taken under the old limit go back, and so does what is refunded of them: the new limit may be lower. It
// returns the lease with the new limit. The caller holds mu of sh.
func (s *Store) changeLimit(sh *shard, l lease, h *backend.Hit, now instant) lease {
	s.takeBack(sh, l, now)
	s.limits.release(l.limitID)
	l.limitID, l.size, l.used = s.limits.intern(h.Limit, h.Owner), 0, 0
	l.limit = s.limits.at(l.limitID)
	l.countLimitChange()
	return l
}

// refill is a lease that needs more units.
type refill struct {
	ref
	// window is the beginning of the window whose units it needs, by instant.wall; 0: the current one.
	window int64
}

// askForMore queues a lease that needs more units. The caller holds mu of its shard.
func (s *Store) askForMore(r ref, l lease) {
	select {
	case s.refills <- refill{r, 0}:
		l.setAsking(true)
	default: // A hit will ask when the units are used up.
	}
}

// askAhead queues a lease that needs units of the next window. The caller holds mu of its shard.
func (s *Store) askAhead(r ref, l lease) {
	select {
	case s.refills <- refill{r, l.end}:
		l.flags |= askedAheadFlag
	default: // The next hit tries it again.
	}
}

// refillUntil takes units for the leases that were queued, until ctx ends.
func (s *Store) refillUntil(ctx context.Context) {
	var b backend.Batch
	var refills []refill
	for {
		select {
		case r := <-s.refills:
			refills = append(refills[:0], r)
		case <-ctx.Done():
			return
		}
		s.sleep(ctx, refillPause)
		for more := true; more && len(refills) < refillsPerBatch; {
			select {
			case r := <-s.refills:
				refills = append(refills, r)
			default:
				more = false
			}
		}
		for len(refills) > 0 {
			of := slices.IndexFunc(refills, func(r refill) bool { return r.window != refills[0].window })
			if of < 0 {
				of = len(refills)
			}
			s.refill(ctx, refills[:of], &b)
			refills = refills[of:]
		}
	}
}

// refill takes units of one window for leases, in one batch. It keeps the memory of b.
func (s *Store) refill(ctx context.Context, refills []refill, b *backend.Batch) {
	now := s.now()
	b.Hits, b.Verdicts, b.Ahead = b.Hits[:0], b.Verdicts[:0], 0
	if window := refills[0].window; window > now.wall {
		b.Ahead = time.Duration(window - now.wall)
	}
	asked := refills[:0]
	for _, r := range refills {
		if h, ok := s.refillHit(r, now); ok {
			h.GroupID = uint16(len(asked))
			b.Hits, b.Verdicts, asked = append(b.Hits, h), append(b.Verdicts, backend.Verdict{}), append(asked, r)
		}
	}
	if len(asked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := s.cfg.Next.Take(ctx, b)
	for i, r := range asked {
		v := &b.Verdicts[i]
		if err != nil {
			v.Err = err
		}
		s.learnRefill(r, &b.Hits[i], v, now)
	}
	clear(b.Hits)
}

// refillHit returns a charge of the units that the lease needs; ok is false if it needs none.
func (s *Store) refillHit(r refill, now instant) (h backend.Hit, ok bool) {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	l := r.lease()
	if l.isNone() {
		return h, false
	}
	if r.window > 0 && r.window != l.end {
		return h, false // A hit was in that window already.
	}
	at := instant{max(now.wall, r.window), now.mono}
	units := l.wanted(0, s.replicas(), at)
	if needs := r.window > 0 || l.isUp(now) && now.forLimit(l.limit) < l.end; !needs || units < 2 {
		l.setAsking(l.isAsking() && r.window > 0)
		return h, false
	}
	limit, key := *l.limit, r.shard.key(l)
	return backend.Hit{
		Key: append([]byte(nil), key.bytes...), TagLength: key.tagLength, SharesKey: key.sharesKey, Limit: &limit,
		Amount: units, Op: algorithm.Charge, Owner: s.limits.ownerOf(l.limitID),
	}, true
}

// learnRefill adds the units that the store gave to a lease.
func (s *Store) learnRefill(r refill, h *backend.Hit, v *backend.Verdict, asked instant) {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	if r.window > 0 {
		if v.Err == nil {
			s.ahead.add(r.ref, aheadReply{*h, *v})
			s.learnAhead(r.ref, s.now())
		}
		return
	}
	if l := r.lease(); !l.isNone() {
		l.setAsking(false)
	}
	if v.Err == nil {
		s.learnUnits(r.ref, h, v, asked)
	}
}

// learnUnits adds the units that the store gave, when it was asked at the instant asked. The caller holds mu of the
// shard.
func (s *Store) learnUnits(r ref, h *backend.Hit, v *backend.Verdict, asked instant) {
	l := r.lease()
	surplus, granted := settle(h.Limit, v, 1, h.Amount), uint64(0)
	if v.Charged {
		granted = h.Amount - surplus
	}
	s.returns.addOf(h, v.WindowEnd, surplus, asked)
	if !l.isNone() && !sameLimit(l.limit, h.Limit) {
		l = lease{}
	}
	s.keep(r, l, h, &v.Outcome, asked, granted)
}
