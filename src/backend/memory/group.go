package memory

import (
	"math"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// group holds the slices that takeGroup works on. The store pools groups, so that a request
// allocates nothing.
type group struct {
	trials []trial
	order  []place
	drafts []algorithm.Draft // of sliding windows that several hits are on
}

// trial is the state of a counter as it would be after one hit of a group is charged.
type trial struct {
	id     counterID
	before int32 // the trial of the previous hit on the counter; -1: none
	again  bool  // a later hit of the group is on the counter
	draft  int32 // index in drafts, of a sliding window with before or again
	state  state // of all other kinds
}

// place is the low half of a counter's hash, and a hit's index in the group. Sorted places
// are in the order of the shards; those of one counter are neighbours, in the order of hits.
type place uint64

func (p place) hash() uint64 { return uint64(p >> 32) }
func (p place) hit() int     { return int(p & math.MaxUint32) }

// maxKept is the largest group whose memory is kept.
const maxKept = 4096

// takeGroup charges hits of which at least one is atomic. It first tries all hits without
// writing, since a refused group must not create counters that evict others. If no hit
// refuses, it charges all, else only those that are not atomic.
//
// It locks each shard before the first trial there, holds all locks when it decides, and
// unlocks each shard after its last charge. All groups lock shards in the same order.
func (s *Store) takeGroup(hits []backend.Hit, verdicts []backend.Verdict, now int64) {
	g := s.groups.Get().(*group)
	g.add(s, hits, now)
	refused := false
	var locked *shard // the last one
	for _, p := range g.order {
		sh := s.shardOf(p.hash())
		if sh != locked {
			sh.mu.Lock()
			locked = sh
		}
		i := p.hit()
		verdicts[i] = backend.Verdict{Outcome: g.try(sh, &hits[i], i, now)}
		refused = refused || verdicts[i].Over && !hits[i].NoVeto
	}
	due := false
	for k, p := range g.order {
		i, sh := p.hit(), s.shardOf(p.hash())
		if h, id := &hits[i], g.trials[i].id; !refused || !h.Atomic {
			verdicts[i].Outcome = sh.apply(h, id, now)
		} else {
			verdicts[i].Outcome = algorithm.Uncharged(h.Limit, sh.refuse(h, id, now), verdicts[i].Outcome)
		}
		if k == len(g.order)-1 || s.shardOf(g.order[k+1].hash()) != sh {
			due = sh.sweepDue() || due
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
		// The first step finds it, unless two counters share this half of the hash.
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
	g.drafts = slices.Grow(g.drafts, drafts) // before any lock is held
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

// try returns the outcome of hit i of a group as if the hits before it had been charged.
func (g *group) try(sh *shard, h *backend.Hit, i int, now int64) (v algorithm.Outcome) {
	t, op := &g.trials[i], h.Op
	if h.Limit.Kind == algorithm.SlidingWindow && (t.before >= 0 || t.again) {
		if t.before >= 0 {
			t.draft = g.trials[t.before].draft
		} else {
			st, _ := sh.state(h.Limit, t.id, now)
			t.draft = int32(len(g.drafts))
			g.drafts = append(g.drafts, st.log.Draft())
		}
		g.drafts[t.draft].Apply(&v, h.Limit, now, op, h.Amount)
		return v
	}
	if t.before >= 0 {
		t.state = g.trials[t.before].state
	} else {
		t.state, _ = sh.state(h.Limit, t.id, now)
	}
	if h.Limit.Kind == algorithm.SlidingWindow { // its log must not be written to
		if !op.Asks() {
			return algorithm.Outcome{}
		}
		op = algorithm.Look
	}
	return t.state.apply(h.Limit, now, op, h.Amount)
}
