package remote

import (
	"sync/atomic"
	"time"
)

// Progress tells a server that works from one that stands still, as far as a call
// noticed that waited for it in vain:
//
//	a call waits from 0 to 50 ms
//	answers at 2, 12, 22, 32, 42 ms   the server works, so the call was too much
//	answers at 2, 4 ms                the server stands still, so the call timed out
//	no answers                        the same
//
// The zero value is ready to use, by any number of goroutines.
type Progress struct {
	answers atomic.Int64
	last    atomic.Int64 // when the last answer came, in ns since progressEpoch
}

// progressEpoch is what Progress.last counts from, with the monotonic clock.
var progressEpoch = time.Now()

// Answered says that the server has done work.
func (p *Progress) Answered(now time.Time) {
	p.last.Store(int64(now.Sub(progressEpoch)))
	p.answers.Add(1)
}

// Waiting is when a call began to wait.
type Waiting struct {
	Since   time.Time
	answers int64 // before
}

// Mark marks the beginning of a wait.
func (p *Progress) Mark(now time.Time) Waiting { return Waiting{now, p.answers.Load()} }

// Worked reports whether the server gave at least so many answers during a wait, and was
// not silent for the second half of it.
func (p *Progress) Worked(from Waiting, now time.Time, least int) bool {
	silent := now.Sub(progressEpoch) - time.Duration(p.last.Load())
	return p.answers.Load()-from.answers >= int64(least) && silent <= now.Sub(from.Since)/2
}
