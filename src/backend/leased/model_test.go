package leased_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/leased"
)

var (
	modelRuns = flag.Int("runs", 200, "how many random schedules TestModel plays")
	modelSeed = flag.Uint64("seed", 0, "the seed of the first; 0: any")
)

// TestModel plays random schedules of hits, refunds, faults and operators, with its own store and clocks, and counts
// what is admitted.
func TestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	for run := range uint64(*modelRuns) {
		w := newWorld(seed + run)
		if err := w.play(300 + w.rng.IntN(700)); err != nil {
			t.Fatalf("-seed=%d: %v: %v", seed+run, w, err)
		}
	}
}

// world is some replicas, their store, and the time.
type world struct {
	rng      *rand.Rand
	now      time.Duration // the true time since the epoch
	mode     mode
	limits   []*algorithm.Limit // the limits of the counter "k" that reloads choose from
	exact    *algorithm.Limit   // the limit of the counter "e", which is never leased
	limit    *algorithm.Limit   // that of replicas that start
	replicas []*replica
	counters map[string]*algorithm.State
	redisAt  time.Duration // what the clock of the store is ahead
	late     []late        // commands that the store has yet to execute
	faulty   bool
	depth    int // of calls of sleep
	nested   int // of calls that the store has decided, and whose replies are under way
	decision decision

	// mostUnused is the most units that replicas held of a bucket.
	mostUnused uint64

	admitted []admission
	net      map[window]int64 // admitted less refunded units
	most     map[window]int64 // what net may be
	err      error
}

// mode is what a world has besides hits and refunds, since each has a bound of its own.
type mode int

const (
	reloadsOneByOne mode = iota
	reloadsAtOnce
	wrongRefunds // of units that were not admitted
	edits        // by operators
	numModes
)

// late is a command under way, at a time of its replica's clock.
type late struct {
	hits []backend.Hit
	wall int64
}

// window is one window of a counter, by the clock of the replica or of the store.
type window struct{ key, end string }

// decision is when the hits of a call were decided: in the store, or before.
type decision struct {
	at      time.Duration
	windows [2]window // of "k" and "e"
}

// replica is one process.
type replica struct {
	w           *world
	store       *leased.Store
	wallAt      time.Duration // what its clock is ahead
	limit       *algorithm.Limit
	cut         bool // the store does not get its commands
	pausedUntil time.Duration
	counting    backend.Counting // exact for some: they share the counter
}

// admission is a hit of "k" that passed.
type admission struct {
	at     time.Duration
	units  uint64
	window window
}

const epoch = 1_767_225_600 * time.Second // 2026-01-01

func newWorld(seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), now: epoch, counters: make(map[string]*algorithm.State),
		net: make(map[window]int64), most: make(map[window]int64),
	}
	w.mode = mode(w.rng.IntN(int(numModes)))
	l := algorithm.Limit{
		Kind: algorithm.Kind(w.rng.IntN(5)), Max: []uint64{1, 5, 10, 40, 200, 5000}[w.rng.IntN(6)],
		Period: []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour}[w.rng.IntN(4)],
	}
	switch l.Kind {
	case algorithm.FixedWindow:
		l.CountBlocked = w.rng.IntN(2) == 0
	case algorithm.GCRA:
		l.Burst = l.Max / 2
	case algorithm.SlidingWindow:
		l.Kind = algorithm.FixedWindow
	}
	w.faulty = w.rng.IntN(4) > 0
	other := l
	w.limits, w.limit = []*algorithm.Limit{&l, &other}, &l
	if w.hasExactWindows() {
		other.Max = l.Max*2 + 1
	}
	w.exact = &algorithm.Limit{
		Kind: algorithm.FirstHitWindow * algorithm.Kind(w.rng.IntN(2)), Max: 1 + w.rng.Uint64N(2*l.Max), Period: l.Period,
	}
	for range 1 + w.rng.IntN(5) {
		w.join()
	}
	return w
}

func (w *world) String() string {
	return fmt.Sprintf("%+v, %d replicas, faulty: %t, mode %d", *w.limits[0], len(w.replicas), w.faulty, w.mode)
}

// join starts a replica.
func (w *world) join() {
	r := &replica{w: w, limit: w.limit, counting: backend.Leased}
	if w.rng.IntN(5) == 0 {
		r.counting = backend.Exact
	}
	r.start()
	w.replicas = append(w.replicas, r)
}

