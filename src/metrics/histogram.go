package metrics

import (
	"sync/atomic"
	"time"
)

// Histogram counts durations in buckets that double from 10 µs to 10 s. Its
// zero value is empty and ready; it is safe for concurrent use.
type Histogram struct {
	buckets [len(bounds) + 1]atomic.Uint64
	sum     atomic.Int64 // nanoseconds
}

var bounds = [...]time.Duration{
	10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 10 * time.Second,
}

// Observe counts d.
func (h *Histogram) Observe(d time.Duration) { h.ObserveMany(1, d) }

// ObserveMany counts d n times.
func (h *Histogram) ObserveMany(n int, d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.buckets[i].Add(uint64(n))
	h.sum.Add(int64(n) * int64(d))
}

// Snapshot returns how many durations there were, their sum in seconds, and how
// many were at most so many seconds long.
func (h *Histogram) Snapshot() (count uint64, sum float64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, len(bounds))
	for i, bound := range bounds {
		count += h.buckets[i].Load()
		buckets[bound.Seconds()] = count
	}
	count += h.buckets[len(bounds)].Load()
	return count, time.Duration(h.sum.Load()).Seconds(), buckets
}

// Sizes counts numbers in buckets that double from 1 to 4096. Its zero value is
// empty and ready; it is safe for concurrent use.
type Sizes struct {
	buckets [sizeBuckets + 1]atomic.Uint64
	sum     atomic.Int64
}

const sizeBuckets = 13

// Observe counts n.
func (s *Sizes) Observe(n int) {
	i := 0
	for i < sizeBuckets && n > 1<<i {
		i++
	}
	s.buckets[i].Add(1)
	s.sum.Add(int64(n))
}

// Snapshot returns how many numbers there were, their sum, and how many were at
// most so large.
func (s *Sizes) Snapshot() (count uint64, sum float64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, sizeBuckets)
	for i := range sizeBuckets {
		count += s.buckets[i].Load()
		buckets[float64(int(1)<<i)] = count
	}
	count += s.buckets[sizeBuckets].Load()
	return count, float64(s.sum.Load()), buckets
}
