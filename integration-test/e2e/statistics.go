package main

import (
	"fmt"
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

// spreadOver is that of a value of all rounds that are good, or nil if there are none.
func spreadOver[R any](rounds []R, good func(R) bool, value func(R) float64) *spread {
	var values []float64
	for _, r := range rounds {
		if good(r) {
			values = append(values, value(r))
		}
	}
	if len(values) == 0 {
		return nil
	}
	s := spreadOf(values)
	return &s
}

// verdict is a target, and whether it was met. s is nil if there are no figures.
func verdict(target float64, s *spread) string {
	switch {
	case s == nil:
		return fmt.Sprintf("≤ %.2f", target)
	case shown(s.Median) <= target:
		return fmt.Sprintf("≤ %.2f, met", target)
	}
	return fmt.Sprintf("≤ %.2f, missed", target)
}

// problemOf is the first problem of some rounds, or nothing.
func problemOf[R any](rounds []R, problem func(R) (round int, text string)) string {
	var list []string
	for _, r := range rounds {
		if round, text := problem(r); text != "" {
			list = append(list, fmt.Sprintf("round %d: %s", round, text))
		}
	}
	switch len(list) {
	case 0:
		return ""
	case 1:
		return list[0]
	}
	return fmt.Sprintf("%s (and in %d more)", list[0], len(list)-1)
}

// shown is a ratio as it is printed, so that one that is called met looks so.
func shown(x float64) float64 { return math.Round(x*100) / 100 }