// start makes the store of a replica, which knows nothing.
func (r *replica) start() {
	w := r.w
	r.store = leased.New(leased.Config{
		Next: r, Replicas: func() int { return len(w.replicas) },
		Now: func() (time.Time, time.Duration) { return time.Unix(0, int64(w.now+r.wallAt)), w.now - epoch },
		Tell: func(_ context.Context, text []byte) error {
			if r.cut || w.faulty && w.rng.IntN(8) == 0 {
				return errors.New("cut off")
			}
			for _, other := range w.replicas {
				if !other.cut && (!w.faulty || w.rng.IntN(8) > 0) {
					other.store.Heard([][]byte{text}, true)
				}
			}
			return nil
		},
	})
	r.store.SetSleep(func(_ context.Context, d time.Duration) bool {
		w.advance(d)
		return true
	})
}

// advance lets time pass, in which other replicas tick.
func (w *world) advance(d time.Duration) {
	w.depth++
	defer func() { w.depth-- }()
	for range 3 {
		w.now += d / 3
		for _, r := range w.replicas {
			if w.depth == 1 && w.now >= r.pausedUntil {
				r.store.Tick(context.Background())
			}
		}
	}
}

// Take sends a batch to the store, which may be lost on the way there, or on the way back, or come late.
func (r *replica) Take(_ context.Context, b *backend.Batch) error {
	w := r.w
	fault := 0
	if r.cut {
		fault = 1
	} else if w.faulty {
		fault = max(w.rng.IntN(40)-36, 0)
	}
	// A refund of a caller that comes late counts in a later window, with exact counting, too.
	isRefund := func(h backend.Hit) bool { return h.Op == algorithm.Refund && h.Window == 0 }
	if fault == 2 && slices.ContainsFunc(b.Hits, isRefund) {
		fault = 3
	}
	lost := errors.New("no answer")
	wall := int64(w.now + r.wallAt + b.Ahead)
	hits := slices.Clone(b.Hits)
	for i := range hits {
		hits[i].Key = slices.Clone(hits[i].Key)
		limit := *hits[i].Limit
		hits[i].Limit = &limit
	}
	switch fault {
	case 1:
		for i := range b.Verdicts {
			b.Verdicts[i] = backend.Verdict{Err: lost}
		}
	case 2:
		w.late = append(w.late, late{hits, wall})
		for i := range b.Verdicts {
			b.Verdicts[i] = backend.Verdict{Err: lost}
		}
	default:
		w.execute(hits, b.Verdicts, wall)
		w.decision = w.decide(r)
		w.meanwhile(r)
		if fault == 3 {
			for i := range b.Verdicts {
				b.Verdicts[i] = backend.Verdict{Err: lost}
			}
		}
	}
	return nil
}

// meanwhile lets this and other replicas do something while a reply is under way, so that replies come out of order.
func (w *world) meanwhile(r *replica) {
	if w.nested == 2 || w.depth > 0 || w.rng.IntN(6) > 0 {
		return
	}
	w.nested++
	before := w.decision
	for range 1 + w.rng.IntN(4) {
		w.now += time.Duration(w.rng.Int64N(int64(w.limits[0].Period/20)) << w.rng.IntN(4))
		if w.rng.IntN(3) == 0 {
			r = w.replicas[w.rng.IntN(len(w.replicas))]
		}
		w.step(r)
	}
	w.decision = before
	w.nested--
}

// execute does what the store does with the groups of a batch. Fixed windows follow the clock of the replica.
func (w *world) execute(hits []backend.Hit, verdicts []backend.Verdict, wall int64) {
	for i := 0; i < len(hits); {
		start, isRefused, isAtomic := i, false, false
		before := make(map[string]algorithm.State, len(w.counters))
		for key, c := range w.counters {
			before[key] = *c
		}
		for ; i < len(hits) && hits[i].GroupID == hits[start].GroupID; i++ {
			verdicts[i].Outcome = w.apply(hits[i], wall)
			isRefused = isRefused || verdicts[i].Over && !hits[i].NoVeto
			isAtomic = isAtomic || hits[i].Atomic
		}
		if !isRefused || !isAtomic {
			continue
		}
		clear(w.counters)
		for key, c := range before {
			w.counters[key] = &c
		}
		for j := start; j < i; j++ {
			if !hits[j].Atomic {
				verdicts[j].Outcome = w.apply(hits[j], wall)
				continue
			}
			isOver := verdicts[j].Over
			verdicts[j].Outcome = w.apply(hits[j].AsLook(), wall)
			verdicts[j].Over = isOver
		}
	}
}

