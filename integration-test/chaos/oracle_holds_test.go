package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// hold is what one caller asked about its hold, in the order of sending.
type hold struct {
	id          int
	takes, ends []call
}

// holdsOf sorts the calls of one key by their holds.
func holdsOf(calls []call) []*hold {
	byID := make(map[int]*hold)
	for _, c := range slices.SortedFunc(slices.Values(calls), func(a, b call) int { return a.sent.Compare(b.sent) }) {
		h := byID[c.hold.id]
		if h == nil {
			h = &hold{id: c.hold.id}
			byID[h.id] = h
		}
		if c.hold.action == take {
			h.takes = append(h.takes, c)
		} else {
			h.ends = append(h.ends, c)
		}
	}
	return slices.SortedFunc(maps.Values(byID), func(a, b *hold) int { return cmp.Compare(a.id, b.id) })
}

// stretch is a time in which units count against a limit.
type stretch struct {
	from, to time.Time
	units    int
}

// certain are the stretches in which a hold counted, whatever happened between a call and its answer: while
// it was open, and then what was charged for it, to the end of the window. Of a settlement that is only what
// was reserved: the rest may exceed the limit.
func (h *hold) certain(k kind) (list []stretch) {
	add := func(from, to time.Time, units int) {
		if from.Before(to) {
			list = append(list, stretch{from, to, units})
		}
	}
	i := slices.IndexFunc(h.takes, func(c call) bool { return c.what == passed })
	if i < 0 || len(h.ends) > 0 && !h.takes[i].sent.Before(h.ends[0].sent) {
		return nil
	}
	if k == reservations {
		before, _ := k.windowAt(h.takes[i].sent)
		if after, _ := k.windowAt(h.takes[i].answered()); !before.Equal(after) {
			return nil // It may be decided by what was charged in the window before.
		}
	}
	opened, expires := h.takes[i].answered(), h.takes[0].sent.Add(holdTime)
	closed := expires
	if len(h.ends) > 0 && h.ends[0].sent.Before(expires) {
		closed = h.ends[0].sent
	}
	add(opened, closed, reserve)
	if k != reservations {
		return list
	}
	// It is charged between the two.
	charged, known, units := expires, opened.Add(holdTime), reserve
	if len(h.ends) > 0 {
		j := slices.IndexFunc(h.ends, func(c call) bool { return c.what == passed })
		if j < 0 || h.ends[j].hold.action != settle {
			return list
		}
		charged, known, units = closed, h.ends[j].answered(), min(int(h.ends[j].hold.units), reserve)
	}
	_, end := k.windowAt(charged)
	add(known, end, units)
	return list
}

// fullestHeld holds the callers of one key to the guarantee of holds: what was settled in a window and what is
// open exceed the limit by at most what settlements exceed their reservations. calls are those of the holds that
// count in the fullest instant, one a line as in TestFullestHeld, in milliseconds from the start of the window.
func fullestHeld(k kind, a allowance, holds []*hold) (worst fullness, calls string) {
	var all []stretch
	for _, h := range holds {
		all = append(all, h.certain(k)...)
	}
	worst.most = int(a) * limit
	var at time.Time
	for _, begin := range all {
		units := 0
		for _, s := range all {
			if s.contains(begin.from) {
				units += s.units
			}
		}
		if units > worst.admitted {
			worst.admitted, at = units, begin.from
		}
	}
	start, _ := k.windowAt(at)
	for _, h := range holds {
		if slices.ContainsFunc(h.certain(k), func(s stretch) bool { return s.contains(at) }) {
			calls += h.text(start)
		}
	}
	return worst, calls
}

func (s stretch) contains(at time.Time) bool { return !s.from.After(at) && s.to.After(at) }

// text is the calls about a hold, as holdCalls reads them.
func (h *hold) text(start time.Time) string {
	var b strings.Builder
	for _, c := range slices.Concat(h.takes, h.ends) {
		action := [...]string{take: "take", settle: fmt.Sprint("settle:", c.hold.units), release: "release"}[c.hold.action]
		fmt.Fprintf(&b, "\n%d %s %d-%d %v", h.id, action, c.sent.Sub(start).Milliseconds(),
			c.answered().Sub(start).Milliseconds(), c.what)
		if c.locally {
			b.WriteString(" local")
		}
	}
	return b.String()
}

