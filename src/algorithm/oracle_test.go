package algorithm

import (
	"math"
	"math/big"
	"math/rand/v2"
	"sort"
	"testing"
	"time"
)

// world simulates one key the dumb way: it keeps all that ever happened, and
// works out from that what it is asked. d is how long after the instant last
// seen, if no other hit comes in between.
type world interface {
	// see is told the time, and says what it takes it to be.
	see(at int64) (now int64)
	count(d int64) uint64
	// refused says whether amount would be, for the count and for the interval.
	refused(d int64, amount uint64) (count, interval bool)
	// fresh says whether it is as if there had been no hit.
	fresh(d int64) bool
	add(amount uint64)
	give(amount uint64) (given uint64) // what was there to give back
	// horizon is far enough ahead for everything to be fresh.
	horizon() int64
}

// ask makes the whole verdict on a hit from what w answers.
func ask(w world, l *Limit, at int64, op Op, amount uint64) Outcome {
	now := w.see(at)
	v := Outcome{Before: w.count(0)}
	refused := func(d int64, amount uint64) (count, interval bool) {
		count, interval = w.refused(d, amount)
		return count || l.Max == 0, interval
	}
	count, interval := refused(0, amount)
	asks := op == Charge || op == Look
	v.Over, v.WithinMinInterval = asks && (count || interval), asks && interval
	switch {
	case op == Force, op == Charge && (!v.Over || l.CountBlocked):
		if v.Charged = amount > 0; v.Charged {
			w.add(amount)
		}
	case op == Refund:
		v.Charged = w.give(amount) > 0
	}
	if w, ok := w.(interface{ setBack() }); ok && !v.Charged { // it may change something all the same
		w.setBack()
	}
	v.After = w.count(0)
	passes := func(d int64, amount uint64) bool {
		count, interval := refused(d, amount)
		return !count && !interval
	}
	if v.Over {
		wait, ever := first(w.horizon(), func(d int64) bool { return passes(d, amount) })
		if v.RetryAfter = time.Duration(wait); !ever {
			v.RetryAfter = Never
		}
	}
	if !v.Over || l.Kind != FixedWindow {
		v.Remaining = most(func(n uint64) bool { count, _ := refused(0, n); return !count })
	}
	if w, ok := w.(interface{ windowEnd() int64 }); ok {
		v.WindowEnd = w.windowEnd()
	}
	reset, _ := first(w.horizon(), w.fresh)
	v.ResetAfter = time.Duration(reset)
	switch full, ever := first(w.horizon(), func(d int64) bool { return passes(d, 1) }); {
	case l.CountBlocked && l.Kind != FirstHitWindow: // the refused hit itself makes the wait longer
	case !ever:
		v.FullUntil = endOfTime
	case full > math.MaxInt64-max(now, 0): // what fits no int64
		v.FullUntil = endOfTime
	case full > 0:
		v.FullUntil = now + full
	}
	return v
}

// first is the least d up to the horizon that holds. What is too far to look at
// every one of them is halved, for once something holds it goes on to.
func first(horizon int64, holds func(d int64) bool) (d int64, found bool) {
	if horizon <= 130 {
		for d := range horizon + 1 {
			if holds(d) {
				return d, true
			}
		}
		return 0, false
	}
	if !holds(horizon) {
		return 0, false
	}
	return int64(sort.Search(int(horizon), func(d int) bool { return holds(int64(d)) })), true
}

// most is the largest n that passes, as all below it do; 0 if none does.
func most(passes func(n uint64) bool) uint64 {
	return uint64(sort.Search(1<<50, func(n int) bool { return !passes(uint64(n) + 1) }))
}

// timeline is a limit, and what happens under it in ticks: four bytes each.
type timeline struct {
	limit  Limit
	tick   int64
	start  int64
	back   bool // the clock may step back
	give   bool // there may be refunds
	force  bool // and forced hits
	script []byte
}

// ticks are the lengths a tick may have. The period is 64 of them at most.
var ticks = []int64{1, 1, 1, 7, int64(time.Microsecond), int64(time.Second), int64(time.Hour), int64(MaxPeriod) / 64}

// starts are where a timeline may begin.
var starts = []int64{
	thursday.UnixNano(), 0, 1, thursday.UnixNano() + 123456789,
	latestValidInstant.UnixNano() - int64(24*time.Hour), latestValidInstant.UnixNano(),
}

// largeLimits are about the largest number of 32 bits, a budget of 100,000 dollars in micro-dollars, and the largest
// limit of a rule. Those whose quotients by the period have a rest are among them.
var largeLimits = [...]uint64{1<<32 - 1, 1 << 32, 1<<32 + 1, 1e11, 1e11 + 7, 1<<48 - 1, 1 << 48}

const firstLarge = 256 - len(largeLimits)

