// Package throttle lets some events of each interval pass, and counts the others. It bounds what callers can cause,
// such as lines of the log.
package throttle

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Throttle lets the first events of each interval pass. Intervals follow the clock: those of one second start with the
// seconds. It is safe for concurrent use.
type Throttle struct {
	most     int
	interval int64 // in nanoseconds.

	fullInterval atomic.Int64  // the number of an interval that is used up, so that its further events need no lock.
	skipped      atomic.Uint64 // counts the events since the last one that passed.

	mu           sync.Mutex // guards the fields below.
	lastInterval int64      // the number of the interval of the last event that passed.
	passed       int        // counts the events of lastInterval that passed.
}

// New returns a Throttle that lets at most most events of each interval pass.
func New(most int, interval time.Duration) *Throttle {
	t := &Throttle{most: most, interval: int64(interval)}
	t.fullInterval.Store(math.MinInt64)
	return t
}

// Pass reports whether an event passes now. skipped is the number of events since the last one that passed.
func (t *Throttle) Pass(now time.Time) (skipped uint64, ok bool) {
	interval := now.UnixNano() / t.interval
	if t.fullInterval.Load() == interval {
		t.skipped.Add(1)
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if interval != t.lastInterval {
		t.lastInterval, t.passed = interval, 0
	}
	if t.passed >= t.most { // Another goroutine took the last place after the test above.
		t.skipped.Add(1)
		return 0, false
	}
	if t.passed++; t.passed == t.most {
		t.fullInterval.Store(interval)
	}
	return t.skipped.Swap(0), true
}

// Skip counts n events that do not pass.
func (t *Throttle) Skip(n uint64) { t.skipped.Add(n) }