// circumstances are what an oracle must know of a fault to tell what may have happened.
type circumstances struct {
	recovery time.Time // what had no answer by then was done soon after, if ever
	lossy    bool      // before the recovery, the store may have forgotten what it answered
}

// grace is how long after the recovery a store may still do what arrived during the fault.
const grace = time.Second

// decider is what counts: the store, or the process itself during an outage.
type decider struct{ locally bool }

func (d decider) decided(c call) bool {
	return c.locally == d.locally && (c.what == passed || c.what == over)
}

// reached tells whether a call may have changed what d counts. The process asks the store first, and calls
// that the store decides change nothing in the process.
func (d decider) reached(c call) bool {
	return d.decided(c) && c.what == passed ||
		!d.decided(c) && (!d.locally || c.locally || c.what != passed && c.what != over)
}

// latest is when a call had its effect on what d counts, at the latest.
func (d decider) latest(c call, x circumstances) time.Time {
	if d.decided(c) {
		return c.answered()
	}
	if c.answered().After(x.recovery) {
		return c.answered().Add(grace)
	}
	return x.recovery.Add(grace)
}

// possible are the stretches in which d may have counted a hold, at most.
func (h *hold) possible(k kind, d decider, x circumstances) (list []stretch) {
	lost := func(c call) bool { return x.lossy && !d.locally && c.sent.Before(x.recovery) }
	var earliest, opened time.Time
	opens, known := false, false // it was opened for certain, and only once
	remembered := func(c call) bool {
		at := d.latest(c, x)
		return known && (at.Before(earliest.Add(holdTime)) || slices.ContainsFunc(h.ends, func(end call) bool {
			return d.decided(end) && !lost(end) && end.answered().Before(c.sent) && at.Before(end.sent.Add(holdTime))
		}))
	}
	for _, c := range h.takes {
		if !d.reached(c) || remembered(c) {
			continue
		}
		if known = !opens && d.decided(c) && !lost(c); !opens {
			earliest, opens = c.sent, true
		}
		if at := d.latest(c, x); at.After(opened) {
			opened = at
		}
	}
	end := opened.Add(holdTime)
	if i := slices.IndexFunc(h.ends, func(c call) bool { return d.decided(c) && !lost(c) }); known && i >= 0 &&
		h.ends[i].answered().Before(end) {
		end = h.ends[i].answered()
	}
	if opens {
		list = append(list, stretch{earliest, end, reserve})
	}
	if k != reservations {
		return list
	}
	charged := func(from, to time.Time, units int) {
		_, to = k.windowAt(to)
		list = append(list, stretch{from, to, units})
	}
	if expires := earliest.Add(holdTime); opens && !end.Before(expires) {
		charged(expires, end, reserve)
	}
	for _, c := range h.ends {
		if d.reached(c) && c.hold.action == settle {
			charged(c.sent, d.latest(c, x), int(c.hold.units))
			if d.decided(c) && !lost(c) {
				break // Another settlement changes nothing.
			}
		}
	}
	return list
}

// wronglyRefused says what was refused without a reason; empty if nothing was: a settlement or release, a
// hold that was open, or one for which there was room. In this way slots of dead callers have to return.
// checked is the number of refusals.
func wronglyRefused(k kind, holds []*hold, x circumstances) (complaint string, checked int) {
	possible := make(map[decider][][]stretch)
	for _, d := range []decider{{false}, {true}} {
		for _, h := range holds {
			possible[d] = append(possible[d], h.possible(k, d, x))
		}
	}
	for i, h := range holds {
		for _, c := range h.ends {
			if c.what == over {
				return fmt.Sprintf("the end of hold %d was refused", h.id), checked
			}
		}
		for _, c := range h.takes {
			if c.what != over {
				continue
			}
			d := decider{c.locally}
			checked++
			if first := h.takes[0]; first.what == passed && d.decided(first) && !x.lossy &&
				c.answered().Before(first.sent.Add(holdTime)) {
				return fmt.Sprintf("hold %d was refused although it was open", h.id), checked
			}
			units := 0
			for j, list := range possible[d] {
				if j == i {
					continue
				}
				for _, s := range list {
					if !s.from.After(c.answered()) && !s.to.Before(c.sent) {
						units += s.units
					}
				}
			}
			if units+reserve <= limit {
				return fmt.Sprintf("hold %d was refused although at most %d of %d were taken", h.id, units, limit), checked
			}
		}
	}
	return "", checked
}
