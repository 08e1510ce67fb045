package metrics

import (
	"slices"
	"testing"
)

func c(name string, value int64) Stat { return Stat{Name: name, Kind: KindCounter, Value: value} }

func g(name string, value int64) Stat { return Stat{Name: name, Kind: KindGauge, Value: value} }

func TestDeltas(t *testing.T) {
	var d Deltas[struct{}]
	steps := []struct {
		what    string
		stats   []Stat
		refuse  string
		want    []Stat
		refused int
	}{
		{what: "all is new", stats: []Stat{c("a", 2), c("b", 0), g("g", 5)}, want: []Stat{c("a", 2), g("g", 5)}},
		{what: "nothing moved; gauges always", stats: []Stat{c("a", 2), c("b", 0), g("g", 5)}, want: []Stat{g("g", 5)}},
		{what: "what moved", stats: []Stat{c("a", 5), c("b", 1), g("g", 0)}, want: []Stat{c("a", 3), c("b", 1), g("g", 0)}},
		{what: "no room for a", stats: []Stat{c("a", 7), c("b", 2)}, refuse: "a", want: []Stat{c("b", 1)}, refused: 1},
		{what: "a catches up", stats: []Stat{c("a", 8), c("b", 2)}, want: []Stat{c("a", 3)}},
		{what: "lower: began anew", stats: []Stat{c("a", 1), c("b", 2)}, want: []Stat{c("a", 1)}},
		{what: "b is gone, aa is new", stats: []Stat{c("a", 1), c("aa", 4)}, want: []Stat{c("aa", 4)}},
		{what: "b is back, from 0", stats: []Stat{c("a", 1), c("aa", 4), c("b", 2)}, want: []Stat{c("b", 2)}},
		{what: "a name changes its kind", stats: []Stat{g("a", 1), c("aa", 4), c("b", 2)}, want: []Stat{g("a", 1)}},
		{what: "and back", stats: []Stat{c("a", 1)}, want: []Stat{c("a", 1)}},
		{what: "empty", stats: nil, want: nil},
	}
	for _, step := range steps {
		var got []Stat
		refused := d.ForEachDelta(step.stats, func(s Stat, added int64, _ *struct{}) bool {
			if s.Name == step.refuse {
				return false
			}
			if s.Value = added; added != 0 || s.Kind == KindGauge {
				got = append(got, s)
			}
			return true
		})
		if !slices.Equal(got, step.want) || refused != step.refused {
			t.Errorf("%s: got %v and %d refused, want %v and %d", step.what, got, refused, step.want, step.refused)
		}
		if len(d.previousStats) != len(step.stats) {
			t.Errorf("%s: %d figures kept, of %d", step.what, len(d.previousStats), len(step.stats))
		}
	}
}
