package diff

import (
	"cmp"
	"fmt"

	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/datafile"
)

// dataChange is what differs between two versions of a data file.
type dataChange struct{ added, removed, raised, lowered int }

// compareData compares two versions of a data file.
func compareData(before, after *datafile.Table) (c dataChange) {
	for value, limit := range after.All() {
		old, found := before.Find(value)
		if !found {
			c.added++
			continue
		}
		if after.Limits() == nil {
			continue
		}
		switch sign := compareLimits(&before.Limits()[old], &after.Limits()[limit]); {
		case sign > 0:
			c.raised++
		case sign < 0:
			c.lowered++
		}
	}
	c.removed = before.Len() + c.added - after.Len()
	return c
}

// compareLimits returns 1 if now allows more than old, -1 if it allows less, else 0. What is raised in one number and
// lowered in the other counts as the number of requests says.
func compareLimits(old, now *datafile.Limit) int {
	if old.Unlimited || now.Unlimited {
		return cmp.Compare(fmt.Sprint(now.Unlimited), fmt.Sprint(old.Unlimited)) // "false" comes before "true".
	}
	burst := func(l *datafile.Limit) uint32 {
		if l.HasBurst {
			return l.Burst
		}
		return max(l.Requests, 1) - 1
	}
	return cmp.Or(cmp.Compare(now.Requests, old.Requests), cmp.Compare(burst(now), burst(old)))
}

// effect returns what the change does: added and removed values depend on the other rules of the level.
func (c dataChange) effect() effect {
	return effect{looser: c.raised > 0, tighter: c.lowered > 0, other: true, incomparable: c.added+c.removed > 0}
}

// text returns the new number of values, and what is different.
func (c dataChange) text(after *datafile.Table) string {
	text := output.Plural(after.Len(), "value") + ":"
	for _, part := range []struct {
		n    int
		what string
	}{{c.added, "added"}, {c.removed, "removed"}, {c.raised, "raised"}, {c.lowered, "lowered"}} {
		if part.n > 0 {
			text += fmt.Sprintf(" %d %s,", part.n, part.what)
		}
	}
	return text[:len(text)-1]
}

// addDataFiles calls add for each data file of the rules that has changed.
func addDataFiles(before, after *rules.Rule, add func(name, was, is string, e effect)) {
	for i := range min(len(before.Path), len(after.Path)) {
		l, was, is := &after.Path[i], before.Path[i].Data(), after.Path[i].Data()
		if was == nil || is == nil {
			continue
		}
		if c := compareData(was, is); c != (dataChange{}) {
			add(l.Kind.String(), output.Plural(was.Len(), "value"), c.text(is), c.effect())
		}
	}
}
