package model

import (
	"slices"
	"time"
)

// here is in front of the names of counters of this process, which stand in for the store's.
const here = "here "

// without reports whether requests have to do without the store.
func (ch *checker) without() bool { return ch.traits.Fallback && ch.fault != None }

// divert makes units do without the store while it is at fault.
func (ch *checker) divert(units []unit) {
	if !ch.without() {
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
		amount := u.wish.amount
		refusable := amount >= 0 && u.wish.action == ""
		never := refusable && !l.canPass(amount)
		switch {
		case l.Fallback == "allow" && !never: // as for the first request
			verdicts[i].remaining = max(l.capacity()-max(amount, -amount), 0)
		case l.Fallback == "allow", l.Fallback == "deny" && refusable:
			verdicts[i] = verdict{over: true, retry: denyFor, reset: denyFor, never: never}
			if never {
				verdicts[i].retry = 0
			}
			denied = denied || u.atomic && !u.shadow
		case l.Fallback == "local":
			of = append(of, i)
			local.limits, local.keys, local.here = append(local.limits, l), append(local.keys, u.keys[i]),
				append(local.here, u.here[i])
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
		c := new(counter)
		if s[k] != nil {
			c = s[k].clone()
		}
		verdicts = append(verdicts, c.take(u.limits[i], u.at, u.asLook()))
	}
	return verdicts
}

// doHere counts here, against the share of the only replica: the whole limit.
func (u *unit) doHere(s state, wall time.Duration) (state, []verdict) {
	local := *u
	local.keys = u.here
	return local.do(s, wall)
}
