package soak

import (
	"fmt"
	"slices"
	"testing"
)

// figure is one of the figures that are sampled.
type figure struct {
	name string
	unit float64 // of the table
	// A step from one part of the run to the next has to be larger than both
	// to count: so much, and this share of what there was.
	step, share float64
	// shortBound, if set, is the most at the end of the short form, which does not check for growth: its seconds are not
	// enough to fill all caches and pools.
	shortBound float64
}

var figures = []figure{
	{name: "heap MiB", unit: 1 << 20, step: 1 << 20, share: 0.05, shortBound: 96 << 20},
	{name: "goroutines", unit: 1, step: 5, share: 0.05},
	{name: "descriptors", unit: 1, step: 5, share: 0.05},
	// What Go has given back, the kernel takes when it likes; beyond the heap
	// this is about stacks, and memory that no Go code counts.
	{name: "RSS MiB", unit: 1 << 20, step: 8 << 20, share: 0.10, shortBound: 256 << 20},
}

// warmUp is the share of a run that is not measured.
const warmUp = 0.25

// fewest is how many samples there have to be behind it.
const fewest = 9

// lows returns the low of each third of the samples that are measured.
func lows(samples []float64) (lows [3]float64, err error) {
	measured := samples[int(warmUp*float64(len(samples))):]
	if len(measured) < fewest {
		return lows, fmt.Errorf("%d samples are too few to measure growth, let it run for longer", len(samples))
	}
	for i := range lows {
		part := slices.Sorted(slices.Values(measured[i*len(measured)/3 : (i+1)*len(measured)/3]))
		lows[i] = part[len(part)/10]
	}
	return lows, nil
}

// grows reports whether the low of the samples rose twice.
func (f *figure) grows(lows [3]float64) bool {
	least := max(f.step, f.share*lows[0])
	return lows[1]-lows[0] > least && lows[2]-lows[1] > least
}

func TestTrend(t *testing.T) {
	series := func(f func(i int) float64) []float64 {
		list := make([]float64, 60)
		for i := range list {
			list[i] = 100 + f(i)
		}
		return list
	}
	for _, tt := range []struct {
		name  string
		value func(i int) float64
		grows bool
	}{
		{"nothing happens", func(int) float64 { return 0 }, false},
		{"it warms up", func(i int) float64 { return 30 * float64(min(i, 10)) }, false},
		{"a saw", func(i int) float64 { return float64(17 * i % 50) }, false},
		{"it finds its level late", func(i int) float64 { return 4 * float64(min(i, 30)) }, false},
		{"it falls", func(i int) float64 { return float64(-i) }, false},
		{"a peak at the end", func(i int) float64 { return float64(max(0, i-56) * 200) }, false},
		{"noise", func(i int) float64 { return float64(i * i % 7) }, false},
		{"one in each sample", func(i int) float64 { return float64(i) }, true},
		{"one in two, below a saw", func(i int) float64 { return float64(i/2 + 7*i%30) }, true},
		{"two in each sample, from the middle of the run", func(i int) float64 { return float64(2 * max(0, i-22)) }, true},
	} {
		f := figure{name: tt.name, step: 5, share: 0.05}
		l, err := lows(series(tt.value))
		if err != nil || f.grows(l) != tt.grows {
			t.Errorf("%s: %v, %v: grows %v, want %v", tt.name, l, err, f.grows(l), tt.grows)
		}
	}
	if _, err := lows(make([]float64, 10)); err == nil {
		t.Error("ten samples are enough")
	}
}
