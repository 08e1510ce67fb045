package model

import (
	"slices"
	"strings"
	"time"
)

// Counters of this process, which stand in for the store's, and what the store does
// not have of them.
const (
	here = "here "
	owed = "owed "
)

// divert makes units do without the store while it is at fault.
func (j *judge) divert(units []unit) {
	if !j.traits.Instead || j.fault == None {
		return
	}
	for i := range units {
		u := &units[i]
		key, _, _ := strings.Cut(u.keys[0], "=")
		u.instead = j.rules.find(key).OnFailure
		for _, k := range u.keys {
			u.here = append(u.here, here+k)
		}
	}
}

// denyFor is when callers are told to come back that are refused because the store
// does not answer.
const denyFor = time.Second

// doInstead is do without the store.
func (u *unit) doInstead(s state, wall time.Duration) (state, []verdict) {
	if u.instead == "local" {
		return u.doHere(s, wall)
	}
	verdicts := make([]verdict, len(u.limits))
	for i, l := range u.limits {
		amount := max(u.amount, -u.amount)
		switch {
		case u.instead == "allow": // as if nobody had come before
			verdicts[i].remaining = max(l.capacity()-amount, 0)
		case u.amount >= 0:
			verdicts[i] = verdict{over: true, retry: denyFor, reset: denyFor}
		}
	}
	return s, verdicts
}

// doHere counts here, against the share of the only replica: the whole limit. What
// is charged so is owed to the store.
func (u *unit) doHere(s state, wall time.Duration) (state, []verdict) {
	local := *u
	local.keys = u.here
	after, verdicts := local.do(s, wall)
	for i, k := range u.here {
		switch was, is := s[k], after[k]; {
		case u.amount == 0 || is == nil:
		case u.amount < 0: // given back, wherever it was charged
			after[owed+u.keys[i]] = &counter{hasLast: true}
		case was == nil && len(is.hits) > 0, was != nil && was.String() != is.String():
			debt := new(counter)
			if before := after[owed+u.keys[i]]; before != nil {
				debt = before.clone()
			}
			debt.hits = append(debt.hits, hit{at: u.at, amount: u.amount})
			after[owed+u.keys[i]] = debt
		}
	}
	return after, verdicts
}

// pay adds to the store what is owed to it. Of fixed windows that is what was charged
// in the one that the clock shows; what others get depends on how much of it fades,
// so nothing is known of those from here on, nor where something was given back.
func (j *judge) pay() {
	for i := range j.worlds {
		w := &j.worlds[i]
		after := make(state, len(w.state))
		for k, c := range w.state {
			if !strings.HasPrefix(k, owed) {
				after[k] = c
			}
		}
		for k, debt := range w.state {
			key, ok := strings.CutPrefix(k, owed)
			if !ok {
				continue
			}
			l := j.limitOf(key)
			late := func(u *unit) bool { return slices.Contains(u.keys, key) } // before this, or after?
			if l == nil || l.Kind != Fixed || debt.hasLast || slices.ContainsFunc(w.pending, late) {
				j.lost[key] = true
				continue
			}
			if n := debt.sum(inWindow(l, j.at)); n > 0 {
				c := new(counter)
				if after[key] != nil {
					c = after[key].clone()
				}
				methods[Fixed].record(l, c, j.at, n)
				_, left := methods[Fixed].waits(l, c, j.at, 0)
				c.until = j.at + int64(left)
				after[key] = c
			}
		}
		w.state = after
	}
}

// limitOf is the limit that counts under a name.
func (j *judge) limitOf(name string) *Limit {
	for i := range j.rules {
		for k := range j.rules[i].Limits {
			value := name[strings.Index(name, "=")+1:]
			value, _, _ = strings.Cut(value, " ")
			if l := &j.rules[i].Limits[k]; counterName(&Descriptor{Key: j.rules[i].Key, Value: value}, l) == name {
				return l
			}
		}
	}
	return nil
}