// apply does what the store does with one hit.
func (w *world) apply(h backend.Hit, wall int64) algorithm.Outcome {
	at, key := int64(w.now+w.redisAt), string(h.Key)
	var end int64
	if h.Limit.Kind == algorithm.FixedWindow {
		at = wall
		_, end = h.Limit.WindowBounds(at)
		key = fmt.Sprint(key, end)
	}
	c := w.counters[key]
	if c == nil {
		c = new(algorithm.State)
		w.counters[key] = c
	}
	switch h.Limit.Kind {
	case algorithm.FirstHitWindow:
		if end = c.FirstHit.WindowEnd; end <= at {
			end = 0
		}
	case algorithm.SlidingWindowCounter:
		_, end = algorithm.WindowBounds(at, h.Limit.Period)
	}
	if h.Window != 0 && h.Window != end {
		h.Amount = 0
	}
	if h.Limit.Kind == algorithm.FixedWindow {
		var v algorithm.Outcome
		c.FixedWindow.Count, v = algorithm.TakeFixed(h.Limit, c.FixedWindow.Count, at, h.Op, h.Amount)
		return v
	}
	return c.Take(h.Limit, at, h.Op, h.Amount)
}

// SetCounts and ResetPrefixes are those of a store that operators change.
func (r *replica) SetCounts(_ context.Context, b *backend.Batch) error {
	for i := range b.Hits {
		h := b.Hits[i]
		_, end := h.Limit.WindowBounds(int64(r.w.now + r.wallAt))
		key := string(h.Key)
		if h.Limit.Kind == algorithm.FixedWindow {
			key = fmt.Sprint(key, end)
		}
		delete(r.w.counters, key)
		h.Op = algorithm.Force
		r.w.apply(h, int64(r.w.now+r.wallAt))
	}
	return nil
}

func (*replica) ResetPrefixes(context.Context, []backend.KeyPrefix, bool, func([][]byte)) error {
	return nil
}

// play takes random steps.
func (w *world) play(steps int) error {
	pause := w.limits[0].Period / time.Duration(10+w.rng.IntN(2000))
	for i := range steps {
		w.now += time.Duration(w.rng.Int64N(int64(2*pause) + 1))
		if w.rng.IntN(40) == 0 {
			w.approachEnd()
		}
		r := w.replicas[w.rng.IntN(len(w.replicas))]
		if w.now < r.pausedUntil {
			continue
		}
		if w.faulty && w.rng.IntN(14) == 0 {
			w.fault(r)
		} else if w.mode != reloadsOneByOne && w.rng.IntN(100) == 0 {
			w.change(r)
		} else {
			w.step(r)
		}
		if i%50 == 0 {
			if held, _ := r.units(); held != r.store.Stats().UnitsHeld {
				return fmt.Errorf("%d units are held, %d are said", held, r.store.Stats().UnitsHeld)
			}
		}
		if w.err != nil {
			return w.err
		}
	}
	w.approachEnd()
	if err := cmp.Or(w.err, w.checkPeriods()); err != nil {
		return err
	}
	return w.checkReturned()
}

// approachEnd lets time pass until a window is about to end, so that replicas take units of the next one.
func (w *world) approachEnd() {
	_, end := algorithm.WindowBounds(int64(w.now), w.limits[0].Period)
	w.now = max(w.now, time.Duration(end)-time.Duration(w.rng.Int64N(int64(time.Second/4))))
	for range 20 {
		if r := w.replicas[w.rng.IntN(len(w.replicas))]; w.now >= r.pausedUntil {
			w.step(r)
		}
	}
}

// step is something that replicas do all the time.
func (w *world) step(r *replica) {
	switch n := w.rng.IntN(92); {
	case n < 60:
		w.hit(r, w.rng.IntN(5) == 0)
	case n < 66:
		w.refund(r)
	case n < 68:
		w.send(r, w.hitOf(r, algorithm.Look))
	case n < 70:
		if w.faulty { // Without faults, the store must have what was admitted in the end.
			w.send(r, w.hitOf(r, algorithm.Force))
		}
	case n < 81:
		r.store.Tick(context.Background())
	case n < 91:
		r.store.Refill(context.Background())
	default:
		r.store.SweepAll()
	}
}

