package metrics

import (
	"sync/atomic"
	"time"
)

// Histogram counts durations in buckets from 10 µs to 10 s. It is a Distribution in
// seconds. Its zero value is empty; it is safe for concurrent use.
type Histogram struct{ buckets }

// Sizes counts whole numbers in buckets that double from 1 to 4096. It is a
// Distribution. Its zero value is empty; it is safe for concurrent use.
type Sizes struct{ buckets }

var durationBounds = []int64{
	10e3, 20e3, 50e3, 100e3, 200e3, 500e3, // µs, in nanoseconds
	1e6, 2e6, 5e6, 10e6, 20e6, 50e6, 100e6, 200e6, 500e6, // ms
	1e9, 10e9, // s
}

var sizeBounds = []int64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}

// Observe counts d.
func (h *Histogram) Observe(d time.Duration) { h.count(durationBounds, 1, int64(d)) }

// ObserveMany counts d n times.
func (h *Histogram) ObserveMany(n int, d time.Duration) { h.count(durationBounds, n, int64(d)) }

// Snapshot implements Distribution.
func (h *Histogram) Snapshot() (count uint64, sum float64, buckets map[float64]uint64) {
	return h.snapshot(durationBounds, float64(time.Second))
}

// Observe counts n.
func (s *Sizes) Observe(n int) { s.count(sizeBounds, 1, int64(n)) }

// Snapshot implements Distribution.
func (s *Sizes) Snapshot() (count uint64, sum float64, buckets map[float64]uint64) {
	return s.snapshot(sizeBounds, 1)
}

// buckets are the counts of a histogram. The bounds are those of its type.
type buckets struct {
	counts [18]atomic.Uint64 // one for each bound, and the last for larger numbers
	sum    atomic.Int64
}

func (b *buckets) count(bounds []int64, times int, n int64) {
	i := 0
	for i < len(bounds) && n > bounds[i] {
		i++
	}
	b.counts[i].Add(uint64(times))
	b.sum.Add(int64(times) * n)
}

// snapshot returns numbers and bounds divided by unit.
func (b *buckets) snapshot(bounds []int64, unit float64) (count uint64, sum float64, atMost map[float64]uint64) {
	atMost = make(map[float64]uint64, len(bounds))
	for i, bound := range bounds {
		count += b.counts[i].Load()
		atMost[float64(bound)/unit] = count
	}
	count += b.counts[len(bounds)].Load()
	return count, float64(b.sum.Load()) / unit, atMost
}
