package model

import (
	"fmt"
	"slices"
	"time"
)

// Action is the value of the entry `hold` of a descriptor.
type Action string

// The actions. Without one a descriptor opens its hold, or releases it if its amount is below 0.
const (
	Settle  Action = "settle"
	Release Action = "release"
)

// hold is an amount that was taken under a name.
type hold struct {
	id    string
	since int64 // when it was opened, or when it was done
	// units are what it holds while it is open. When it is done they are what was charged
	// because it expired.
	units int64
	done  bool
}

// holds are those of a counter, in the order in which they were opened or done.
type holds struct {
	list   []hold
	newest int64 // the time of the last change
	ahead  int64 // how far the time of holds is ahead of the clock, which may have stepped back
}

func (h *holds) String() string {
	if len(h.list) == 0 {
		return ""
	}
	return fmt.Sprintf(" %v %d %d", h.list, h.newest, h.ahead)
}

// now is the time of the holds. It does not go back behind the last change; back reports whether the clock has.
func (h *holds) now(at int64) (now int64, back bool) {
	back = h.newest-at > h.ahead
	h.ahead = max(h.ahead, h.newest-at)
	return at + h.ahead, back
}

func (h *holds) find(id string) int {
	return slices.IndexFunc(h.list, func(o hold) bool { return o.id == id && id != "" })
}

func (h *holds) open() (units int64) {
	for _, o := range h.list {
		if !o.done {
			units += o.units
		}
	}
	return units
}

// add is also for a hold that is known: it takes the place of that one.
func (h *holds) add(o hold) {
	if i := h.find(o.id); i >= 0 {
		h.list = slices.Delete(h.list, i, i+1)
	}
	h.list, h.newest = append(h.list, o), max(h.newest, o.since)
}

// expire ends holds that are open for too long: what is not released is charged as of when it ended. It forgets those
// that are done for as long.
func (c *counter) expire(l *Limit, at int64) (now int64, charged bool) {
	now, back := c.holds.now(at)
	ends := func(o hold) int64 { return o.since + int64(l.Hold) }
	for _, o := range slices.Clone(c.holds.list) {
		if ends(o) > now || o.done || l.Kind == Concurrency || l.Release {
			continue
		}
		then := at - (now - ends(o))
		if back { // When the hold expired is not known.
			then = at
		}
		methods[l.Kind].record(l, c, then, o.units)
		charged = true
		c.holds.add(hold{id: o.id, since: ends(o), units: o.units, done: true})
	}
	c.holds.list = slices.DeleteFunc(c.holds.list, func(o hold) bool { return ends(o) <= now })
	return now, charged
}

// wish is what a descriptor asks of a limit.
type wish struct {
	amount int64 // below 0: a refund
	id     string
	action Action
	look   bool // changes nothing
}

func (w *wish) releases() bool { return w.action == Release || w.action == "" && w.amount < 0 }

// applyHeld is apply for a limit with holds: the hits that count are those that were settled, and open holds
// are in addition to them.
func (c *counter) applyHeld(l *Limit, at int64, w wish) verdict {
	m := methods[l.Kind]
	now, wrote := c.expire(l, at)
	v, own := verdict{}, hold{}
	known := c.holds.find(w.id)
	if known >= 0 {
		own = c.holds.list[known]
	}
	charge := func(amount int64) {
		if amount > 0 {
			m.record(l, c, at, amount)
			wrote = true
		}
	}
	open := c.holds.open()
	wrote = m.adopt(l, c, at) || wrote
	switch {
	case w.id == "" && w.amount < 0:
		wrote = m.give(l, c, at, -w.amount) > 0 || wrote
	case w.releases():
		if !own.done {
			c.holds.add(hold{id: w.id, since: now, done: true})
		}
	case w.action == Settle:
		if !own.done || own.units > 0 {
			charge(max(w.amount-c.credit(own), 0))
			c.holds.add(hold{id: w.id, since: now, done: true})
		}
	case known >= 0: // it passed before
	case l.Max == 0 || !m.fits(l, c, at, w.amount+open):
		v.over = true
		v.never = !l.canPass(w.amount)
		if !v.never {
			v.retry = c.wait(l, at, w.amount)
		}
	case w.look || w.amount == 0:
	case w.id == "":
		charge(w.amount)
	default:
		c.holds.add(hold{id: w.id, since: now, units: w.amount})
	}
	rest := c.describeHeld(l, at, &v)
	if wrote {
		c.life, c.wrote = rest, true
	}
	c.until = max(c.until, at+int64(v.reset), c.holds.newest-c.holds.ahead+int64(l.Hold))
	return v
}

// credit is what was charged for a hold already.
func (c *counter) credit(own hold) int64 {
	if own.done {
		return own.units
	}
	return 0
}

// wait is how long a refused hit waits, if no other comes.
func (c *counter) wait(l *Limit, at, amount int64) time.Duration {
	return wait(at, func(then int64) bool {
		seen := c.clone()
		seen.expire(l, then)
		return methods[l.Kind].fits(l, seen, then, amount+seen.holds.open())
	})
}

// describeHeld fills in what follows from the state after the hit. It returns how long what is charged counts.
func (c *counter) describeHeld(l *Limit, at int64, v *verdict) (rest time.Duration) {
	var base verdict
	c.describe(l, at, 0, &base)
	v.remaining, v.reset = max(base.remaining-c.holds.open(), 0), base.reset
	for i := len(c.holds.list) - 1; i >= 0; i-- {
		if c.holds.list[i].done {
			continue
		}
		// The newest hold ends, and what it charges counts for some more time.
		seen := c.clone()
		end := c.holds.list[i].since + int64(l.Hold) - c.holds.ahead
		seen.expire(l, end)
		var then verdict
		if l.Kind != Concurrency && !l.Release {
			seen.describe(l, end, 0, &then)
		}
		v.reset = max(v.reset, time.Duration(end-at)+then.reset)
		break
	}
	return base.reset
}

// slots count only what is held.
type slots struct{ plain }

func (slots) fits(l *Limit, _ *counter, _, amount int64) bool { return amount <= l.Max }

func (slots) waits(_ *Limit, _ *counter, _, _ int64) (retry, reset time.Duration) { return 0, 0 }

func (slots) record(_ *Limit, _ *counter, _, _ int64) {}

func (slots) give(_ *Limit, _ *counter, _, _ int64) int64 { return 0 }
