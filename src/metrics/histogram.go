package metrics

import (
	"slices"
	"sync/atomic"
	"time"
)

// Histogram is a Distribution of durations, in seconds, with buckets from 10 µs to 10 s. The
// zero value is empty. It is safe for concurrent use.
type Histogram struct{ buckets }

// Sizes is a Distribution of whole numbers, with the buckets 1, 2, 4 and so on up to 4096. The
// zero value is empty. It is safe for concurrent use.
type Sizes struct{ buckets }

var durationBounds = []int64{
	10e3, 20e3, 50e3, 100e3, 200e3, 500e3, // 10 to 500 microseconds, in nanoseconds.
	1e6, 2e6, 5e6, 10e6, 20e6, 50e6, 100e6, 200e6, 500e6, // 1 to 500 milliseconds.
	1e9, 10e9,
}

var sizeBounds = []int64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}

// Observe adds d.
func (h *Histogram) Observe(d time.Duration) { h.ObserveMany(1, d) }

// ObserveMany adds d n times.
func (h *Histogram) ObserveMany(n int, d time.Duration) { h.count(durationBounds, n, int64(d)) }

// Snapshot implements Distribution.
func (h *Histogram) Snapshot() (count uint64, sum float64, buckets map[float64]uint64) {
	return h.snapshot(durationBounds, float64(time.Second))
}

// Observe adds n.
func (s *Sizes) Observe(n int) { s.count(sizeBounds, 1, int64(n)) }

// Snapshot implements Distribution.
func (s *Sizes) Snapshot() (count uint64, sum float64, buckets map[float64]uint64) {
	return s.snapshot(sizeBounds, 1)
}

// buckets are the counts of a Histogram or of Sizes. The methods get the bounds of that type.
type buckets struct {
	// countsPerBucket[i] counts numbers up to bounds[i]. The last one counts larger numbers.
	countsPerBucket [18]atomic.Uint64
	sum             atomic.Int64
}

// count adds the number n, several times.
func (b *buckets) count(bounds []int64, times int, n int64) {
	i, _ := slices.BinarySearch(bounds, n)
	b.countsPerBucket[i].Add(uint64(times))
	b.sum.Add(int64(times) * n)
}

// snapshot implements Distribution. It divides the sum and the bounds by unit.
func (b *buckets) snapshot(bounds []int64, unit float64) (count uint64, sum float64, atMost map[float64]uint64) {
	atMost = make(map[float64]uint64, len(bounds))
	for i, bound := range bounds {
		count += b.countsPerBucket[i].Load()
		atMost[float64(bound)/unit] = count
	}
	count += b.countsPerBucket[len(bounds)].Load()
	return count, float64(b.sum.Load()) / unit, atMost
}
