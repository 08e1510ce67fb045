package xdsrules

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestPauses(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name   string
		pauses Pauses
		chance float64
		want   []time.Duration // after the first failure, the second, ...
	}{
		{"defaults", Pauses{}, 0, []time.Duration{3 * s, 10 * s, 20 * s, 40 * s, 60 * s, 60 * s}},
		{"chance shortens", Pauses{Jitter: 0.5}, 1, []time.Duration{1500 * time.Millisecond, 5 * s, 10 * s, 20 * s, 30 * s, 30 * s}},
		{"no chance", Pauses{}, 1, []time.Duration{3 * s, 10 * s, 20 * s}},
		{"slower growth", Pauses{First: s, Initial: 2 * s, Growth: 1.5, Max: 5 * s}, 0, []time.Duration{s, 2 * s, 3 * s, 4500 * time.Millisecond, 5 * s}},
		{"no growth", Pauses{Growth: 1}, 0, []time.Duration{3 * s, 10 * s, 10 * s}},
		{"all beyond the bound", Pauses{First: 9 * s, Max: 2 * s}, 0, []time.Duration{2 * s, 2 * s}},
		{"nonsense", Pauses{First: -s, Initial: -s, Max: -s, Growth: math.NaN(), Jitter: math.NaN()}, 0.5, []time.Duration{1500 * time.Millisecond, 5 * s, 10 * s}},
	} {
		var got []time.Duration
		p := tt.pauses.withDefaults()
		for i := range tt.want {
			got = append(got, p.after(i+1, tt.chance))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	p := Pauses{Growth: 10}.withDefaults()
	if got := p.after(1_000_000, 0); got != time.Minute { // 10^1,000,000 is infinite
		t.Errorf("after a million failures: %v", got)
	}
	p.Jitter = 0.5
	for range 1000 {
		if got := p.next(9); got < 30*s || got > 60*s {
			t.Fatalf("a pause of %v", got)
		}
	}
}
