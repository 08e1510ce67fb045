package model

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Answer is what became of a request.
type Answer struct {
	// Failed: there is no answer, and what was charged is unknown. Why is for
	// people.
	Failed bool
	Why    string
	// Over is the overall code, Statuses has one element for each descriptor.
	Over     bool
	Statuses []Status
	// Retry is the Retry-After header in whole seconds; -1: there is none.
	Retry int64
}

// Status is the answer on one descriptor.
type Status struct {
	Over bool
	// Limit is the limit that callers are told of; -1: none applies.
	Limit     int64
	Remaining int64
	Reset     time.Duration
}

// String is the status in short.
func (s Status) String() string {
	code := "OK"
	if s.Over {
		code = "OVER_LIMIT"
	}
	if s.Limit < 0 {
		return code
	}
	return fmt.Sprintf("%s %d of %d reset %v", code, s.Remaining, s.Limit, s.Reset)
}

// String is the answer in short.
func (a *Answer) String() string {
	if a.Failed {
		return "failed: " + a.Why
	}
	text := fmt.Sprintf("%v", a.Statuses)
	if a.Over {
		text = "OVER_LIMIT " + text
	}
	if a.Retry >= 0 {
		text += fmt.Sprintf(" retry after %d", a.Retry)
	}
	return text
}

// unit is what a store does in one: a charge, or those that stand or fall
// together. Between units of one request those of others may come.
type unit struct {
	call, descriptor int // whose it is
	at               int64
	wish             wish
	atomic, shadow   bool
	keys             []string
	limits           []*Limit
	// Of one that failed: when, by the clock on the wall, and that its time is over:
	// it was charged by now, or never will be.
	wall  time.Duration
	final bool
	// Fallback: it has to do without the store, as each of its limits says; here are the
	// counters of this process for it.
	instead bool
	here    []string
}

// state is all that the store counts. It is copied, never changed, but for its
// counters, which are copied before they are.
type state map[string]*counter

// heldSuffix ends the names of counters with holds.
const heldSuffix = " held"

// counterName is what tells counters apart.
func counterName(d *Descriptor, l *Limit) string {
	name := fmt.Sprintf("%s=%s %s %v", d.Key, d.Value, l.Kind, l.Period)
	if l.Calendar != (Calendar{}) {
		name += l.Calendar.String()
	}
	if l.Hold > 0 {
		name += heldSuffix
	}
	return name
}

// units are those of a request at an instant, in their order.
func (rs Rules) units(call int, ask Ask, at int64) (units []unit) {
	for i := range ask {
		d := &ask[i]
		r := rs.of(d)
		if r == nil {
			continue
		}
		w := wish{amount: d.Amount, id: d.Hold, action: d.Action}
		whole := unit{
			call: call, descriptor: i, at: at, wish: w, atomic: r.None && d.Amount >= 0 && d.Action == "",
			shadow: r.shadows(d),
		}
		for _, l := range r.asked(d) {
			whole.keys, whole.limits = append(whole.keys, counterName(d, l)), append(whole.limits, l)
		}
		if whole.atomic {
			units = append(units, whole)
			continue
		}
		for j := range whole.keys {
			part := whole
			part.keys, part.limits = whole.keys[j:j+1], whole.limits[j:j+1]
			units = append(units, part)
		}
	}
	return units
}

// counters are those that u charges: the store's, or those of this process.
func (u *unit) counters() []string {
	if !u.instead {
		return u.keys
	}
	var local []string
	for i, l := range u.limits {
		if l.Fallback == "local" {
			local = append(local, u.here[i])
		}
	}
	return local
}

// touches reports whether the two have a counter in common.
func (u *unit) touches(other *unit) bool {
	for _, k := range u.counters() {
		for _, o := range other.counters() {
			if k == o {
				return true
			}
		}
	}
	return false
}

