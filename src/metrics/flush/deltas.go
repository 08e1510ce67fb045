package flush

import (
	"strings"

	"ratelimit/src/metrics"
)

// Deltas remembers how far each counter was. It holds as many figures as there
// were the last time; its zero value has seen none.
type Deltas struct {
	last []metrics.Stat
}

// Next calls put for each gauge, and for each counter that moved since the last
// call, with the difference as its value. A counter that is lower than it was
// began anew: all of it is new. What put refuses of a counter comes with the
// next call; Next returns how many those are. stats is sorted by name, and
// belongs to Deltas from now on.
func (d *Deltas) Next(stats []metrics.Stat, put func(metrics.Stat) bool) (refused int) {
	old := d.last
	for i := range stats {
		s := &stats[i]
		if s.Kind != metrics.KindCounter {
			put(*s)
			continue
		}
		for len(old) > 0 && strings.Compare(old[0].Name, s.Name) < 0 {
			old = old[1:]
		}
		before := int64(0)
		if len(old) > 0 && old[0].Name == s.Name && old[0].Kind == s.Kind && old[0].Value <= s.Value {
			before = old[0].Value
		}
		if s.Value == before {
			continue
		}
		if !put(metrics.Stat{Name: s.Name, Kind: s.Kind, Value: s.Value - before}) {
			refused++
			s.Value = before
		}
	}
	d.last = stats
	return refused
}
