package memory

import (
	"math"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// groupScratch holds the slices that takeGroup works on. The store pools them, so that a request allocates nothing.
type groupScratch struct {
	trials    []hitTrial
	hitPlaces []hitPlace
	drafts    []algorithm.LogDraft // drafts has the states of the sliding windows of the group.
	// heldStates has copies of the states of the counters with holds that the group has more than once.
	heldStates []algorithm.HeldState
}

// hitTrial is the state of a counter as it would be after one hit of a group is charged.
type hitTrial struct {
	id            counterID
	previousTrial int32           // previousTrial is the index of the trial of the previous hit on the counter, or -1.
	hasNext       bool            // hasNext says that a later hit is on the same counter.
	copyIndex     int32           // copyIndex is the index of a sliding window in groupScratch.drafts, or of a counter in heldStates.
	counterState  algorithm.State // counterState is the state of a counter that is not a sliding window and has no holds.
}

// hitPlace is the low half of a counter's hash, and a hit's index in its group. Sorted places are
// in the order of the shards, and those of one counter are neighbours in the order of the hits.
type hitPlace uint64

func (p hitPlace) lowHash() uint64 { return uint64(p >> 32) }
func (p hitPlace) hitIndex() int   { return int(p & math.MaxUint32) }

// maxPooledHits is the largest group whose scratch is kept for the next group.
const maxPooledHits = 4096

// takeGroup charges hits of which at least one is atomic. It first tries all hits without writing, since a refused group must not
// create counters that evict others. If no hit refuses, it charges all, else only those that are not atomic.
//
// It locks each shard before the first trial there, holds all locks when it decides, and
// unlocks each shard after its last charge. All groups lock shards in the same order.
func (s *Store) takeGroup(hits []backend.Hit, verdicts []backend.Verdict, now int64) {
	g := s.groupScratches.Get().(*groupScratch)
	g.addTrials(s, hits, now)
	refused := false
	var locked *shard
	for _, p := range g.hitPlaces {
		sh := s.shardOf(p.lowHash())
		if sh != locked {
			sh.mu.Lock()
			locked = sh
		}
		i := p.hitIndex()
		verdicts[i] = backend.Verdict{Outcome: g.tryHit(sh, &hits[i], i, now)}
		refused = refused || verdicts[i].Over && !hits[i].NoVeto
	}
	sweep := false
	for k, p := range g.hitPlaces {
		i, sh := p.hitIndex(), s.shardOf(p.lowHash())
		h, t, v := &hits[i], &g.trials[i], &verdicts[i].Outcome
		tried := *v
		if !refused || !h.Atomic {
			*v = sh.applyHit(h, t.id, now)
		} else {
			*v = algorithm.UnchargedOutcome(h.Limit, sh.lookOutcome(h, t.id, now), tried)
		}
		if t.previousTrial < 0 && !t.hasNext {
			v.HoldsExpired += tried.HoldsExpired // The trial of such a hit has removed them.
			v.ExpiredUnits += tried.ExpiredUnits
		}
		if k == len(g.hitPlaces)-1 || s.shardOf(g.hitPlaces[k+1].lowHash()) != sh {
			sweep = sh.countWrite() || sweep
			sh.mu.Unlock()
		}
	}
	s.releaseScratch(g)
	s.freeMemory(sweep, now)
}

// addTrials adds a trial of each hit, and links the trials of one counter.
func (g *groupScratch) addTrials(s *Store, hits []backend.Hit, now int64) {
	g.trials, g.hitPlaces = slices.Grow(g.trials, len(hits)), slices.Grow(g.hitPlaces, len(hits))
	slidingWindows := 0
	for i := range hits {
		id := s.counterIDOf(&hits[i], now)
		g.trials = append(g.trials, hitTrial{id: id, previousTrial: -1})
		g.hitPlaces = append(g.hitPlaces, hitPlace(id.hash<<32)|hitPlace(i))
		if hits[i].Limit.Kind == algorithm.SlidingWindow {
			slidingWindows++
		}
	}
	g.drafts = slices.Grow(g.drafts, slidingWindows) // Growing the drafts now keeps tryHit from allocating while it holds locks.
	slices.Sort(g.hitPlaces)
	for k, p := range g.hitPlaces {
		t := &g.trials[p.hitIndex()]
		// The first step finds the previous trial, unless two counters share this half of the hash.
		for j := k - 1; j >= 0 && g.hitPlaces[j].lowHash() == p.lowHash(); j-- {
			if previous := g.hitPlaces[j].hitIndex(); g.trials[previous].id == t.id {
				t.previousTrial = int32(previous)
				g.trials[previous].hasNext = true
				break
			}
		}
	}
}

func (s *Store) releaseScratch(g *groupScratch) {
	if cap(g.trials) > maxPooledHits {
		return
	}
	clear(g.trials) // trials point to logs
	clear(g.drafts)
	clear(g.heldStates)
	g.trials, g.hitPlaces, g.drafts, g.heldStates = g.trials[:0], g.hitPlaces[:0], g.drafts[:0], g.heldStates[:0]
	s.groupScratches.Put(g)
}

// tryHit returns the outcome of hit i of a group as if the hits before it had been charged.
func (g *groupScratch) tryHit(sh *shard, h *backend.Hit, i int, now int64) (v algorithm.Outcome) {
	t := &g.trials[i]
	if h.Limit.Hold > 0 {
		return g.tryHeldHit(sh, h, t, now)
	}
	if t.previousTrial >= 0 {
		previous := &g.trials[t.previousTrial]
		t.counterState, t.copyIndex = previous.counterState, previous.copyIndex
	} else {
		t.counterState = sh.counterState(h.Limit, t.id, now)
	}
	if h.Limit.Kind != algorithm.SlidingWindow {
		return t.counterState.Take(h.Limit, now, h.Op, h.Amount)
	}
	if t.previousTrial < 0 {
		t.copyIndex = int32(len(g.drafts))
		g.drafts = append(g.drafts, t.counterState.SlidingLog.NewDraft())
	}
	g.drafts[t.copyIndex].Take(&v, h.Limit, now, h.Op, h.Amount)
	return v
}

// tryHeldHit is tryHit for a limit with holds. A hit whose counter the group has only once needs no copy of the state: it is refused if a
// look is.
func (g *groupScratch) tryHeldHit(sh *shard, h *backend.Hit, t *hitTrial, now int64) algorithm.Outcome {
	switch {
	case t.previousTrial >= 0:
		t.copyIndex = g.trials[t.previousTrial].copyIndex
	case t.hasNext:
		t.copyIndex = int32(len(g.heldStates))
		g.heldStates = append(g.heldStates, algorithm.HeldState{})
		if sl, _ := sh.findSlot(t.id, now); sl != nil {
			g.heldStates[t.copyIndex] = sh.overflow.heldStates.items[sl.stateOrIndex].Clone()
		}
	default:
		look := h.AsLook()
		v := sh.applyHeldHit(&look, t.id, now)
		v.Over = v.Over && h.Op.CanBeRefused()
		return v
	}
	return g.heldStates[t.copyIndex].Take(h.Limit, now, h.Op, h.Amount, h.HoldID)
}
