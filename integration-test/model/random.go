package model

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Can is what scripts may ask of a store.
type Can struct {
	Store string
	// CountingOnly: fixed windows and sliding window counters that count what they
	// refuse, and no groups; what Memcached can do.
	CountingOnly bool
	// Short: windows by the second, too. Not where counters expire by the clock on
	// the wall.
	Short bool
	// Fallback: rules say what becomes of hits without the store.
	Fallback bool
	// Single: one request at a time. The checker assumes that a request charges its
	// limits in their order and at once, which is not so where a store is two, or
	// where a cache answers for some of them before the store is asked for the rest.
	Single bool
	// Faults are those there may be.
	Faults []Fault
}

// Random is the script of a seed: always the same.
func Random(seed uint64, can Can) *Script {
	g := &dice{Rand: rand.New(rand.NewPCG(seed, 0x5eed)), can: can}
	s := &Script{Store: can.Store}
	g.rules = g.newRules()
	s.Steps = append(s.Steps, Step{Rules: slices.Clone(g.rules)})
	for range 20 + g.IntN(25) {
		s.Steps = append(s.Steps, g.step()...)
	}
	if g.fault != None && g.fault != "" {
		s.Steps = append(s.Steps, Step{Fault: None}, Step{Asks: g.asks(1)}, Step{Asks: g.asks(1)})
	}
	return s
}

type dice struct {
	*rand.Rand
	can   Can
	rules Rules
	at    time.Duration
	fault Fault
	// failing is how many requests the fault may still make fail: each of them
	// multiplies what the checker has to consider.
	failing int
}

func (g *dice) one(of ...int64) int64 { return of[g.IntN(len(of))] }

func (g *dice) chance(percent int) bool { return g.IntN(100) < percent }

func (g *dice) newRules() (rules Rules) {
	for _, key := range []string{"a", "b", "c"} {
		r := Rule{Key: key, None: g.chance(30) && !g.can.CountingOnly, Shadow: g.chance(10)}
		for range g.one(1, 1, 1, 2, 2, 3) {
			l := g.limit()
			if r.None && l.Period == time.Second {
				l.Period = time.Minute // no two stores can promise a group
			}
			l.Counting = l.Counting && r.mayCount(&l)
			if !slices.ContainsFunc(r.Limits, func(o Limit) bool { return o.Kind == l.Kind && o.Period == l.Period }) {
				r.Limits = append(r.Limits, l)
			}
		}
		rules = append(rules, r)
	}
	return rules
}

// mayCount reports whether l may count what it refuses: beside on_reject: none that is an
// error, but for the default of fixed windows, which does nothing there.
func (r *Rule) mayCount(l *Limit) bool { return !r.None || l.Kind == Fixed }

func (g *dice) limit() Limit {
	kinds := Kinds()
	if g.can.CountingOnly {
		kinds = []Kind{Fixed, Counter}
	}
	l := Limit{Kind: kinds[g.IntN(len(kinds))], Max: g.one(1, 2, 3, 3, 5, 7, 10, 20), Counting: g.chance(40) || g.can.CountingOnly}
	if g.can.Fallback {
		l.Fallback = onFailures[g.one(0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3)]
	}
	if g.chance(3) {
		l.Max = 0
	}
	periods := []int64{60, 60, 60, 90, 3600}
	if g.can.Short {
		periods = append(periods, 1, 1, 10)
	}
	l.Period = time.Duration(g.one(periods...)) * time.Second
	switch {
	case l.Kind == GCRA:
		l.Burst = g.one(0, 1, max(l.Max-1, 0), 5)
		if g.chance(15) {
			l.Interval = time.Duration(g.one(1, 5, 100)) * time.Second
		}
	case l.Kind == Sliding && g.chance(25):
		l.Interval = time.Duration(g.one(1, 5, 15, 100)) * time.Second
	case l.Kind == Fixed:
	case g.chance(20):
		l.Period += 500 * time.Millisecond
	}
	return l
}

func (g *dice) step() []Step {
	healthy := g.fault == "" || g.fault == None
	switch n := g.IntN(100); {
	case n < 22:
		g.tick()
		return []Step{{Clock: true, At: g.at}}
	case n < 26 && healthy:
		g.change()
		return []Step{{Rules: slices.Clone(g.rules)}}
	case n < 36 && len(g.can.Faults) > 0:
		if !healthy {
			g.fault = None
			return []Step{{Fault: None}}
		}
		f := g.can.Faults[g.IntN(len(g.can.Faults))]
		if f != Wipe { // which does not last
			g.fault, g.failing = f, 2
		}
		return []Step{{Fault: f}}
	}
	if !healthy {
		if g.failing--; g.failing < 0 {
			g.fault = None
			return []Step{{Fault: None}}
		}
		return []Step{{Asks: g.asks(1)}}
	}
	if g.can.Single {
		return []Step{{Asks: g.asks(1)}}
	}
	return []Step{{Asks: g.asks(int(g.one(1, 1, 1, 1, 2, 3)))}}
}

// tick moves the clock: a little, to an edge, far, or in a few cases back.
func (g *dice) tick() {
	micro := func(most int64) time.Duration { return time.Duration(g.Int64N(most)) * time.Microsecond }
	switch n := g.IntN(100); {
	case n < 15:
		g.at = g.at.Truncate(time.Minute) + time.Minute + time.Duration(g.IntN(3)-1)*time.Microsecond
	case n < 20:
		g.at += micro(int64(2 * time.Hour / time.Microsecond))
	case n < 27:
		g.at = max(0, g.at-micro(20_000_000))
	case n < 50:
		g.at += time.Duration(g.IntN(20)) * time.Second
	default:
		g.at += micro(30_000_000)
	}
}

// change alters what a reload may: how much a limit allows and what it counts. A
// window of another length would be another counter, or not, as the store likes.
func (g *dice) change() {
	g.rules = slices.Clone(g.rules)
	r := &g.rules[g.IntN(len(g.rules))]
	r.Limits = slices.Clone(r.Limits)
	l := &r.Limits[g.IntN(len(r.Limits))]
	switch g.IntN(3) {
	case 0:
		l.Max = g.one(1, 2, 3, 5, 8, 13)
	case 1:
		l.Counting = (!l.Counting || g.can.CountingOnly) && r.mayCount(l)
	default:
		r.Shadow = !r.Shadow
	}
}

func (g *dice) asks(n int) (asks []Ask) {
	for range n {
		var ask Ask
		for range g.one(1, 1, 1, 2, 3) {
			d := Descriptor{Key: string("abcx"[min(g.IntN(22)/7, 3)]), Value: string("12"[g.IntN(5)/4]), Amount: 1}
			switch k := g.IntN(100); {
			case k < 10:
				d.Amount = 0
			case k < 22:
				d.Amount = -g.one(1, 1, 2, 5)
			case k < 45:
				d.Amount = g.one(2, 2, 3, 4, 8)
			case k < 46:
				d.Amount = g.one(100, maxAmount)
			}
			ask = append(ask, d)
		}
		asks = append(asks, ask)
	}
	return asks
}
