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

// without reports whether requests have to do without the store.
func (j *judge) without() bool { return j.traits.Fallback && j.fault != None }

// divert makes units do without the store while it is at fault.
func (j *judge) divert(units []unit) {
	if !j.without() {
		return
	}
	for i := range units {
		u := &units[i]
		u.instead = true
		for _, k := range u.keys {
			u.here = append(u.here, here+k)
		}
	}
}

// errs reports whether one of units is left without an answer, and so the request.
func errs(units []unit) bool {
	return slices.ContainsFunc(units, func(u unit) bool {
		return slices.ContainsFunc(u.limits, func(l *Limit) bool { return l.Fallback == "" || l.Fallback == "error" })
	})
}

// denyFor is when callers are told to come back that are refused because the store
// does not answer.
const denyFor = time.Second

// doInstead is do without the store.
func (u *unit) doInstead(s state, wall time.Duration) (state, []verdict) {
	verdicts := make([]verdict, len(u.limits))
	local, of, denied := *u, []int(nil), false
	local.keys, local.limits, local.here = nil, nil, nil
	for i, l := range u.limits {
		never := u.amount > l.capacity()
		switch {
		case l.Fallback == "allow" && !never: // as if nobody had come before
			verdicts[i].remaining = max(l.capacity()-max(u.amount, -u.amount), 0)
		case l.Fallback == "allow", l.Fallback == "deny" && u.amount >= 0:
			verdicts[i] = verdict{over: true, retry: denyFor, reset: denyFor, never: never}
			if never {
				verdicts[i].retry = 0
			}
			denied = denied || u.atomic && !u.shadow
		case l.Fallback == "local":
			of = append(of, i)
			local.limits, local.keys, local.here = append(local.limits, l), append(local.keys, u.keys[i]), append(local.here, u.here[i])
		}
	}
	if len(of) == 0 {
		return s, verdicts
	}
	after, told := s, []verdict(nil)
	if denied { // the group's, and so it is not charged here, either
		told = local.lookHere(s)
	} else {
		after, told = local.doHere(s, wall)
	}
	for k, i := range of {
		verdicts[i] = told[k]
	}
	return after, verdicts
}

// lookHere is what would become of u here, uncharged.
func (u *unit) lookHere(s state) (verdicts []verdict) {
	for i, k := range u.here {
		c := s[k]
		if c == nil {
			c = new(counter)
		}
		verdicts = append(verdicts, c.look(u.limits[i], u.at, u.amount))
	}
	return verdicts
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