// fault does something that should not happen.
func (w *world) fault(r *replica) {
	period := w.limits[0].Period
	switch w.rng.IntN(9) {
	case 0: // a crash
		r.start()
	case 1: // a pause that may be longer than a window
		r.pausedUntil = w.now + time.Duration(w.rng.Int64N(int64(2*period)))
	case 2:
		r.cut = !r.cut
	case 3:
		if w.limits[0].Kind == algorithm.FixedWindow { // Others follow the clock of the store.
			r.wallAt = time.Duration(w.rng.Int64N(int64(4*period))) - 2*period
			w.redisAt = time.Duration(w.rng.Int64N(int64(4*period))) - 2*period
		} else {
			r.wallAt = time.Duration(w.rng.Int64N(int64(4*period))) - 2*period
		}
	case 4: // commands that were under way arrive
		for _, c := range w.late {
			w.execute(c.hits, make([]backend.Verdict, len(c.hits)), c.wall)
		}
		w.late = nil
	case 5:
		if len(w.replicas) < 6 {
			w.join()
		}
	case 6:
		if len(w.replicas) > 1 {
			r.store.Finish(context.Background())
			w.replicas = slices.DeleteFunc(w.replicas, func(other *replica) bool { return other == r })
		}
	case 7: // a reload
		if w.mode == reloadsOneByOne {
			r.limit = w.limits[w.rng.IntN(2)]
		}
	case 8:
		w.now += time.Duration(w.rng.Int64N(int64(period)))
	}
}

// change does what the mode allows.
func (w *world) change(r *replica) {
	if !w.hasExactWindows() {
		return
	}
	now := w.decide(r).windows[0]
	switch w.mode {
	case reloadsAtOnce: // From now on, the new limit holds, though it may be lower. It was not in force before.
		l := *w.limits[0]
		l.Max = 1 + w.rng.Uint64N(2*l.Max)
		if slices.ContainsFunc(w.limits, func(old *algorithm.Limit) bool { return old.Max == l.Max }) {
			return
		}
		w.limit, w.limits = &l, append(w.limits, &l)
		for _, r := range w.replicas {
			r.limit = w.limit
		}
		clear(w.most)
	case wrongRefunds: // They are admitted once more.
		h := w.hitOf(r, algorithm.Refund)
		w.raise(now, r.limit, int64(h.Amount))
		w.send(r, h)
		w.raise(w.decision.windows[0], r.limit, int64(h.Amount))
	case edits:
		w.edit(r)
	}
}

// raise lets more units pass in a window.
func (w *world) raise(in window, l *algorithm.Limit, units int64) {
	w.most[in] = max(w.most[in], int64(l.Max)) + units
}

// edit sets the counter. What replicas hold then, or have not given back, was taken before.
func (w *world) edit(r *replica) {
	h := w.hitOf(r, algorithm.Charge)
	h.Amount = 1 + h.Amount%r.limit.Max // With 0, no first-hit window would start.
	b := &backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
	w.nested += 2 // Replies come at once.
	err := r.store.SetCounts(context.Background(), b)
	w.nested -= 2
	if err != nil {
		w.err = err
		return
	}
	in := w.decide(r).windows[0]
	w.most[in] = w.net[in] + int64(r.limit.Max-h.Amount) + int64(w.unused())
}

// units returns what the replica holds, and what waits to be given back.
func (r *replica) units() (held, waiting uint64) { return r.store.Units(leasedHit("k", r.limit, 0)) }

// unused returns the units that are charged and that no hit used, or that are under way back.
func (w *world) unused() (units uint64) {
	for _, c := range w.late {
		for i := range c.hits {
			units += c.hits[i].Amount
		}
	}
	for _, r := range w.replicas {
		held, waiting := r.units()
		units += held + waiting
	}
	return units
}

// decide returns the windows that count hits of r now: by the clock of the replica, or of the store.
func (w *world) decide(r *replica) decision {
	d := decision{at: w.now}
	for i, l := range []*algorithm.Limit{r.limit, w.exact} {
		key, end := []string{"k", "e"}[i], "none"
		if l.Kind != algorithm.FirstHitWindow {
			_, bound := algorithm.WindowBounds(int64(w.now+r.wallAt), l.Period)
			end = fmt.Sprint(bound)
		} else if c := w.counters[key]; c != nil && c.FirstHit.WindowEnd > int64(w.now+w.redisAt) {
			end = fmt.Sprint(c.FirstHit.WindowEnd)
		}
		d.windows[i] = window{key, end}
	}
	return d
}

// hasExactWindows reports whether no unit above the limit may pass in a window.
func (w *world) hasExactWindows() bool {
	return w.limits[0].Kind == algorithm.FixedWindow || w.limits[0].Kind == algorithm.FirstHitWindow
}

// hitOf returns a hit of "k".
func (w *world) hitOf(r *replica, op algorithm.Op) backend.Hit {
	amount := uint64(1)
	if w.rng.IntN(10) == 0 {
		amount = 1 + w.rng.Uint64N(r.limit.Max)
	}
	h := leasedHit("k", r.limit, amount)
	h.Op, h.Counting, h.OnContention = op, r.counting, backend.Contention(w.rng.IntN(2))
	return h
}

