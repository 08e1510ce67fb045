//go:build !race

package quota

import (
	"testing"
	"time"
)

// What proxies do not use of a limit goes back, so that they can use nearly all of it, whatever their number, their
// reports and the algorithm.
func TestUse(t *testing.T) {
	t.Parallel()
	// least is which part of the limit passes at least if proxies ask for more.
	for rule, least := range map[string]float64{
		"unit: second, requests_per_unit: 100":                                     0.97,
		"unit: minute, requests_per_unit: 6000":                                    0.95,
		"unit: second, requests_per_unit: 100, algorithm: gcra":                    0.85,
		"unit: minute, requests_per_unit: 6000, algorithm: gcra, burst: 50":        0.95,
		"unit: minute, requests_per_unit: 6000, algorithm: sliding_window":         0.95,
		"unit: minute, requests_per_unit: 6000, algorithm: sliding_window_counter": 0.8,
		"unit: minute, requests_per_unit: 6000, algorithm: first_hit_window":       0.9,
	} {
		for _, interval := range []time.Duration{time.Second, 5 * time.Second} {
			for _, proxies := range []int{1, 2, 5} {
				for demand, want := range map[float64]float64{40: 39, 80: 75, 120: 100 * least} {
					w := limitedWorld(t, rule, 1)
					for range proxies {
						w.connect(0, demand/float64(proxies), interval)
					}
					w.run(30 * time.Second)
					passed := 0
					for _, p := range w.proxies {
						passed -= p.total
					}
					w.run(60 * time.Second)
					for _, p := range w.proxies {
						passed += p.total
					}
					if got := float64(passed) / 60; got < want {
						t.Errorf("%s: %d proxies that report every %v ask for %.0f a second, and %.1f pass, want %.0f or more", rule,
							proxies, interval, demand, got, want)
					}
				}
			}
		}
	}
}
