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
	// Holds: limits with holds. AllHeld: all rules have some.
	Holds, AllHeld bool
	// Short: windows by the second, too. Not where counters expire by the clock on
	// the wall.
	Short bool
	// Percents: limits that are enforced for a percentage of counters.
	Percents bool
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
		held := g.can.AllHeld || g.can.Holds && g.chance(40)
		for range g.one(1, 1, 1, 2, 2, 3) {
			l := g.limit()
			if r.None && l.Period == time.Second {
				l.Period = time.Minute // no two stores can promise a group
			}
			if held && (len(r.Limits) == 0 || g.chance(70)) {
				g.hold(&l)
			}
			l.Counting = l.Counting && r.mayCount(&l)
			if !r.any(l.sharesCounter) {
				r.Limits = append(r.Limits, l)
			}
		}
		if g.can.Percents && g.chance(30) {
			r.Percent = g.percent()
		}
		rules = append(rules, r)
	}
	return rules
}

// percent is one that enforces a limit for some of the values, or for all or none.
func (g *dice) percent() int { return int(g.one(0, 1, 20, 44, 50, 60, 90)) }

// mayCount reports whether l may count what it refuses: beside on_reject: none that is an
// error, but for the default of fixed windows, which does nothing there.
func (r *Rule) mayCount(l *Limit) bool { return !r.None || l.Kind == Fixed }

func (g *dice) limit() Limit {
	kinds := []Kind{Fixed, FirstHit, Sliding, Counter, GCRA}
	if g.can.CountingOnly {
		kinds = []Kind{Fixed, Counter}
	}
	l := Limit{
		Kind: kinds[g.IntN(len(kinds))], Max: g.one(1, 2, 3, 3, 5, 7, 10, 20),
		Counting: g.chance(40) || g.can.CountingOnly,
	}
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
	case l.Kind == Fixed && g.chance(15):
		l.Period, l.Calendar = 0, g.calendar()
	case l.Kind == Fixed:
	case g.chance(20):
		l.Period += 500 * time.Millisecond
	}
	return l
}

// holdTimes are long enough that no store forgets a hold by the clock on the wall.
var holdTimes = []int64{30, 60, 100}

// hold gives l a hold, or makes it a concurrency.
func (g *dice) hold(l *Limit) {
	hold := time.Duration(g.one(holdTimes...)) * time.Second
	if g.chance(35) {
		*l = Limit{Kind: Concurrency, Max: l.Max, Hold: hold, Fallback: l.Fallback}
		return
	}
	l.Hold, l.Release, l.Counting, l.Interval = hold, g.chance(40), false, 0
	l.Max = max(l.Max, 1)
}

// zones differ in when their clocks change: never, at 1 or 2 in the morning, at midnight, or by half an hour.
var zones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "America/Havana", "Africa/Cairo", "Asia/Beirut",
	"Australia/Lord_Howe", "Asia/Kolkata",
}

func (g *dice) calendar() Calendar {
	c := Calendar{
		Unit: []string{"day", "week", "month", "year"}[g.IntN(4)], Units: int(g.one(1, 1, 1, 2, 3, 10)),
		Zone: zones[g.IntN(len(zones))],
	}
	switch c.Unit {
	case "month":
		c.Anchor = int(g.one(1, 1, 15, 28))
	case "week":
		c.Starts = weekdays[g.IntN(len(weekdays))]
	}
	return c
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
	if g.chance(15) && g.tickToBorder() {
		return
	}
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

// tickToBorder moves the clock to about the end of a window of a calendar, or of a hold that is opened now. It reports
// whether the rules have one of them.
func (g *dice) tickToBorder() bool {
	for i := range g.rules {
		for j := range g.rules[i].Limits {
			l := &g.rules[i].Limits[j]
			switch off := time.Duration(g.IntN(3)-1) * time.Microsecond; {
			case l.Hold > 0 && g.chance(60):
				g.at += l.Hold + off
			case l.Calendar != Calendar{}:
				_, to := l.Calendar.bounds(int64(g.at))
				g.at = time.Duration(to) + off
				if g.chance(30) {
					g.at += time.Duration(g.IntN(300)) * 24 * time.Hour
				}
			default:
				continue
			}
			g.at = min(g.at, latest)
			return true
		}
	}
	return false
}

// latest is the last instant of a script.
const latest = 90_000 * time.Hour

// change alters what a reload may: how much a limit allows and what it counts. A
// window of another length would be another counter, or not, as the store likes.
func (g *dice) change() {
	g.rules = slices.Clone(g.rules)
	r := &g.rules[g.IntN(len(g.rules))]
	r.Limits = slices.Clone(r.Limits)
	l := &r.Limits[g.IntN(len(r.Limits))]
	if g.can.Percents && g.chance(20) {
		r.Percent = g.percent()
		return
	}
	switch g.IntN(3) {
	case 0:
		l.Max = g.one(1, 2, 3, 5, 8, 13)
	case 1:
		l.Counting = (!l.Counting || g.can.CountingOnly) && r.mayCount(l) && l.Hold == 0
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
			g.name(&d)
			ask = append(ask, d)
		}
		asks = append(asks, ask)
	}
	return asks
}

// name gives d a hold, where there are some. A few names come again and again, also when they are done.
func (g *dice) name(d *Descriptor) {
	r := g.rules.find(d.Key)
	if r == nil || !r.any(func(l *Limit) bool { return l.Hold > 0 }) {
		return
	}
	if slots := r.any(func(l *Limit) bool { return l.Kind == Concurrency }); g.chance(3) || !slots && g.chance(15) {
		return
	}
	d.Hold = string("pqrstuvw"[g.IntN(8)])
	switch n := g.IntN(100); {
	case n < 25:
		d.Action, d.Amount = Settle, g.one(0, 1, 1, 2, 3, 5, 8)
	case n < 40:
		d.Action, d.Amount = Release, g.one(0, 1, 1, -1)
	case n < 45:
		d.Amount = -1
	}
}
