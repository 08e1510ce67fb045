package quota

import (
	"context"
	"maps"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// guards check what docs/rlqs.md says of each window, for all counters of a world that refuse requests.
type guards struct {
	world      *world
	callerRate int // how many requests a second other callers send, to random buckets.
	byCounter  map[string]*guard
	byBucket   map[string][]*guard
	hidden     int // how many used units proxies did not report.
}

// guard checks one counter.
type guard struct {
	world   *world
	name    string
	buckets []string // charged to the counter.
	limit   *algorithm.Limit

	windowEnd int64
	admitted  int
	carried   int // what was assigned and neither used nor expired when the window began.
	hidden    int // how many units were used in the window that proxies did not report.

	// counts, carries, hides and returns have a value for each millisecond if the windows have no borders: what was
	// admitted, hidden and returned since the last restart, and what was carried.
	counts, carries, hides, returns []int
}

// mostCharged returns how many units may be charged to the counter in any one period, if the windows have no borders.
func (g *guard) mostCharged() int {
	switch l := g.limit; l.Kind {
	case algorithm.FirstHitWindow, algorithm.SlidingWindowCounter:
		return int(2 * l.Max)
	case algorithm.GCRA:
		return int(l.Burst + 1 + l.Max)
	default:
		return int(l.Max)
	}
}

// watch makes guards for the rules in force. A counter whose limit is the same keeps its guard.
func (gs *guards) watch() {
	old := gs.byCounter
	gs.byCounter, gs.byBucket = make(map[string]*guard), make(map[string][]*guard)
	for _, b := range gs.world.buckets {
		target, err := FindTarget(gs.world.limiter, []byte("d"), b.entries)
		if err != nil {
			gs.world.t.Fatal(err)
		}
		for i := range target.Hits {
			h := &target.Hits[i]
			if h.NoVeto {
				continue
			}
			name := string(h.Key) + " " + h.Limit.Kind.String() + " " + h.Limit.Period.String()
			g := gs.byCounter[name]
			if g == nil {
				g = &guard{world: gs.world, name: name, limit: h.Limit}
				if was := old[name]; was != nil && was.limit.Max == h.Limit.Max {
					*g = *was
					g.buckets = nil
				}
				gs.byCounter[name] = g
			}
			g.buckets = append(g.buckets, b.id)
			gs.byBucket[b.id] = append(gs.byBucket[b.id], g)
		}
	}
	for _, g := range gs.byCounter {
		if g.counts == nil && g.windowEnd == 0 {
			g.carried = g.unused()
		}
	}
}

// inOrder returns the guards in an order that is the same in each run.
func (gs *guards) inOrder() []*guard {
	names := slices.Sorted(maps.Keys(gs.byCounter))
	list := make([]*guard, len(names))
	for i, name := range names {
		list[i] = gs.byCounter[name]
	}
	return list
}

func (gs *guards) tick() {
	for _, g := range gs.byCounter {
		g.tick()
	}
}

// admit notes a request of the bucket that passes.
func (gs *guards) admit(bucket string) {
	for _, g := range gs.byBucket[bucket] {
		g.admit()
	}
}

// hide notes used units of the bucket that a report leaves out.
func (gs *guards) hide(bucket string, units int) {
	gs.hidden += units
	for _, g := range gs.byBucket[bucket] {
		g.hidden += units
	}
}

// call asks for units as other callers do.
func (gs *guards) call() {
	w := gs.world
	if w.random.IntN(1000) >= gs.callerRate {
		return
	}
	b := &w.buckets[w.random.IntN(len(w.buckets))]
	req := limiter.Request{
		Domain: []byte("d"), Now: time.Unix(0, w.instant().wall),
		Descriptors: []limiter.Descriptor{{Entries: b.entries}},
	}
	var a limiter.Answer
	if err := w.limiter.Check(context.Background(), &req, &a); err != nil {
		w.t.Fatal(err)
	}
	if !a.Over {
		gs.admit(b.id)
	}
}

// unused returns what proxies may still use, and what is on the way to them.
func (g *guard) unused() (units int) {
	for _, p := range g.world.proxies {
		for _, b := range p.buckets {
			if slices.Contains(g.buckets, b.id) {
				units += int(b.unused(g.world.now))
			}
		}
	}
	return units
}

// tick starts a window if one begins now.
func (g *guard) tick() {
	if g.limit.Kind != algorithm.FixedWindow {
		g.counts, g.carries, g.hides = append(g.counts, g.admitted), append(g.carries, g.unused()), append(g.hides, g.hidden)
		g.returns = append(g.returns, g.world.returned)
		return
	}
	if _, end := g.limit.WindowBounds(g.world.instant().wall); end != g.windowEnd {
		g.windowEnd, g.admitted, g.hidden, g.carried = end, 0, 0, g.unused()
	}
}

func (g *guard) admit() {
	w := g.world
	g.admitted++
	if g.limit.Kind == algorithm.FixedWindow {
		if limit := int(g.limit.Max); g.admitted > limit+g.carried+g.hidden {
			w.t.Fatalf("%s: at %v %d admitted in one window: the limit is %d, %d were carried over, and proxies hid %d",
				g.name, w.now, g.admitted, limit, g.carried, g.hidden)
		}
		return
	}
	if len(g.counts) == 0 { // The rules have just changed.
		return
	}
	period := int(g.limit.Period / time.Millisecond)
	begin := max(0, len(g.counts)-period)
	got, hidden := g.admitted-g.counts[begin], g.hidden-g.hides[max(0, begin-period)]
	most := g.mostCharged()
	// What goes back makes room at once, and leaves the window when an earlier hit would have.
	if g.limit.Kind == algorithm.SlidingWindow {
		most += w.returned - g.returns[max(0, begin-period)]
	}
	if got > most+g.carries[begin]+hidden {
		w.t.Fatalf("%s: at %v %d admitted within %v: at most %d are charged, %d were carried over, and proxies hid %d",
			g.name, w.now, got, g.limit.Period, most, g.carries[begin], hidden)
	}
}