// decode makes the timeline of what a fuzzer or a random source wrote: 8 bytes
// for the limit, then the script.
func decode(kind Kind, script []byte) (tl timeline, ok bool) {
	if len(script) < 12 || len(script) > 8+4*60 {
		return tl, false // the simulators are quadratic
	}
	b := script[:8]
	tl.tick = ticks[int(b[0])%len(ticks)]
	tl.start = starts[int(b[1])%len(starts)]
	period := int64(b[2]%64 + 1)
	l := Limit{Kind: kind, Max: uint64(b[3] % 12), Period: time.Duration(period * tl.tick), CountBlocked: b[7]&1 != 0}
	if b[3] >= 240 {
		l.Max = uint64(b[3]) * 4000
	}
	if i := int(b[3]) - firstLarge; i >= 0 && kind != SlidingWindow {
		l.Max = largeLimits[i]
	}
	if kind == GCRA {
		l.Max = min(l.Max, uint64(l.Period))
		if l.Burst = uint64(b[4] % 12); b[4] >= 128 {
			l.Burst = max(l.Max, 1) - 1
		}
		if l.Max > 0 {
			l.Burst = min(l.Burst, uint64(MaxPeriod)/uint64(l.EmissionInterval())-1)
		}
	}
	if (kind == GCRA || kind == SlidingWindow) && b[5]&1 != 0 {
		l.MinInterval = min(time.Duration(int64(b[6]%96)*tl.tick), MaxPeriod)
	}
	tl.limit = l
	tl.back, tl.give, tl.force = b[7]&2 != 0, b[7]&4 != 0, b[7]&8 != 0
	if kind == GCRA && tl.give {
		tl.start = max(tl.start, 1) // at 0, a bucket that got all back is one without hits
	}
	tl.script = script[8:]
	return tl, true
}

// random writes a script.
func random(rnd *rand.Rand) []byte {
	script := make([]byte, 8+4*(1+rnd.IntN(60)))
	for i := range script {
		script[i] = byte(rnd.Uint32())
	}
	return script
}

// moment is one hit of a timeline.
type moment struct {
	at     int64
	op     Op
	amount uint64
}

// play calls do for one hit after the other, with the verdict on the last one
// told to it: it aims at the edges that the verdicts speak of.
func (tl *timeline) play(do func(m moment) Outcome) {
	at, latest, total := tl.start, tl.start, uint64(0)
	var v Outcome
	for s := tl.script; len(s) >= 4; s = s[4:] {
		switch dt := int64(s[1]); {
		case dt < 100:
			at += dt % 8 * tl.tick
		case dt < 170:
			at += (dt - 100) * tl.tick
		case dt < 180:
			at += dt - 170
		case dt < 190 && v.RetryAfter > 0:
			at = latest + int64(v.RetryAfter) - dt%2
		case dt < 200:
			at = latest + int64(v.ResetAfter) - dt%2
		case dt < 210 && v.FullUntil != 0 && v.FullUntil < latestValidInstant.UnixNano():
			at = v.FullUntil - dt%2
		case dt < 225 && tl.back:
			at -= (dt - 209) * tl.tick
		}
		at = min(max(at, min(tl.start, 1)), latestValidInstant.UnixNano())
		if !tl.back {
			at = max(at, latest)
		}
		latest = max(latest, at)
		m := moment{at: at}
		switch op := s[0] % 16; {
		case op < 2:
			m.op = Look
		case op < 4 && tl.give:
			m.op = Refund
		case op < 6 && tl.force:
			m.op = Force
		}
		switch capacity := tl.limit.Capacity(); {
		case s[2] < 120:
			m.amount = uint64(s[2] % 4)
		case s[2] < 200:
			m.amount = uint64(s[2]) * uint64(s[3]) % (capacity + 2)
		case s[2] < 210:
			m.amount = capacity
		case s[2] < 220:
			m.amount = capacity + 1
		case s[2] < 230:
			m.amount = v.Remaining
		case s[2] < 240:
			m.amount = v.Remaining + 1
		case s[2] < 245:
			m.amount = MaxAmount
		case s[2] < 250:
			m.amount = uint64(s[2]) << (s[3] % 40)
		default:
			m.amount = capacity / uint64(max(s[3], 1))
		}
		if m.amount = min(m.amount, MaxAmount); total+m.amount > MaxScriptCount { // Simulators know no largest count.
			m.amount = 0
		}
		total += m.amount
		v = do(m)
	}
}

// against plays a script on the arithmetic and on the worlds that simulate it,
// which have to agree in every word.
func against(t *testing.T, kind Kind, script []byte, worlds func(tl *timeline) []world) {
	t.Helper()
	tl, ok := decode(kind, script)
	if !ok {
		return
	}
	c := &counter{limit: &tl.limit}
	all := worlds(&tl)
	var told []moment
	tl.play(func(m moment) Outcome {
		told = append(told, m)
		before := c.clone()
		v := c.apply(m.at, m.op, m.amount)
		checkVerdict(t, before, c, m.at, m.op, m.amount, v)
		for _, w := range all {
			if want := ask(w, &tl.limit, m.at, m.op, m.amount); v != want {
				t.Errorf("%T: limit %+v\n got %+v\nwant %+v", w, tl.limit, v, want)
			}
		}
		if t.Failed() {
			for i, m := range told {
				t.Logf("%d: at the start + %d, %v of %d", i, m.at-tl.start, m.op, m.amount)
			}
			t.FailNow()
		}
		return v
	})
}

// randomly plays random scripts, the same ones in every run: a test must not fail by chance. The fuzz targets look for
// others.
func randomly(t *testing.T, rounds int, play func(t *testing.T, script []byte)) {
	t.Helper()
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 1))
	for range rounds {
		play(t, random(rnd))
	}
}

// ceil is n / d rounded up.
func ceil(n *big.Int, d int64) uint64 {
	n = new(big.Int).Add(n, big.NewInt(d-1))
	return n.Div(n, big.NewInt(d)).Uint64()
}

// seedCorpus gives a fuzz target a few scripts to begin with.
func seedCorpus(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 30 {
		f.Add(random(rnd))
	}
	// Three units of two at one instant, then what the verdicts say.
	f.Add([]byte{
		5, 0, 9, 2, 1, 0, 0, 0, 15, 0, 1, 0, 15, 0, 1, 0, 15, 0, 1, 0, 15, 181, 1, 0, 15, 180, 1, 0, 0,
		190, 1, 0,
	})
}