// send sends hits of one group, and returns the verdicts.
func (w *world) send(r *replica, hits ...backend.Hit) []backend.Verdict {
	b := &backend.Batch{Hits: hits, Verdicts: make([]backend.Verdict, len(hits))}
	w.decision = w.decide(r)
	if err := r.store.Take(context.Background(), b); err != nil {
		w.err = err
	}
	return b.Verdicts
}

// hit sends a hit of "k", and of "e" in the same group if isGroup is set, and counts them if they are admitted.
func (w *world) hit(r *replica, isGroup bool) {
	hits := []backend.Hit{w.hitOf(r, algorithm.Charge)}
	if isGroup {
		e := leasedHit("e", w.exact, 1+w.rng.Uint64N(2))
		e.Counting, e.Atomic, hits[0].Atomic = backend.Exact, true, true
		if hits = append(hits, e); w.rng.IntN(2) == 0 {
			hits[0], hits[1] = hits[1], hits[0]
		}
	}
	verdicts := w.send(r, hits...)
	for i := range verdicts {
		if verdicts[i].Err != nil || verdicts[i].Over {
			return
		}
	}
	for i := range hits {
		at := 0
		if hits[i].Limit == w.exact {
			at = 1
		}
		w.admit(w.decision.windows[at], hits[i].Limit, hits[i].Amount)
	}
}

// admit counts a hit that passed.
func (w *world) admit(in window, l *algorithm.Limit, units uint64) {
	if in.key == "k" {
		if l.Kind == algorithm.GCRA {
			w.mostUnused = max(w.mostUnused, w.unused()+units)
		}
		w.admitted = append(w.admitted, admission{w.decision.at, units, in})
		if !w.hasExactWindows() {
			return
		}
	}
	w.net[in] += int64(units)
	w.most[in] = max(w.most[in], int64(l.Max))
	if w.net[in] > w.most[in] {
		w.err = fmt.Errorf("%d units of %d admitted in the window %s of %s", w.net[in], w.most[in], in.end, in.key)
	}
}

// refund gives back the units of a hit of the window.
func (w *world) refund(r *replica) {
	if !w.hasExactWindows() || len(w.admitted) == 0 {
		return
	}
	i := w.rng.IntN(len(w.admitted))
	a := w.admitted[i]
	if a.window != w.decide(r).windows[0] {
		return
	}
	w.admitted = slices.Delete(w.admitted, i, i+1)
	h := w.hitOf(r, algorithm.Refund)
	h.Amount = a.units
	w.net[a.window] -= int64(a.units)
	w.send(r, h)
}

// checkReturned checks that without faults, all units that were not used come back.
func (w *world) checkReturned() error {
	if w.faulty || !w.hasExactWindows() || w.limits[0].CountBlocked || w.mode > reloadsAtOnce {
		return nil
	}
	w.nested = 2 // Replies come at once.
	for _, r := range w.replicas {
		r.store.Finish(context.Background())
	}
	r := w.replicas[0]
	in := w.decide(r).windows[0]
	h := leasedHit("k", r.limit, 0)
	h.Op = algorithm.Look
	if count := w.apply(h, int64(w.now)).After; int64(count) != w.net[in] {
		return fmt.Errorf("%d units are charged, and %d were used", count, w.net[in])
	}
	if h.Limit.Kind == algorithm.FixedWindow {
		if count := w.apply(h, int64(w.now+h.Limit.Period)).After; count != 0 {
			return fmt.Errorf("%d units are charged in the next window", count)
		}
	}
	return nil
}

// checkPeriods checks the bounds of limits without named windows: in any one period.
func (w *world) checkPeriods() error {
	l := w.limits[0]
	most := uint64(0)
	switch l.Kind {
	case algorithm.SlidingWindowCounter:
		most = max(2*l.Max-1, 1)
	case algorithm.GCRA:
		most = l.Burst + 1 + l.Max + w.mostUnused + 1
		if !w.faulty {
			term := l.LeaseTerm(new(algorithm.Outcome))
			most = min(most, l.Burst+1+l.Max+uint64(2*term)*l.Max/uint64(l.Period)+2)
		}
	default:
		return nil
	}
	slices.SortStableFunc(w.admitted, func(a, b admission) int { return cmp.Compare(a.at, b.at) })
	first, sum := 0, uint64(0)
	for _, a := range w.admitted {
		sum += a.units
		for w.admitted[first].at <= a.at-l.Period {
			sum -= w.admitted[first].units
			first++
		}
		if sum > most {
			return fmt.Errorf("%d units admitted in a period, at most %d may", sum, most)
		}
	}
	return nil
}