// do is the state after u, and the verdicts of its limits. s stays as it is.
func (u *unit) do(s state, wall time.Duration) (state, []verdict) {
	after := make(state, len(s)+len(u.keys))
	for k, c := range s {
		after[k] = c
	}
	verdicts, refused := make([]verdict, len(u.keys)), false
	for i, k := range u.keys {
		c := new(counter)
		if s[k] != nil {
			c = s[k].clone()
		}
		verdicts[i] = c.take(u.limits[i], u.at, u.wish)
		if c.wrote {
			c.wrote, c.written = false, wall
		}
		refused = refused || verdicts[i].over && !u.shadow
		after[k] = c
	}
	if !refused || !u.atomic {
		return after, verdicts
	}
	before := maps.Clone(s)
	for i, k := range u.keys { // nothing is charged, and the state before it told
		c := new(counter)
		if s[k] != nil {
			c = s[k].clone()
		}
		tried, v := verdicts[i], c.take(u.limits[i], u.at, u.asLook())
		if c.wrote {
			c.wrote, c.written = false, wall
		}
		before[k] = c
		switch {
		case !tried.over:
			v.retry, v.never = 0, false
		case !v.over:
			v.retry, v.never = tried.retry, tried.never
			if !u.limits[i].tellsRest() {
				v.remaining = 0
			}
		}
		v.over = tried.over
		verdicts[i] = v
	}
	return before, verdicts
}

// asLook is what u asks, without a change.
func (u *unit) asLook() wish {
	w := u.wish
	w.look = true
	return w
}

// leavesTrace reports whether u may change its counters: a look at holds removes those that have expired, and one after
// the clock stepped back starts waits.
func (u *unit) leavesTrace() bool {
	return u.wish.amount != 0 || slices.ContainsFunc(u.limits,
		func(l *Limit) bool { return l.Kind != Fixed || l.Hold > 0 })
}

// uncounted are the counters of u that a cache in front of the store may leave as they
// are in state s: what is beyond its limit already need not be counted any further.
func (u *unit) uncounted(s state) (keys []string) {
	for i, l := range u.limits {
		c := s[u.keys[i]]
		if u.wish.amount > 0 && l.Kind == Fixed && l.Counting && c != nil && c.sum(fixed{}.counted(l, c, u.at)) > l.Max {
			keys = append(keys, u.keys[i])
		}
	}
	return keys
}

// told rounds a time as callers are told it: up to a whole second for fixed
// windows, to a microsecond for others.
func told(l *Limit, d time.Duration) time.Duration {
	unit := time.Microsecond
	if l.Kind == Fixed {
		unit = time.Second
	}
	whole := d.Truncate(unit)
	if whole < d {
		whole += unit
	}
	return whole
}

// decision is the answer on a descriptor, and what the request's depends on.
type decision struct {
	Status
	wait  time.Duration
	never bool
}

// decide is the answer of a rule on a descriptor from the verdicts of its limits.
func (r *Rule) decide(on *Descriptor, limits []*Limit, verdicts []verdict) decision {
	if r == nil {
		return decision{Status: Status{Limit: -1}}
	}
	binding, reset, until := -1, time.Duration(0), time.Duration(0)
	var d decision
	for i := range verdicts {
		v, l := &verdicts[i], limits[i]
		reset = max(reset, told(l, v.reset))
		if !v.over || r.shadows(on) {
			if !d.Over && (binding < 0 || v.remaining < verdicts[binding].remaining) {
				binding = i
			}
			continue
		}
		longer := v.never && !d.never || !v.never && !d.never && v.retry > d.wait
		if !d.Over || longer {
			binding, d.wait, d.never = i, v.retry, v.never
		}
		d.Over = true
		if v.never {
			until = max(until, told(l, v.reset))
		} else {
			until = max(until, told(l, v.retry))
		}
	}
	d.Limit, d.Remaining, d.Reset = limits[binding].Max, verdicts[binding].remaining, reset
	if d.Over {
		d.Reset = until
	}
	return d
}

// answer is that of a whole request.
func answer(decisions []decision) *Answer {
	a := &Answer{Retry: -1}
	wait, never := time.Duration(0), false
	for _, d := range decisions {
		a.Statuses = append(a.Statuses, d.Status)
		if d.Over {
			a.Over, wait, never = true, max(wait, d.wait), never || d.never
		}
	}
	if a.Over && !never {
		a.Retry = int64((wait + time.Second - 1) / time.Second)
	}
	return a
}
