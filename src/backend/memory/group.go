package memory

import (
	"math"
	"slices"

	"ratelimit/src/algorithm"
)

// group is the memory for one call of takeGroup, kept for the next.
type group struct {
	trials []trial
	order  []place
	latest map[counterID]int32 // the latest trial of each counter; empty for small groups
}

// trial is a counter as it would be after a hit of a group.
type trial struct {
	id     counterID
	before int32 // the trial of the hit before on the same counter; -1: none
	again  bool  // a later hit of the group is on the same counter
	state  state
}

// place is a hit's shard, and its index in the group, as one number: sorted, places
// are in the order in which the locks are taken, and hits on one counter in theirs.
type place uint64

func (p place) shard() uint32 { return uint32(p >> 32) }
func (p place) hit() int      { return int(p & math.MaxUint32) }

const (
	// smallGroup is up to how many hits looking through all of them is faster
	// than a map.
	smallGroup = 8
	// maxKept is the largest group whose memory is kept.
	maxKept = 4096
)

// takeGroup charges hits of which at least one is atomic. First it judges as if all
// would pass, writing nothing: a refused group must not make counters that drive out
// others. If no hit refuses, all are charged, else only what is not atomic.
//
// It takes the lock of each shard when it comes to its first hit there, holds all of
// them when it decides, and gives each back after its last charge. All groups take
// locks in the same order.
func (s *Store) takeGroup(hits []algorithm.Hit, verdicts []algorithm.Verdict, now int64) {
	g := s.groups.Get().(*group)
	g.add(s, hits, now)
	vetoed := false
	for k, p := range g.order {
		if k == 0 || p.shard() != g.order[k-1].shard() {
			s.shards[p.shard()].mu.Lock()
		}
		i := p.hit()
		verdicts[i] = s.try(g, &hits[i], i, now)
		vetoed = vetoed || verdicts[i].Over && !hits[i].NoVeto
	}
	due := false
	for k, p := range g.order {
		i, sh := p.hit(), &s.shards[p.shard()]
		if h, id := &hits[i], g.trials[i].id; !vetoed || !h.Atomic {
			verdicts[i] = sh.apply(h, id, now)
		} else {
			verdicts[i] = algorithm.Uncharged(sh.refuse(h, id, now), verdicts[i])
		}
		if k == len(g.order)-1 || p.shard() != g.order[k+1].shard() {
			due = sh.due() || due
			sh.mu.Unlock()
		}
	}
	s.release(g)
	s.tidy(due, now)
}

// add makes a trial of each hit, and links those on one counter.
func (g *group) add(s *Store, hits []algorithm.Hit, now int64) {
	g.trials, g.order = slices.Grow(g.trials, len(hits)), slices.Grow(g.order, len(hits))
	for i := range hits {
		id := s.id(&hits[i], now)
		before := g.last(id, len(hits))
		if before >= 0 {
			g.trials[before].again = true
		}
		g.trials = append(g.trials, trial{id: id, before: before})
		g.order = append(g.order, place(s.shardOf(id))<<32|place(i))
	}
	slices.Sort(g.order)
}

// last returns the index of the latest trial on id, -1 if there is none, and notes
// that the next one is on it. size is that of the group.
func (g *group) last(id counterID, size int) int32 {
	if size <= smallGroup {
		for i := len(g.trials) - 1; i >= 0; i-- {
			if g.trials[i].id == id {
				return int32(i)
			}
		}
		return -1
	}
	if g.latest == nil {
		g.latest = make(map[counterID]int32, size)
	}
	before, found := g.latest[id]
	g.latest[id] = int32(len(g.trials))
	if !found {
		return -1
	}
	return before
}

func (s *Store) release(g *group) {
	if cap(g.trials) > maxKept {
		return
	}
	clear(g.trials) // they point to logs
	clear(g.latest)
	g.trials, g.order = g.trials[:0], g.order[:0]
	s.groups.Put(g)
}

// try judges hit i of a group as if those before it had been charged.
func (s *Store) try(g *group, h *algorithm.Hit, i int, now int64) algorithm.Verdict {
	t := &g.trials[i]
	if t.before >= 0 {
		t.state = g.trials[t.before].state // also its log, which is a clone
		return t.state.take(h.Limit, now, h.Op, h.Amount)
	}
	t.state = s.shard(t.id).state(h.Limit, t.id, now)
	if h.Limit.Kind != algorithm.SlidingWindow {
		return t.state.take(h.Limit, now, h.Op, h.Amount)
	}
	if t.again {
		log := new(algorithm.Log)
		if t.state.log != nil {
			*log = t.state.log.Clone()
		}
		t.state.log = log
		return t.state.take(h.Limit, now, h.Op, h.Amount)
	}
	// No later hit needs the log, which may be long. A look tells whether the hit
	// is over.
	if h.Op == algorithm.Refund || h.Op == algorithm.Force {
		return algorithm.Verdict{}
	}
	return t.state.take(h.Limit, now, algorithm.Look, h.Amount)
}
