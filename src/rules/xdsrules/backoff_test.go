package xdsrules

import (
	"slices"
	"testing"
	"time"
)

func TestPauses(t *testing.T) {
	const s = time.Second
	defaults := Pauses{First: 3 * s, Initial: 10 * s, Growth: 2, Max: time.Minute, Jitter: 0.5}
	for _, tt := range []struct {
		name   string
		pauses Pauses
		random float64
		want   []time.Duration // after the first failure, the second, ...
	}{
		{"the longest", defaults, 0, []time.Duration{3 * s, 10 * s, 20 * s, 40 * s, 60 * s, 60 * s}},
		{"the shortest", defaults, 1, []time.Duration{1500 * time.Millisecond, 5 * s, 10 * s, 20 * s, 30 * s, 30 * s}},
		{
			"no jitter",
			Pauses{First: 3 * s, Initial: 10 * s, Growth: 2, Max: time.Minute},
			1,
			[]time.Duration{3 * s, 10 * s, 20 * s},
		},
		{
			"slower growth",
			Pauses{First: s, Initial: 2 * s, Growth: 1.5, Max: 5 * s},
			0,
			[]time.Duration{s, 2 * s, 3 * s, 4500 * time.Millisecond, 5 * s},
		},
		{
			"no growth",
			Pauses{First: 3 * s, Initial: 10 * s, Growth: 1, Max: time.Minute},
			0,
			[]time.Duration{3 * s, 10 * s, 10 * s},
		},
		{
			"all beyond the bound",
			Pauses{First: 9 * s, Initial: 10 * s, Growth: 2, Max: 2 * s},
			0,
			[]time.Duration{2 * s, 2 * s},
		},
	} {
		var got []time.Duration
		for i := range tt.want {
			got = append(got, tt.pauses.pauseAfter(i+1, tt.random))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	defaults.Growth = 10
	if got := defaults.pauseAfter(1_000_000, 0); got != time.Minute { // 10^1,000,000 is infinite
		t.Errorf("after a million failures: %v", got)
	}
}
