package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Traits are what the checker has to know of a store.
type Traits struct {
	// OwnClock: counters expire by the clock on the wall, whatever the script's says.
	OwnClock bool
	// Cached: a cache refuses what it knows to be over, uncounted.
	Cached bool
	// UpstreamCounts: of a fixed window only the count is kept, as in envoyproxy/ratelimit, so what was refused also uses
	// up a limit that is raised.
	UpstreamCounts bool
	// Forward: a sliding window counter is kept under the window that the clock
	// shows, so its answers are not exact when the clock steps back.
	Forward bool
	// OneWindow: a fixed window with holds has one count, which goes along to another window when the clock steps back.
	OneWindow bool
	// Independent: some counters are elsewhere, where a fault does not reach.
	Independent bool
	// Fallback: on_store_failure is honoured, with this process as the only replica,
	// and no request is answered by the store during a fault.
	Fallback bool
}

// checker keeps all states that the store may be in.
type checker struct {
	traits Traits
	rules  Rules
	at     int64 // the clock, since Start
	seen   int64 // the latest it ever was
	fault  Fault
	worlds []world
	// lost are counters of which nothing is known any more: the store may have
	// forgotten them, or not.
	lost map[string]bool
	// intervals are those that counters were last used with.
	intervals map[string]time.Duration
	// unchecked is how many steps were too costly to check.
	unchecked int
}

// world is one of them: what is counted, and what may still be, or never: charges
// of requests that failed.
type world struct {
	state   state
	pending []*unit
}

func (w *world) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(w.state)) {
		fmt.Fprintf(&b, "%s: %v; ", k, w.state[k])
	}
	for _, u := range w.pending {
		fmt.Fprintf(&b, "%p ", u)
	}
	return b.String()
}

func newChecker(traits Traits) *checker {
	return &checker{
		traits: traits, fault: None, worlds: []world{{state: state{}}},
		lost: make(map[string]bool), intervals: make(map[string]time.Duration),
	}
}

// forgotten is how long before its end a store may forget a counter when the
// clock has stepped back.
const forgotten = int64(time.Minute)

// clock moves it.
func (ch *checker) clock(at time.Duration) {
	back := int64(at) < ch.at
	ch.at = int64(at)
	ch.seen = max(ch.seen, ch.at)
	if !back {
		return
	}
	ch.loseIf(func(k string, c *counter) bool {
		return c.until <= ch.seen+forgotten || ch.traits.Forward && strings.Contains(k, string(Counter)) || ch.movesWindow(k)
	})
	for i := range ch.worlds {
		for _, u := range ch.worlds[i].pending { // They may have been charged in the window before.
			for _, k := range u.keys {
				if ch.movesWindow(k) {
					ch.lost[k] = true
				}
			}
		}
	}
}

// movesWindow reports whether the store takes a counter along to another window when the clock steps back.
func (ch *checker) movesWindow(k string) bool {
	return ch.traits.OneWindow && strings.Contains(k, string(Fixed)) && strings.HasSuffix(k, heldSuffix)
}

// loseIf forgets what holds of any world.
func (ch *checker) loseIf(lost func(k string, c *counter) bool) {
	for i := range ch.worlds {
		for k, c := range ch.worlds[i].state {
			if lost(k, c) {
				ch.lost[k] = true
			}
		}
	}
}

// reload puts rules in force.
func (ch *checker) reload(rules Rules) {
	ch.rules = slices.Clone(rules)
	for i := range ch.rules {
		r := &ch.rules[i]
		r.Limits = slices.Clone(r.Limits)
		for j := range r.Limits {
			r.Limits[j].UpstreamCounts = ch.traits.UpstreamCounts
		}
	}
}

// become is told of a fault once it is there, or of its end once the store is well.
func (ch *checker) become(f Fault) {
	switch {
	case f == Wipe && ch.traits.Cached:
		ch.loseIf(func(string, *counter) bool { return true })
	case f == Wipe:
		ch.worlds = []world{{state: state{}}}
	case f == None:
		ch.fault = f
		ch.resolvePending()
	default:
		ch.fault = f
	}
}

// most bounds the worlds that are kept, and the steps that one search takes.
const (
	mostWorlds = 128
	mostSteps  = 5_000
)

