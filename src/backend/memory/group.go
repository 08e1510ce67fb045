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
}

// hitTrial is the state of a counter as it would be after one hit of a group is charged.
type hitTrial struct {
	id            counterID
	previousTrial int32           // previousTrial is the index of the trial of the previous hit on the counter, or -1.
	draftIndex    int32           // draftIndex is the index of a sliding window in groupScratch.drafts.
	counterState  algorithm.State // counterState is the state of a counter that is not a sliding window.
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
		if h, id := &hits[i], g.trials[i].id; !refused || !h.Atomic {
			verdicts[i].Outcome = sh.applyHit(h, id, now)
		} else {
			verdicts[i].Outcome = algorithm.UnchargedOutcome(h.Limit, sh.lookOutcome(h, id, now), verdicts[i].Outcome)
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
	g.trials, g.hitPlaces, g.drafts = g.trials[:0], g.hitPlaces[:0], g.drafts[:0]
	s.groupScratches.Put(g)
}

// tryHit returns the outcome of hit i of a group as if the hits before it had been charged.
func (g *groupScratch) tryHit(sh *shard, h *backend.Hit, i int, now int64) (v algorithm.Outcome) {
	t := &g.trials[i]
	if t.previousTrial >= 0 {
		previous := &g.trials[t.previousTrial]
		t.counterState, t.draftIndex = previous.counterState, previous.draftIndex
	} else {
		t.counterState, _ = sh.counterState(h.Limit, t.id, now)
	}
	if h.Limit.Kind != algorithm.SlidingWindow {
		return t.counterState.Take(h.Limit, now, h.Op, h.Amount)
	}
	if t.previousTrial < 0 {
		t.draftIndex = int32(len(g.drafts))
		g.drafts = append(g.drafts, t.counterState.SlidingLog.NewDraft())
	}
	g.drafts[t.draftIndex].Take(&v, h.Limit, now, h.Op, h.Amount)
	return v
}
