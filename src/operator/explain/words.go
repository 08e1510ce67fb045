package explain

import (
	"fmt"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
)

// LimitInWords returns the limit of r for people: "2 per minute", "10 per minute, 4 at once".
func LimitInWords(r *rules.Rule) string {
	l, s := &r.Limit, r.LimitText()
	if l.Kind == algorithm.GCRA {
		s += fmt.Sprintf(", %d at once", l.Capacity())
	}
	if l.MinInterval > 0 {
		s += fmt.Sprintf(", %s apart", rules.FormatDuration(l.MinInterval))
	}
	switch {
	case r.Unlimited, l.CountBlocked == rules.CountsBlockedByDefault(l):
	case l.CountBlocked:
		s += ", refused hits count"
	default:
		s += ", refused hits do not count"
	}
	return s
}

// rateInWords returns the limit that came with a request: "2 per minute".
func rateInWords(r rules.Rate) string { return fmt.Sprintf("%d per %s", r.Requests, r.Window()) }