// resolvePending notes that what may still be charged was by now, or never will be.
// Which of the two is tried when its counters are asked for: all at once would be
// too many worlds.
func (ch *checker) resolvePending() {
	for i := range ch.worlds {
		for _, u := range ch.worlds[i].pending {
			u.final = true
		}
	}
}

// mostSettled bounds the charges of one step that are tried in all orders.
const mostSettled = 8

// loseCrowded gives up on counters that too many final charges may be in.
func (ch *checker) loseCrowded(units []unit) {
	for i := range ch.worlds {
		var due []*unit
		for _, u := range ch.worlds[i].pending {
			if u.final && slices.ContainsFunc(units, func(o unit) bool { return o.touches(u) }) {
				due = append(due, u)
			}
		}
		if len(due) > mostSettled {
			for _, u := range due {
				ch.lose(u.keys)
			}
		}
	}
}

// resolve returns what may have become of the final charges of w that have a counter
// in common with units: some were made, in some order, and the others were not.
func (ch *checker) resolve(w world, units []*unit) []world {
	var due []*unit
	rest := world{state: w.state}
	for _, u := range w.pending {
		if u.final && slices.ContainsFunc(units, u.touches) {
			due = append(due, u)
		} else {
			rest.pending = append(rest.pending, u)
		}
	}
	met := make(map[string]bool)
	var out []world
	var apply func(s state, left []*unit)
	apply = func(s state, left []*unit) {
		here := world{s, left}
		if key := here.String(); !met[key] {
			met[key] = true
			out = append(out, world{s, rest.pending})
			for i, u := range left {
				after, _ := u.do(s, u.wall)
				apply(after, slices.Delete(slices.Clone(left), i, i+1))
			}
		}
	}
	apply(w.state, due)
	return out
}

// keep makes the worlds those of found, as far as they differ.
func (ch *checker) keep(found map[string]world) {
	distinct := make(map[string]world, len(found))
	for _, w := range found {
		distinct[w.String()] = w
	}
	ch.worlds = ch.worlds[:0]
	for _, key := range slices.Sorted(maps.Keys(distinct)) {
		ch.worlds = append(ch.worlds, distinct[key])
	}
	if len(ch.worlds) > mostWorlds {
		ch.giveUp()
	}
}

// giveUp forgets whatever the worlds do not agree on.
func (ch *checker) giveUp() {
	first := ch.worlds[0]
	for _, w := range ch.worlds {
		for _, u := range w.pending {
			ch.lose(u.keys)
		}
		for k := range w.state {
			if first.state[k] == nil || first.state[k].String() != w.state[k].String() {
				ch.lost[k] = true
			}
		}
		for k := range first.state {
			if w.state[k] == nil {
				ch.lost[k] = true
			}
		}
	}
	ch.worlds = []world{{state: first.state}}
}

func (ch *checker) lose(keys []string) {
	for _, k := range keys {
		ch.lost[k] = true
	}
}

// asked checks the answers to requests at once. The problem is "" if all of them
// can be true. Wall is when they were asked, by the clock on the wall.
func (ch *checker) asked(asks []Ask, answers []*Answer, wall time.Duration) (problem string) {
	if ch.traits.OwnClock {
		ch.loseIf(func(_ string, c *counter) bool { return c.life > 0 && wall-c.written > c.life })
	}
	s := &search{
		checker: ch, wall: wall, asks: asks, answers: answers, found: make(map[string]world),
		met: make(map[string]bool),
	}
	var failed []*unit
	each, whole := make([][]unit, len(asks)), []unit(nil)
	for i, ask := range asks {
		if !ch.rules.invalid(ask) {
			each[i] = ch.rules.units(i, ask, ch.at)
		}
		whole = append(whole, each[i]...)
	}
	ch.checkIntervals(whole)
	ch.loseCrowded(whole)
	for i, ask := range asks {
		if ch.rules.invalid(ask) {
			if !answers[i].Failed {
				return fmt.Sprintf("request %d: got %v, and it names no hold", i+1, answers[i])
			}
			s.blind = append(s.blind, nil)
			continue
		}
		units := each[i]
		s.blind = append(s.blind, make([]bool, len(ask)))
		if ch.without() && answers[i].Failed != errs(units) {
			return fmt.Sprintf("request %d: got %v, and on_store_failure says otherwise", i+1, answers[i])
		}
		if !answers[i].Failed || ch.without() { // what others do of a request that fails is done
			ch.divert(units)
			s.threads = append(s.threads, ch.known(units, s.blind[i]))
			s.calls = append(s.calls, i)
			continue
		}
		if ch.fault == None {
			return fmt.Sprintf("request %d failed without a fault: %s", i+1, answers[i].Why)
		}
		if ch.fault != Down || ch.traits.Independent {
			for k := range units {
				if u := &units[k]; u.leavesTrace() {
					u.wall = wall
					failed = append(failed, u)
				}
			}
		}
	}
	s.begin(failed)
	switch {
	case s.steps > mostSteps:
		ch.unchecked++
		for _, units := range s.threads {
			for k := range units {
				ch.lose(units[k].keys)
				ch.lose(units[k].here)
			}
		}
		for _, u := range failed {
			ch.lose(u.keys)
		}
	case len(s.found) == 0:
		return s.complaint()
	default:
		ch.keep(s.found)
	}
	return ""
}

