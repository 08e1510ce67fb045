package main

import (
	"math"
	"slices"
)

// spread is the middle and the ends of some values.
type spread struct {
	Median  float64 `json:"median"` // of an even number: the mean of the middle two
	Lowest  float64 `json:"lowest"`
	Highest float64 `json:"highest"`
}

// spreadOf is that of one value or more.
func spreadOf(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	s := spread{Median: v[mid], Lowest: v[0], Highest: v[len(v)-1]}
	if len(v)%2 == 0 {
		s.Median = (v[mid-1] + v[mid]) / 2
	}
	return s
}

// shown is a ratio as it is printed, so that one that is called met looks so.
func shown(x float64) float64 { return math.Round(x*100) / 100 }
