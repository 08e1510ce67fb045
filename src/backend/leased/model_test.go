package leased_test

import (
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
	modelRuns = flag.Int("runs", 400, "how many random schedules TestModel plays")
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
			t.Fatalf("-seed=%d: %v: %v", seed+run, w.limit(), err)
		}
	}
}

// world is some replicas, their store, and the time.
type world struct {
	rng      *rand.Rand
	now      time.Duration      // the true time since the epoch
	limits   []*algorithm.Limit // the limits that reloads choose from
	replicas []*replica
	counters map[string]*algorithm.State
	redisAt  time.Duration // what the clock of the store is ahead
	late     []func()      // commands that the store has yet to execute
	faulty   bool
	depth    int // of calls of sleep

	admitted []admission
	net      map[string]int64 // admitted less refunded units, by window of the replica's clock
	mostMax  map[string]uint64
	err      error
}

// replica is one process.
type replica struct {
	w           *world
	store       *leased.Store
	wallAt      time.Duration // what its clock is ahead
	limit       *algorithm.Limit
	cut         bool // the store does not get its commands
	pausedUntil time.Duration
}

type admission struct {
	at      time.Duration
	units   uint64
	window  string
	replica *replica
}

const epoch = 1_767_225_600 * time.Second // 2026-01-01

func newWorld(seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), now: epoch, counters: make(map[string]*algorithm.State),
		net: make(map[string]int64), mostMax: make(map[string]uint64),
	}
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
	if w.rng.IntN(4) == 0 && l.Kind == algorithm.FixedWindow {
		other.Max = l.Max*2 + 1
	}
	w.limits = []*algorithm.Limit{&l, &other}
	for range 1 + w.rng.IntN(5) {
		w.join()
	}
	return w
}

func (w *world) limit() string {
	return fmt.Sprintf("%+v, %d replicas, faulty: %t", *w.limits[0], len(w.replicas), w.faulty)
}

// join starts a replica.
func (w *world) join() {
	r := &replica{w: w, limit: w.limits[0]}
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
	wall := int64(w.now + r.wallAt)
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
		w.late = append(w.late, func() { w.execute(hits, make([]backend.Verdict, len(hits)), wall) })
		for i := range b.Verdicts {
			b.Verdicts[i] = backend.Verdict{Err: lost}
		}
	default:
		w.execute(hits, b.Verdicts, wall)
		if fault == 3 {
			for i := range b.Verdicts {
				b.Verdicts[i] = backend.Verdict{Err: lost}
			}
		}
	}
	return nil
}

// execute does what the store does with a batch of single hits. Fixed windows follow the clock of the replica.
func (w *world) execute(hits []backend.Hit, verdicts []backend.Verdict, wall int64) {
	for i := range hits {
		h := &hits[i]
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
			c.FixedWindow.Count, verdicts[i].Outcome = algorithm.TakeFixed(h.Limit, c.FixedWindow.Count, at, h.Op, h.Amount)
		} else {
			verdicts[i].Outcome = c.Take(h.Limit, at, h.Op, h.Amount)
		}
	}
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
		r.w.execute([]backend.Hit{h}, make([]backend.Verdict, 1), int64(r.w.now+r.wallAt))
	}
	return nil
}

func (*replica) ResetPrefixes(context.Context, []backend.KeyPrefix, bool, func([][]byte)) error {
	return nil
}

// play takes random steps.
func (w *world) play(steps int) error {
	pause := w.limits[0].Period / time.Duration(10+w.rng.IntN(2000))
	for range steps {
		w.now += time.Duration(w.rng.Int64N(int64(2*pause) + 1))
		r := w.replicas[w.rng.IntN(len(w.replicas))]
		if w.now < r.pausedUntil {
			continue
		}
		switch n := w.rng.IntN(100); {
		case n < 70:
			w.hit(r)
		case n < 76:
			w.refund(r)
		case n < 84:
			r.store.Tick(context.Background())
		case n < 92:
			r.store.Refill(context.Background())
		case n < 93:
			r.store.SweepAll()
		case w.faulty:
			w.fault(r)
		}
		if w.err != nil {
			return w.err
		}
	}
	return w.checkPeriods()
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
		late := w.late
		w.late = nil
		for _, run := range late {
			run()
		}
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
		r.limit = w.limits[w.rng.IntN(2)]
	case 8:
		w.now += time.Duration(w.rng.Int64N(int64(period)))
	}
}

// window names the window that counts a hit of r now: by the clock of the replica, or of the store.
func (w *world) window(r *replica) string {
	if r.limit.Kind == algorithm.FirstHitWindow {
		if c := w.counters["k"]; c != nil && c.FirstHit.WindowEnd > int64(w.now+w.redisAt) {
			return fmt.Sprint(c.FirstHit.WindowEnd)
		}
		return "none"
	}
	_, end := algorithm.WindowBounds(int64(w.now+r.wallAt), r.limit.Period)
	return fmt.Sprint(end)
}

// hasExactWindows reports whether no unit above the limit may pass in a window.
func (w *world) hasExactWindows() bool {
	return w.limits[0].Kind == algorithm.FixedWindow || w.limits[0].Kind == algorithm.FirstHitWindow
}

// hit sends a hit, and counts it if it is admitted.
func (w *world) hit(r *replica) {
	amount := uint64(1)
	if w.rng.IntN(10) == 0 {
		amount = 1 + w.rng.Uint64N(r.limit.Max)
	}
	h := leasedHit("k", r.limit, amount)
	h.OnContention = backend.Contention(w.rng.IntN(2))
	b := &backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
	if err := r.store.Take(context.Background(), b); err != nil {
		w.err = err
		return
	}
	if v := &b.Verdicts[0]; v.Err != nil || v.Over {
		return
	}
	window := w.window(r) // It may have waited into another one.
	w.admitted = append(w.admitted, admission{w.now, amount, window, r})
	w.net[window] += int64(amount)
	w.mostMax[window] = max(w.mostMax[window], r.limit.Max)
	if w.hasExactWindows() && w.net[window] > int64(w.mostMax[window]) {
		w.err = fmt.Errorf("%d units of %d admitted in a window", w.net[window], w.mostMax[window])
	}
}

// refund gives back the units of a hit of the window.
func (w *world) refund(r *replica) {
	if !w.hasExactWindows() || len(w.admitted) == 0 {
		return
	}
	i := w.rng.IntN(len(w.admitted))
	a := w.admitted[i]
	if a.window != w.window(r) {
		return
	}
	w.admitted = slices.Delete(w.admitted, i, i+1)
	h := leasedHit("k", r.limit, a.units)
	h.Op = algorithm.Refund
	b := &backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
	w.net[a.window] -= int64(a.units)
	w.err = r.store.Take(context.Background(), b)
}

// checkPeriods checks the bounds of limits without named windows: in any one period.
func (w *world) checkPeriods() error {
	l := w.limits[0]
	most := uint64(0)
	switch l.Kind {
	case algorithm.SlidingWindowCounter:
		most = max(2*l.Max-1, 1)
	case algorithm.GCRA:
		extra := max(0.1, min(1, float64(100*time.Millisecond)/float64(l.Period)))
		most = l.Burst + 1 + l.Max + uint64(float64(l.Max)*extra) + 1
	default:
		return nil
	}
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
