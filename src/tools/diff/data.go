package diff

import (
	"fmt"

	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
)

// addChangedValues calls add for each file of values of the rules that has changed.
func addChangedValues(before, after *rules.Rule, add func(name, was, is string, e effect)) {
	for i := range min(len(before.Path), len(after.Path)) {
		l, was, is := &after.Path[i], before.Path[i].Data(), after.Path[i].Data()
		if was == nil || is == nil {
			continue
		}
		added, removed, raised, lowered := was.CompareTo(is)
		if added+removed+raised+lowered == 0 {
			continue
		}
		text := output.Plural(is.Len(), "value") + ":"
		for _, part := range []struct {
			n    int
			what string
		}{{added, "added"}, {removed, "removed"}, {raised, "raised"}, {lowered, "lowered"}} {
			if part.n > 0 {
				text += fmt.Sprintf(" %d %s,", part.n, part.what)
			}
		}
		// What added and removed values do depends on the other rules of the level.
		add(l.Kind.String(), output.Plural(was.Len(), "value"), text[:len(text)-1],
			effect{looser: raised > 0, tighter: lowered > 0, other: true, incomparable: added+removed > 0})
	}
}
