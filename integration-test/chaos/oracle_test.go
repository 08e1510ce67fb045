package chaos

import (
	"slices"
	"time"
)

// span is a call that was admitted: the store decided at some instant between
// the two.
type span struct{ sent, answered time.Time }

// allowance is how often a rule's limit may be used up at one time: once in the store,
// once more in memory during an outage, and once more for each loss of counters.
type allowance int

// fullness is the fullest stretch of time of a key: how many were admitted for
// certain, and how many may have been.
type fullness struct{ admitted, most int }

func (f fullness) exceeded() bool { return f.admitted > f.most }

// fuller tells whether f is nearer to what may be, or farther beyond it.
func (f fullness) fuller(g fullness) bool {
	return f.admitted*max(g.most, 1) > g.admitted*max(f.most, 1)
}

// fullest holds what was admitted on one key to its rule. Calls that may belong
// to a stretch or not, since they were under way at its edge, are not counted:
// what is found to be too much is too much.
func fullest(k kind, a allowance, admitted []span) (worst fullness) {
	worst.most = int(a) * limit
	look := func(from, to time.Time, most int) {
		f := fullness{most: most}
		for _, s := range admitted {
			if !s.sent.Before(from) && s.answered.Before(to) {
				f.admitted++
			}
		}
		if f.fuller(worst) {
			worst = f
		}
	}
	switch k {
	case window, calendar:
		seen := make(map[time.Time]bool)
		for _, s := range admitted {
			start, end := k.windowAt(s.sent)
			if !seen[start] {
				seen[start] = true
				look(start, end, int(a)*limit)
			}
		}
	case log:
		for _, s := range admitted {
			look(s.sent, s.sent.Add(period), int(a)*limit)
		}
	case bucket:
		for _, first := range admitted {
			for _, last := range admitted {
				if to := last.answered.Add(1); to.After(first.sent) {
					more := int(to.Sub(first.sent) * limit / period)
					look(first.sent, to, int(a)*(limit+more))
				}
			}
		}
	}
	return worst
}

// ideal is how many of the calls a store that never fails would have admitted,
// had each been decided when it was sent.
func ideal(k kind, sent []time.Time) (admitted int) {
	sent = slices.SortedFunc(slices.Values(sent), time.Time.Compare)
	const interval = period / limit
	var (
		start time.Time   // of the window
		used  int         // in it
		times []time.Time // of the log
		full  time.Time   // when the bucket is whole again
	)
	for _, at := range sent {
		switch k {
		case window, calendar:
			if s, _ := k.windowAt(at); !s.Equal(start) {
				start, used = s, 0
			}
			if used < limit {
				used++
				admitted++
			}
		case log:
			for len(times) > 0 && !times[0].After(at.Add(-period)) {
				times = times[1:]
			}
			if len(times) < limit {
				times = append(times, at)
				admitted++
			}
		case bucket:
			if full.Before(at) {
				full = at
			}
			if full.Sub(at) <= period-interval {
				full = full.Add(interval)
				admitted++
			}
		}
	}
	return admitted
}
