package datafile

import (
	"testing"
	"testing/synctest"
	"time"
)

// A load at the start is hardly slowed down. A reload takes a fortieth of a CPU, in short bursts, and after half a
// minute a half.
func TestPacer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		gentle     bool
		step, work time.Duration // done in steps.
		min, max   time.Duration // min and max bound the time that the load takes.
		burst      time.Duration // the longest time without a rest.
	}{
		{"nothing", true, time.Microsecond, 0, 0, 0, 0},
		{"start", false, 25 * time.Microsecond, time.Second, time.Second, 1026 * time.Millisecond, fastBurst},
		{
			"small", true, 25 * time.Microsecond, 25 * time.Microsecond, 25 * time.Microsecond, 25 * time.Microsecond,
			gentleBurst,
		},
		{
			"reload", true, 25 * time.Microsecond, 500 * time.Millisecond, 20 * time.Second, 21 * time.Second,
			50 * time.Microsecond,
		},
		{
			"long reload", true, 25 * time.Microsecond, 4 * time.Second, 31 * time.Second, 32500 * time.Millisecond,
			50 * time.Microsecond,
		},
		{
			"steps that take long", true, 10 * time.Millisecond, 100 * time.Millisecond, 190 * time.Millisecond,
			200 * time.Millisecond, 10 * time.Millisecond,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, start := Pacer{Gentle: tt.gentle}, time.Now()
			p.Step()
			burst, longest := time.Duration(0), time.Duration(0)
			for done := time.Duration(0); done < tt.work; done += tt.step {
				time.Sleep(tt.step) // the work
				burst += tt.step
				longest = max(longest, burst)
				before := time.Now()
				if p.Step(); time.Now().After(before) {
					burst = 0
				}
			}
			if took := time.Since(start); took < tt.min || took > tt.max {
				t.Errorf("%s: took %v, want %v to %v", tt.name, took, tt.min, tt.max)
			}
			if longest > tt.burst {
				t.Errorf("%s: works for %v without a rest", tt.name, longest)
			}
		})
	}
}
