package metrics

// Deltas remembers what each counter was, with data of the caller for each name. It
// holds as many names as the last call of Next had; its zero value has none.
type Deltas[T any] struct {
	last, spare []remembered[T]
}

type remembered[T any] struct {
	Stat
	data T
}

// Next calls put for each of stats, which are sorted by name, with what a counter added
// since the last call, or the value of a gauge. A counter that is lower than before
// started again, so all of it is new. data is what put left there for the same name and
// kind in the last call. If put refuses what a counter added, that comes again with the
// next call; Next returns how many counters it refused.
func (d *Deltas[T]) Next(stats []Stat, put func(s Stat, added int64, data *T) bool) (refused int) {
	old, next := d.last, d.spare[:0]
	for _, s := range stats {
		for len(old) > 0 && old[0].Name < s.Name {
			old = old[1:]
		}
		now := remembered[T]{Stat: s}
		before := int64(0)
		if len(old) > 0 && old[0].Name == s.Name && old[0].Kind == s.Kind {
			now.data = old[0].data
			if s.Kind == KindCounter && old[0].Value <= s.Value {
				before = old[0].Value
			}
		}
		if !put(s, s.Value-before, &now.data) && s.Kind == KindCounter {
			refused++
			now.Value = before
		}
		next = append(next, now)
	}
	clear(d.last) // so that old names can be freed
	d.last, d.spare = next, d.last
	return refused
}
