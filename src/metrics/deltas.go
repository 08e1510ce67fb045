package metrics

// Deltas turns the values of counters into their increases since the last call of ForEachDelta. T is
// data that the caller keeps for each name. The zero value is ready for use.
type Deltas[T any] struct {
	// the stats of the last call of ForEachDelta. spareStats is memory that is used again.
	previousStats, spareStats []previousStat[T]
}

type previousStat[T any] struct {
	Stat
	callerData T
}

// ForEachDelta calls put for each of stats, which must be sorted by name. added is the increase of a counter since the
// last call, or the value of a gauge. If a counter went from 7 to 2, it was restarted and added is 2.
//
// data points to the data of that name and kind, which is empty for a new name. If put returns false for a counter, the
// next call adds the same increase again. ForEachDelta returns the number of these counters.
func (d *Deltas[T]) ForEachDelta(stats []Stat, put func(s Stat, added int64, data *T) bool) (refused int) {
	old, next := d.previousStats, d.spareStats[:0]
	for _, s := range stats {
		for len(old) > 0 && old[0].Name < s.Name {
			old = old[1:]
		}
		now := previousStat[T]{Stat: s}
		before := int64(0)
		if len(old) > 0 && old[0].Name == s.Name && old[0].Kind == s.Kind {
			now.callerData = old[0].callerData
			if s.Kind == KindCounter && old[0].Value <= s.Value {
				before = old[0].Value
			}
		}
		if !put(s, s.Value-before, &now.callerData) && s.Kind == KindCounter {
			refused++
			now.Value = before
		}
		next = append(next, now)
	}
	clear(d.previousStats) // Cleared entries let the names of deleted counters be freed.
	d.previousStats, d.spareStats = next, d.previousStats
	return refused
}