// checkIntervals loses counters whose minimum interval has changed: a store keeps
// the last hit as long as the rule needs that recorded it.
func (ch *checker) checkIntervals(units []unit) {
	for i := range units {
		for k, key := range units[i].keys {
			interval := units[i].limits[k].Interval
			if was, ok := ch.intervals[key]; ok && was != interval {
				ch.lost[key] = true
			}
			ch.intervals[key] = interval
		}
	}
}

// known leaves out the units of counters that nothing is known of. Blind tells
// whose answers then say nothing.
func (ch *checker) known(units []unit, blind []bool) (out []unit) {
	for i := range units {
		u := &units[i]
		keys := u.counters()
		if slices.ContainsFunc(keys, func(k string) bool { return ch.lost[k] }) {
			// Whether the others of the group were charged is not known, either, nor what arrived at the store.
			ch.lose(keys)
			ch.lose(u.keys)
			blind[u.descriptor] = true
			continue
		}
		out = append(out, *u)
	}
	return out
}

// search looks for an order of the units that explains the answers.
type search struct {
	checker *checker
	wall    time.Duration
	asks    []Ask
	answers []*Answer
	blind   [][]bool // of each request, the descriptors that are not checked
	threads [][]unit // of those requests that were answered
	calls   []int    // which request each thread is
	found   map[string]world
	met     map[string]bool
	steps   int
	nearest string // the answer that was expected last
}

// path is how far a search is in each thread, and the verdicts there.
type path struct {
	next     []int
	verdicts [][][]verdict // by request and descriptor
}

func (p *path) clone() path {
	out := path{slices.Clone(p.next), make([][][]verdict, len(p.verdicts))}
	for i := range p.verdicts {
		out.verdicts[i] = slices.Clone(p.verdicts[i])
	}
	return out
}

// begin searches from every world, in which the units that failed may be charged.
func (s *search) begin(failed []*unit) {
	var asked []*unit
	p := path{make([]int, len(s.threads)), make([][][]verdict, len(s.asks))}
	for i, ask := range s.asks {
		p.verdicts[i] = make([][]verdict, len(ask))
	}
	for t := range s.threads {
		for i := range s.threads[t] {
			asked = append(asked, &s.threads[t][i])
		}
		if len(s.threads[t]) == 0 && !s.right(&p, t) {
			return
		}
	}
	for _, w := range s.checker.worlds {
		for _, resolved := range s.checker.resolve(w, asked) {
			s.from(world{resolved.state, append(slices.Clip(resolved.pending), failed...)}, p)
		}
	}
}

// from tries all that may come next.
func (s *search) from(w world, p path) {
	s.steps++
	if s.steps > mostSteps {
		return
	}
	many := len(s.threads) > 1 || len(w.pending) > 0
	if many {
		key := fmt.Sprint(p.next, p.verdicts, w.String())
		if s.met[key] {
			return
		}
		s.met[key] = true
	}
	left := false
	for t := range s.threads {
		left = left || p.next[t] < len(s.threads[t])
	}
	if !left {
		s.found[w.String()] = w
		return
	}
	if t := s.alone(&w, &p); t >= 0 {
		s.step(w, p, t)
		return
	}
	for t := range s.threads {
		if p.next[t] < len(s.threads[t]) {
			s.step(w, p, t)
		}
	}
	for i, u := range w.pending {
		if s.matters(u, &p) {
			after, _ := u.do(w.state, s.wall)
			s.from(world{after, slices.Delete(slices.Clone(w.pending), i, i+1)}, p)
		}
	}
}

