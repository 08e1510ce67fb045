package memory

import (
	"math"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// group is the memory for one call of takeGroup, kept for the next.
type group struct {
	trials []trial
	order  []place
	drafts []algorithm.Draft // of the sliding windows that several hits are on
}

// trial is a counter as it would be after a hit of a group.
type trial struct {
	id     counterID
	before int32 // the trial of the hit before on the same counter; -1: none
	again  bool  // a later hit of the group is on the same counter
	draft  int32 // of a sliding window, if before or again: its place in drafts
	state  state // but for a sliding window
}

// place is the low half of a counter's hash, and a hit's index in the group, as one
// number. Sorted, places are in the order of the shards, those of one counter stand
// together, and its hits are in their order.
type place uint64

func (p place) hash() uint64 { return uint64(p >> 32) }
func (p place) hit() int     { return int(p & math.MaxUint32) }

// maxKept is the largest group whose memory is kept.
const maxKept = 4096

// takeGroup charges hits of which at least one is atomic. First it judges as if all
// would pass, writing nothing: a refused group must not make counters that drive out
// others. If no hit refuses, all are charged, else only what is not atomic.
//
// It takes the lock of each shard when it comes to its first hit there, holds all of
// them when it decides, and gives each back after its last charge. All groups take
// locks in the same order.
func (s *Store) takeGroup(hits []backend.Hit, verdicts []backend.Verdict, now int64) {
	g := s.groups.Get().(*group)
	g.add(s, hits, now)
	vetoed := false
	var locked *shard // the last one
	for _, p := range g.order {
		if sh := s.shardOf(p.hash()); sh != locked {
			sh.mu.Lock()
			locked = sh
		}
		i := p.hit()
		verdicts[i] = backend.Verdict{Outcome: s.try(g, &hits[i], i, now)}
		vetoed = vetoed || verdicts[i].Over && !hits[i].NoVeto
	}
	due := false
	for k, p := range g.order {
		i, sh := p.hit(), s.shardOf(p.hash())
		if h, id := &hits[i], g.trials[i].id; !vetoed || !h.Atomic {
			verdicts[i].Outcome = sh.apply(h, id, now)
		} else {
			verdicts[i].Outcome = algorithm.Uncharged(h.Limit, sh.refuse(h, id, now), verdicts[i].Outcome)
		}
		if k == len(g.order)-1 || s.shardOf(g.order[k+1].hash()) != sh {
			due = sh.due() || due
			sh.mu.Unlock()
		}
	}
	s.release(g)
	s.tidy(due, now)
}

// add makes a trial of each hit, and links those on one counter.
func (g *group) add(s *Store, hits []backend.Hit, now int64) {
	g.trials, g.order = slices.Grow(g.trials, len(hits)), slices.Grow(g.order, len(hits))
	for i := range hits {
		id := s.id(&hits[i], now)
		g.trials = append(g.trials, trial{id: id, before: -1})
		g.order = append(g.order, place(id.hash<<32)|place(i))
	}
	slices.Sort(g.order)
	drafts := 0
	for k, p := range g.order {
		t := &g.trials[p.hit()]
		// The first look finds it, but for two counters that have half of a hash in common.
		for j := k - 1; j >= 0 && g.order[j].hash() == p.hash(); j-- {
			if before := g.order[j].hit(); g.trials[before].id == t.id {
				if t.before = int32(before); g.trials[before].before < 0 && hits[before].Limit.Kind == algorithm.SlidingWindow {
					drafts++
				}
				g.trials[before].again = true
				break
			}
		}
	}
	g.drafts = slices.Grow(g.drafts, drafts) // no lock is held yet
}

func (s *Store) release(g *group) {
	if cap(g.trials) > maxKept {
		return
	}
	clear(g.trials) // they point to logs
	clear(g.drafts)
	g.trials, g.order, g.drafts = g.trials[:0], g.order[:0], g.drafts[:0]
	s.groups.Put(g)
}

// try judges hit i of a group as if those before it had been charged.
func (s *Store) try(g *group, h *backend.Hit, i int, now int64) algorithm.Outcome {
	t := &g.trials[i]
	if h.Limit.Kind == algorithm.SlidingWindow {
		return s.trySliding(g, h, t, now)
	}
	if t.before >= 0 {
		t.state = g.trials[t.before].state
	} else {
		t.state = s.shard(t.id).state(h.Limit, t.id, now)
	}
	return t.state.take(h.Limit, now, h.Op, h.Amount)
}

func (s *Store) trySliding(g *group, h *backend.Hit, t *trial, now int64) algorithm.Outcome {
	switch {
	case t.before >= 0:
		t.draft = g.trials[t.before].draft
	case t.again:
		t.draft = int32(len(g.drafts))
		g.drafts = append(g.drafts, s.shard(t.id).state(h.Limit, t.id, now).log.Draft())
	case !h.Op.Asks():
		return algorithm.Outcome{}
	default: // a look tells whether the only hit is over
		st := s.shard(t.id).state(h.Limit, t.id, now)
		return st.take(h.Limit, now, algorithm.Look, h.Amount)
	}
	return g.drafts[t.draft].Apply(h.Limit, now, h.Op, h.Amount)
}
