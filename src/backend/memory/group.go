package memory

import (
	"math"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// groupScratch holds the slices that takeGroup works on. The store pools them, so that a request allocates nothing.
type groupScratch struct {
	trials       []hitTrial
	hitPlaces    []hitPlace
	sortedPlaces []hitPlace // what sortHitPlaces works on
	copies       counterCopies
}

// hitTrial is what a group knows of one of its hits. It is small, since takeGroup visits trials at random.
type hitTrial struct {
	id counterID
	// copyIndex is the index in counterCopies of the state of a counter with several hits, and noCopy for others.
	copyIndex int32
	isFirst   bool // on its counter
}

const noCopy = -1

// isRepeatable reports whether the trial of h, whose trial is t, may be made again until h is charged.
func (t *hitTrial) isRepeatable(h *backend.Hit) bool {
	return t.copyIndex == noCopy && h.Limit.Hold == 0
}

// counterCopies has the states of counters on which a group has several hits, as the hits so far have changed them.
// Each list has the counters of some kinds of limits.
type counterCopies struct {
	packed  []algorithm.State // the kinds that the other lists do not have.
	sliding []algorithm.LogDraft
	held    []algorithm.HeldState
}

// add makes room for the state of a counter of l, and returns its index.
func (c *counterCopies) add(l *algorithm.Limit) int32 {
	switch {
	case l.Hold > 0:
		c.held = append(c.held, algorithm.HeldState{})
		return int32(len(c.held) - 1)
	case l.Kind == algorithm.SlidingWindow:
		c.sliding = append(c.sliding, algorithm.LogDraft{})
		return int32(len(c.sliding) - 1)
	default:
		c.packed = append(c.packed, algorithm.State{})
		return int32(len(c.packed) - 1)
	}
}

// reset removes all copies. It keeps the memory of short lists.
func (c *counterCopies) reset() {
	clear(c.sliding) // sliding and held refer to logs and holds.
	clear(c.held)
	c.packed, c.sliding, c.held = c.packed[:0], c.sliding[:0], c.held[:0]
	if max(cap(c.packed), cap(c.sliding), cap(c.held)) > maxPooledCopies {
		*c = counterCopies{}
	}
}

// hitPlace is the low half of a counter's hash, and a hit's index in its group. Sorted places are
// in the order of the shards, and those of one counter are neighbours in the order of the hits.
type hitPlace uint64

func (p hitPlace) lowHash() uint64 { return uint64(p >> 32) }
func (p hitPlace) hitIndex() int   { return int(p & math.MaxUint32) }

const (
	// maxPooledHits is the largest group whose scratch is kept for the next group. It takes 40 bytes a hit: 1.25 MiB.
	maxPooledHits = 1 << 15
	// maxPooledCopies is the longest list of counterCopies that is kept, of some 100 bytes each.
	maxPooledCopies = 1 << 12
	// hitsAhead is how many hits before its turn a hit and its slot are prefetched. The shard, which says where the slot
	// is, is prefetched as many hits before.
	hitsAhead = 8
)

// takeGroup charges hits of which at least one is atomic. It first tries all hits without writing, since a refused
// group must not create counters that evict others. If no hit refuses, it charges all, else only those that are not
// atomic.
//
// It locks each shard before the first trial there, holds all locks when it decides, and
// unlocks each shard after its last charge. All groups lock shards in the same order.
func (s *Store) takeGroup(hits []backend.Hit, verdicts []backend.Verdict, now int64) {
	g := s.groupScratches.Get().(*groupScratch)
	g.addTrials(s, hits, now)
	refused := false
	var locked *shard
	for k, p := range g.hitPlaces {
		g.prefetch(s, k+hitsAhead, hits, nil)
		sh := s.shardOf(p.lowHash())
		if sh != locked {
			sh.mu.Lock()
			locked = sh
		}
		i := p.hitIndex()
		h, t := &hits[i], &g.trials[i]
		tried := g.tryHit(sh, h, t, now)
		refused = refused || tried.Over && !h.NoVeto
		if !t.isRepeatable(h) {
			verdicts[i] = backend.Verdict{Outcome: tried}
		}
	}
	sweep := false
	for k, p := range g.hitPlaces {
		g.prefetch(s, k+hitsAhead, hits, verdicts)
		i, sh := p.hitIndex(), s.shardOf(p.lowHash())
		h, t, v := &hits[i], &g.trials[i], &verdicts[i].Outcome
		if t.isRepeatable(h) { // The trial has not kept its outcome.
			verdicts[i] = backend.Verdict{}
			if refused && h.Atomic {
				*v = g.tryHit(sh, h, t, now)
			}
		}
		expired, expiredUnits := v.HoldsExpired, v.ExpiredUnits
		if !refused || !h.Atomic {
			*v = sh.applyHit(h, t.id, now)
		} else {
			*v = algorithm.UnchargedOutcome(h.Limit, sh.lookOutcome(h, t.id, now), *v)
		}
		if t.copyIndex == noCopy {
			v.HoldsExpired += expired // The trial of such a hit has removed them.
			v.ExpiredUnits += expiredUnits
		}
		if k == len(g.hitPlaces)-1 || s.shardOf(g.hitPlaces[k+1].lowHash()) != sh {
			sweep = sh.countWrite() || sweep
			sh.mu.Unlock()
		}
	}
	s.releaseScratch(g)
	s.freeMemory(sweep, now)
}

// prefetch starts to load what takeGroup needs for hit place k, if there is one. Neighbouring places are far apart in
// memory. verdicts is nil in the trial, which writes few of them.
func (g *groupScratch) prefetch(s *Store, k int, hits []backend.Hit, verdicts []backend.Verdict) {
	if k+hitsAhead < len(g.hitPlaces) {
		prefetchShard(s.shardOf(g.hitPlaces[k+hitsAhead].lowHash()))
	}
	if k >= len(g.hitPlaces) {
		return
	}
	i := g.hitPlaces[k].hitIndex()
	hash := g.trials[i].id.hash
	prefetchHit(&hits[i])
	if verdicts != nil {
		prefetchVerdict(&verdicts[i])
	}
	prefetchSlot(s.shardOf(hash&math.MaxUint32), hash)
}

// addTrials adds a trial of each hit, and a copy for each counter that has several.
func (g *groupScratch) addTrials(s *Store, hits []backend.Hit, now int64) {
	g.trials, g.hitPlaces = slices.Grow(g.trials, len(hits)), slices.Grow(g.hitPlaces, len(hits))
	for i := range hits {
		id := s.counterIDOf(&hits[i], now)
		g.trials = append(g.trials, hitTrial{id, noCopy, true})
		g.hitPlaces = append(g.hitPlaces, hitPlace(id.hash<<32)|hitPlace(i))
	}
	g.sortHitPlaces()
	for k, p := range g.hitPlaces {
		t := &g.trials[p.hitIndex()]
		// The first step finds the previous hit on the counter, unless two counters share this half of the hash.
		for j := k - 1; j >= 0 && g.hitPlaces[j].lowHash() == p.lowHash(); j-- {
			first := g.hitPlaces[j].hitIndex()
			previous := &g.trials[first]
			if previous.id != t.id {
				continue
			}
			if previous.copyIndex == noCopy {
				previous.copyIndex = g.copies.add(hits[first].Limit)
			}
			t.copyIndex, t.isFirst = previous.copyIndex, false
			break
		}
	}
}

// sortHitPlaces sorts the places by their low hashes, and keeps the order of equal ones. Long lists are sorted digit by
// digit, from the lowest to the highest.
func (g *groupScratch) sortHitPlaces() {
	const (
		digitBits = 11
		digits    = 1 << digitBits
		shortList = 512
	)
	if len(g.hitPlaces) < shortList {
		slices.Sort(g.hitPlaces)
		return
	}
	g.sortedPlaces = slices.Grow(g.sortedPlaces[:0], len(g.hitPlaces))[:len(g.hitPlaces)]
	for shift := 32; shift < 64; shift += digitBits {
		var next [digits]int32 // where the next place with a digit goes.
		for _, p := range g.hitPlaces {
			next[p>>shift%digits]++
		}
		start := int32(0)
		for d, n := range next {
			next[d], start = start, start+n
		}
		for _, p := range g.hitPlaces {
			d := p >> shift % digits
			g.sortedPlaces[next[d]] = p
			next[d]++
		}
		g.hitPlaces, g.sortedPlaces = g.sortedPlaces, g.hitPlaces
	}
}

func (s *Store) releaseScratch(g *groupScratch) {
	if cap(g.trials) > maxPooledHits {
		return
	}
	g.trials, g.hitPlaces = g.trials[:0], g.hitPlaces[:0]
	g.copies.reset()
	s.groupScratches.Put(g)
}

// tryHit returns the outcome of hit h of a group as if the hits before it had been charged.
func (g *groupScratch) tryHit(sh *shard, h *backend.Hit, t *hitTrial, now int64) (v algorithm.Outcome) {
	switch {
	case h.Limit.Hold > 0:
		return g.tryHeldHit(sh, h, t, now)
	case h.Limit.Kind == algorithm.SlidingWindow:
		return g.trySlidingHit(sh, h, t, now)
	case t.copyIndex == noCopy:
		st := sh.counterState(h.Limit, t.id, now)
		return st.Take(h.Limit, now, h.Op, h.AmountIn(&st, now))
	}
	st := &g.copies.packed[t.copyIndex]
	if t.isFirst {
		*st = sh.counterState(h.Limit, t.id, now)
	}
	return st.Take(h.Limit, now, h.Op, h.AmountIn(st, now))
}

// trySlidingHit is tryHit for a sliding window, whose log is too long to be copied.
func (g *groupScratch) trySlidingHit(sh *shard, h *backend.Hit, t *hitTrial, now int64) (v algorithm.Outcome) {
	var single algorithm.LogDraft
	draft := &single
	if t.copyIndex != noCopy {
		draft = &g.copies.sliding[t.copyIndex]
	}
	if t.isFirst {
		st := sh.counterState(h.Limit, t.id, now)
		*draft = st.SlidingLog.NewDraft()
	}
	draft.Take(&v, h.Limit, now, h.Op, h.Amount)
	return v
}

// tryHeldHit is tryHit for a limit with holds. A hit whose counter the group has only once needs no copy of the state:
// it is refused if a look is.
func (g *groupScratch) tryHeldHit(sh *shard, h *backend.Hit, t *hitTrial, now int64) algorithm.Outcome {
	if t.copyIndex == noCopy {
		look := h.AsLook()
		v := sh.applyHeldHit(&look, t.id, now)
		v.Over = v.Over && h.Op.CanBeRefused()
		return v
	}
	held := &g.copies.held[t.copyIndex]
	if t.isFirst {
		if sl, _ := sh.findSlot(t.id, now); sl != nil {
			*held = sh.overflow.heldStates.items[sl.stateOrIndex].Clone()
		}
	}
	return held.Take(h.Limit, now, h.Op, h.Amount, h.HoldID)
}