// alone is a thread whose next unit has no counter in common with what is left
// of the others or may still be charged, so that it may as well come first; -1:
// there is none.
func (s *search) alone(w *world, p *path) int {
	for t := range s.threads {
		if p.next[t] == len(s.threads[t]) {
			continue
		}
		u := &s.threads[t][p.next[t]]
		shared := slices.ContainsFunc(w.pending, func(o *unit) bool { return o.touches(u) })
		for o := range s.threads {
			if o == t {
				continue
			}
			for i := p.next[o]; i < len(s.threads[o]); i++ {
				shared = shared || s.threads[o][i].touches(u)
			}
		}
		if !shared {
			return t
		}
	}
	return -1
}

func (s *search) matters(u *unit, p *path) bool {
	for t := range s.threads {
		for i := p.next[t]; i < len(s.threads[t]); i++ {
			if s.threads[t][i].touches(u) {
				return true
			}
		}
	}
	return false
}

// step does the next unit of a thread, and goes on if the answer may be so.
func (s *search) step(w world, p path, t int) {
	u := &s.threads[t][p.next[t]]
	pending := w.pending
	var after state
	var verdicts []verdict
	if !u.instead {
		after, verdicts = u.do(w.state, s.wall)
	} else {
		after, verdicts = u.doInstead(w.state, s.wall)
		if u.leavesTrace() && s.checker.fault != Down {
			lost := *u
			lost.instead, lost.wall = false, s.wall
			pending = append(slices.Clip(pending), &lost)
		}
	}
	p = p.clone()
	p.next[t]++
	of := p.verdicts[u.call]
	of[u.descriptor] = append(slices.Clip(of[u.descriptor]), verdicts...)
	if !s.right(&p, t) {
		return
	}
	states := []state{after}
	if s.checker.traits.Cached {
		for _, k := range u.uncounted(w.state) {
			for _, st := range states { // of several, each may be or not
				left := maps.Clone(st)
				left[k] = w.state[k]
				states = append(states, left)
			}
		}
	}
	for _, st := range states {
		s.from(world{st, pending}, p)
	}
}

// right reports whether what is known of the answer of thread t is as it was
// answered.
func (s *search) right(p *path, t int) bool {
	call := s.calls[t]
	ask, got := s.asks[call], s.answers[call]
	if got.Failed {
		return true
	}
	if len(got.Statuses) != len(ask) {
		s.nearest = fmt.Sprintf("request %d has %d descriptors and %d statuses", call+1, len(ask), len(got.Statuses))
		return false
	}
	decisions, whole := make([]decision, len(ask)), true
	for d := range ask {
		r, limits := s.checker.rules.of(&ask[d]), []*Limit(nil)
		if r != nil {
			limits = r.asked(&ask[d])
		}
		if s.blind[call][d] || len(p.verdicts[call][d]) < len(limits) {
			whole = false
			continue
		}
		decisions[d] = r.decide(&ask[d], limits, p.verdicts[call][d])
		if decisions[d].Status != got.Statuses[d] {
			s.nearest = fmt.Sprintf("request %d, %v: got %v, want %v", call+1, ask[d], got.Statuses[d], decisions[d].Status)
			return false
		}
	}
	if !whole {
		return true
	}
	want := answer(decisions)
	if want.Over != got.Over || want.Retry != got.Retry {
		s.nearest = fmt.Sprintf("request %d: got %v, want %v", call+1, got, want)
		return false
	}
	return true
}

func (s *search) complaint() string {
	text := s.nearest
	if len(s.asks) > 1 {
		text += " (in the last of all orders; none explains the answers)"
	}
	if n := len(s.checker.worlds); n > 1 {
		text += fmt.Sprintf(" (in the last of %d states that the store may be in)", n)
	}
	return text
}

// blindTo reports whether some counter of a request is lost.
func (ch *checker) blindTo(ask Ask) bool {
	for _, u := range ch.rules.units(0, ask, ch.at) {
		for _, k := range u.keys {
			if ch.lost[k] {
				return true
			}
		}
	}
	return false
}
